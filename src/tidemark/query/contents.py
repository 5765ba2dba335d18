"""The rows of one table, from the changes that a read sees: one native Spark plan, chosen by what the changes can hold.

With a key, the newest change of each key is its row, or says that there is none. Without one, contents are summed: what
was added counts one, what was removed minus one.

A value that the stream did not send (a mark: large and unchanged) is the newest value sent for that row. Its key finds
the row, except where a marked update also moved it to another key. Then a *loan* stands under the new key just before
the update: the values the row had under its old key, and no others. So a former occupant of the new key never lends.

Columns go by their attnum inside (`v3` the value, `t3` PostgreSQL's text beside it) and by their names only at both
ends, so no name needs quoting and two names may differ in case alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from tidemark.errors import InvalidValue

Position = tuple[int, int]

META = {
    "_change_type": "kind",
    "_commit_version": "commit",
    "_ordinal": "ordinal",
    "_unchanged": "marks",
    "_truncate": "truncates",
}
REMOVALS = ("delete", "update_preimage")
PREIMAGE, LOAN, OTHER = 0, 1, 2  # the order of rows that share a position
# PostgreSQL stores values out of line only if they vary in size; these never do
FIXED = (
    T.BooleanType,
    T.IntegralType,
    T.FloatType,
    T.DoubleType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
)
LOT = 10_000
LOANS_DDL = "commit long, ordinal long, from_commit long, from_ordinal long, marks string"
LOANS = pa.schema(
    [*((name, pa.int64()) for name in ("commit", "ordinal", "from_commit", "from_ordinal")), ("marks", pa.string())]
)
NEVER_SENT = "a value is marked as unchanged and no earlier change holds it"


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A column as readers see it; if `exact`, `<name>~text` beside it holds what its type cannot."""

    name: str
    attnum: int
    exact: bool = False

    @property
    def cells(self) -> tuple[str, ...]:
        """What the column is called in here."""
        return (f"v{self.attnum}", f"t{self.attnum}") if self.exact else (f"v{self.attnum}",)

    @property
    def names(self) -> tuple[str, ...]:
        """What the column is called outside, in the order of `cells`."""
        return (self.name, f"{self.name}~text") if self.exact else (self.name,)


@dataclass(frozen=True, slots=True)
class Shape:
    """The shown columns in order, and the key's attnums; without a key the table is a multiset."""

    columns: tuple[ShownColumn, ...]
    key: tuple[int, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """Every column's cells."""
        return tuple(cell for column in self.columns for cell in column.cells)

    @property
    def names(self) -> tuple[str, ...]:
        """Every cell's name outside."""
        return tuple(name for column in self.columns for name in column.names)

    @property
    def key_cells(self) -> tuple[str, ...]:
        """The key's cells: 'infinity' is a key too, and only its text tells it."""
        return tuple(cell for column in self.of(self.key) for cell in column.cells)

    def of(self, attnums: Iterable[int]) -> tuple[ShownColumn, ...]:
        """The columns with these attnums, in their order."""
        by_attnum = {column.attnum: column for column in self.columns}
        return tuple(by_attnum[attnum] for attnum in attnums)


@dataclass(frozen=True, slots=True)
class Facts:
    """What file statistics tell about the changes: True where unsure."""

    only_inserts: bool
    truncates: bool
    marks: bool
    preimages: bool


def contents(changes: DataFrame, shape: Shape, facts: Facts) -> DataFrame:
    """The table's rows after `changes`, which hold the commits that the read sees and no others."""
    rows = _by_attnum(changes, shape)
    if facts.truncates:
        rows = _after_truncate(rows)
    if not facts.only_inserts:
        rows = _keyed(rows, shape, facts) if shape.key else _summed(rows, shape)
    return rows.select(*shape.cells).toDF(*shape.names)


def _by_attnum(changes: DataFrame, shape: Shape) -> DataFrame:
    """The columns that are needed, renamed by place: the only names here that can be odd are never spelled."""
    inside = {**META, **dict(zip(shape.names, shape.cells, strict=True))}
    missing = sorted(inside.keys() - set(changes.columns))
    strange = set(shape.key) - {column.attnum for column in shape.columns}
    if missing or strange:
        raise InvalidValue(f"the changes do not fit the table's shape: {missing or strange} not among their columns")
    renamed = changes.toDF(*(inside.get(name, f"other{place}") for place, name in enumerate(changes.columns)))
    return renamed.select(*inside.values())


def _after_truncate(rows: DataFrame) -> DataFrame:
    """What comes after the newest truncate; two scalars, so that the commit's reaches the scan."""
    truncates = rows.filter(F.col("truncates").isNotNull())
    newest = F.max(F.struct("commit", "ordinal"))
    commit = truncates.agg(F.coalesce(F.max("commit"), F.lit(-1).cast("long")).alias("commit")).scalar()
    ordinal = truncates.agg(F.coalesce(newest.getField("ordinal"), F.lit(-1).cast("long")).alias("ordinal")).scalar()
    return rows.filter(F.col("commit") >= commit).filter((F.col("commit") > commit) | (F.col("ordinal") > ordinal))


def _keyed(rows: DataFrame, shape: Shape, facts: Facts) -> DataFrame:
    """The newest change of each key, with marked values found; the work for marks is done only where there are any."""
    rows = rows.withColumn("rank", F.when(F.col("kind") == "update_preimage", PREIMAGE).otherwise(OTHER))
    if not facts.marks:
        return _newest(rows, shape, ())
    sizes_vary = tuple(c for c in shape.columns if not isinstance(rows.schema[c.cells[0]].dataType, FIXED))
    rows = _with_whole_keys(rows, tuple(c for c in sizes_vary if c.attnum in shape.key))
    large = tuple(c for c in sizes_vary if c.attnum not in shape.key)
    if facts.preimages and large:
        rows = rows.unionByName(_loans(rows, shape, large), allowMissingColumns=True)
    return _newest(rows, shape, large)


def _newest(rows: DataFrame, shape: Shape, large: tuple[ShownColumn, ...]) -> DataFrame:
    """One row for each key that has one. The partition is by plain columns, so filters on the key reach the scan."""
    newest_first = Window.partitionBy(*shape.key_cells).orderBy(
        *(F.desc(name) for name in ("commit", "ordinal", "rank"))
    )
    whole = newest_first.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    is_row = ~F.col("kind").isin(*REMOVALS)
    sent = {c: F.when(is_row & ~_marked(c), F.struct(*c.cells)) for c in large}
    found = [F.first(value, ignorenulls=True).over(whole).alias(f"sent{c.attnum}") for c, value in sent.items()]
    newest = rows.select("*", F.row_number().over(newest_first).alias("age"), *found).filter(F.col("age") == 1)
    values = {cell: _found(c).getField(cell) for c in large for cell in c.cells}
    return newest.filter(is_row).select(*(values.get(cell, F.col(cell)).alias(cell) for cell in shape.cells))


def _marked(column: ShownColumn) -> Column:
    return F.coalesce(F.col("marks").contains(f",{column.attnum},"), F.lit(False))


def _found(column: ShownColumn) -> Column:
    return F.coalesce(F.col(f"sent{column.attnum}"), F.raise_error(F.lit(f"column {column.name}: {NEVER_SENT}")))


def _with_whole_keys(rows: DataFrame, large: tuple[ShownColumn, ...]) -> DataFrame:
    """Key columns can be large and marked too. PostgreSQL then always sends the old key, which holds their values."""
    if not large:
        return rows
    broken = reduce(or_, (_marked(column) for column in large))
    old = _preimages(rows, tuple(cell for column in large for cell in column.cells))
    mended = {cell: _from_preimage(column, cell) for column in large for cell in column.cells}
    marks = reduce(lambda so_far, c: F.replace(so_far, F.lit(f",{c.attnum},"), F.lit(",")), large, F.col("marks"))
    whole = (mended.get(cell, marks if cell == "marks" else F.col(cell)).alias(cell) for cell in rows.columns)
    return rows.filter(~broken).unionByName(rows.filter(broken).join(old, _same_position("old"), "left").select(*whole))


def _from_preimage(column: ShownColumn, cell: str) -> Column:
    missing = F.raise_error(F.lit(f"key column {column.name}: {NEVER_SENT}"))
    old = F.when(F.col("old_commit").isNull(), missing).otherwise(F.col(f"old_{cell}"))
    return F.when(_marked(column), old).otherwise(F.col(cell))


def _preimages(rows: DataFrame, cells: Iterable[str]) -> DataFrame:
    """Old rows, under names that no other row has."""
    old = rows.filter(F.col("kind") == "update_preimage")
    return old.select(*(F.col(name).alias(f"old_{name}") for name in ("commit", "ordinal", *cells)))


def _same_position(other: str) -> Column:
    return (F.col("commit") == F.col(f"{other}_commit")) & (F.col("ordinal") == F.col(f"{other}_ordinal"))


def _same(cells: Iterable[str], other: str) -> Column:
    return reduce(and_, (F.col(cell).eqNullSafe(F.col(f"{other}_{cell}")) for cell in cells))


def _loans(rows: DataFrame, shape: Shape, large: tuple[ShownColumn, ...]) -> DataFrame:
    """For every marked move, rows under the new key and just before it with the values sent under older keys.

    Each lends the columns that one earlier change sent, and is marked for all others.
    """
    marked = rows.filter((F.col("kind") == "update_postimage") & F.col("marks").isNotNull())
    both = marked.join(_preimages(rows, shape.key_cells), _same_position("old"))
    moves = both.filter(~_same(shape.key_cells, "old"))
    found = _steps(rows, moves, shape).mapInArrow(_replay(tuple(column.attnum for column in large)), LOANS_DDL)
    values = [cell for column in large for cell in column.cells]
    sent = rows.filter(F.col("rank") == OTHER).select(
        F.col("commit").alias("from_commit"), F.col("ordinal").alias("from_ordinal"), *values
    )
    return (
        moves.select("commit", "ordinal", "kind", *shape.key_cells)
        .join(found, ["commit", "ordinal"])
        .join(sent, ["from_commit", "from_ordinal"])
        .select("commit", "ordinal", F.lit(LOAN).alias("rank"), "kind", "marks", *shape.key_cells, *values)
    )


def _steps(rows: DataFrame, moves: DataFrame, shape: Shape) -> DataFrame:
    """The changes of every key that a marked move touches, in order, with a number for the key and without values.

    These keys are closed: a chain of marked moves has all of its keys among them. The numbers follow the keys' order,
    so they are the same when Spark runs a task again.
    """
    its = [f"its_{cell}" for cell in shape.key_cells]
    new, old = (
        F.struct(*(F.col(f"{of}{cell}").alias(f"its_{cell}") for cell in shape.key_cells)) for of in ("", "old_")
    )
    keys = moves.select(F.explode(F.array(new, old)).alias("its")).select("its.*").dropDuplicates()
    numbered = keys.withColumn("number", F.row_number().over(Window.partitionBy(F.lit(0)).orderBy(*its)))
    steps = rows.join(numbered, _same(shape.key_cells, "its"))
    in_one = steps.select("commit", "ordinal", "rank", "kind", "number", "marks").repartition(1)
    return in_one.sortWithinPartitions("commit", "ordinal", "rank")


def _replay(large: tuple[int, ...]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The replay as a task. Nested functions travel whole, so a worker needs pyarrow and not us."""
    lend = _lender(large)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        steps = (step for batch in batches for step in zip(*(c.to_pylist() for c in batch.columns), strict=True))
        yield pa.RecordBatch.from_pylist([dict(zip(LOANS.names, loan, strict=True)) for loan in lend(steps)], LOANS)

    return task


def _lender(large: tuple[int, ...]) -> Callable[[Iterable[tuple[Any, ...]]], Iterator[tuple[Any, ...]]]:
    """Follows which change sent each large value of each key's row; a marked move gives one loan for each sender."""

    def lend(steps: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        rows: dict[int, dict[int, Position]] = {}
        position, old_key, old_row = (-1, -1), -1, dict[int, Position]()
        for commit, ordinal, _, kind, key, marks in steps:
            here = commit, ordinal
            if kind in REMOVALS:
                position, old_key, old_row = here, key, rows.pop(key, {})
                continue
            before = old_row if position == here else rows.get(key, {})
            marked = {attnum for attnum in large if f",{attnum}," in (marks or "")}
            if not marked <= before.keys():
                raise ValueError(f"commit {commit}, change {ordinal}: {NEVER_SENT}")
            rows[key] = {attnum: before[attnum] if attnum in marked else here for attnum in large}
            for sender in {before[n] for n in marked} if position == here and old_key != key else ():
                others = (n for n in large if n not in marked or before[n] != sender)
                yield *here, *sender, "," + "".join(f"{n}," for n in others)

    return lend


def _summed(rows: DataFrame, shape: Shape) -> DataFrame:
    """Every content as often as it was added and not removed.

    Contents are told apart exactly. Spark's grouping takes 0.0 and -0.0 for one, so what has floats in it is grouped by
    text as well, and the value is taken from the rows, not from the group.
    """
    floats = [cell for cell in shape.cells if _has_floats(rows.schema[cell].dataType)]
    texts = [_zeros_apart(cell, rows.schema[cell].dataType).alias(f"text_{cell}") for cell in floats]
    added = F.when(F.col("kind").isin(*REMOVALS), -1).otherwise(1)
    groups = rows.groupBy(*shape.cells, *texts)
    sums = groups.agg(F.sum(added).alias("balance"), *(F.first(cell).alias(f"exact_{cell}") for cell in floats))
    exact = (F.col(f"exact_{cell}" if cell in floats else cell).alias(cell) for cell in shape.cells)
    return _repeated(sums.filter(F.col("balance") != 0).select("balance", *exact))


def _repeated(rows: DataFrame) -> DataFrame:
    """Each row `balance` times, in lots, so that a row that is there a billion times needs no array of that size."""
    balance = F.col("balance")
    text = F.concat(
        F.lit("a row was removed more often than it was added: "), (-balance).cast("string"), F.lit(" times")
    )
    times = F.when(balance < 0, F.raise_error(text)).otherwise(balance)
    lots = rows.select("*", F.explode(F.sequence(F.lit(1).cast("long"), times, F.lit(LOT).cast("long"))).alias("lot"))
    size = F.least(F.lit(LOT).cast("long"), balance - F.col("lot") + 1).cast("int")
    return lots.withColumn("copy", F.explode(F.array_repeat(F.lit(0), size)))


def _has_floats(kind: T.DataType) -> bool:
    return isinstance(kind, T.FloatType | T.DoubleType) or (
        isinstance(kind, T.ArrayType) and _has_floats(kind.elementType)
    )


def _zeros_apart(cell: str, kind: T.DataType) -> Column:
    text = F.col(cell).cast("string")
    return text if isinstance(kind, T.ArrayType) else F.when(F.col(cell) == 0, text)
