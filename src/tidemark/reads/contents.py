"""The rows of one table from the changes visible to a read, as one native Spark plan chosen by the kinds of changes.

With a key, the newest change of each key is its row, or removes it. Without a key, contents are summed: an added row
counts 1, a removed row -1.

Unchanged TOAST values are filled in (`unchanged`) only if the changes can have any.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from tidemark.errors import InvalidValue
from tidemark.lake.rows import DELETED, INSERTED
from tidemark.reads.overlay import beneath, parted, without_keys
from tidemark.reads.shape import COPY_AGAIN, META, REMOVALS, Base, ChangeFacts, Shape, ShownColumn
from tidemark.reads.unchanged import (
    carried_rows,
    keys_from_preimages,
    may_be_unchanged,
    newest_sent,
    rank,
    sent_values,
)

LOT = 10_000


def contents(changes: DataFrame, shape: Shape, facts: ChangeFacts, base: Base | None = None) -> DataFrame:
    """Return the table's rows after `changes`: exactly the commits that are visible to the read and not in `base`."""
    rows = by_attnum(changes, shape)
    if facts.truncates:
        rows, base = _after_truncate(rows, base)
    if not facts.only_inserts or (base is not None and base.taken_away is not None):
        rows = _keyed(rows, shape, facts, base) if shape.key else _multiset(rows, shape, facts, base)
    elif base is not None:
        rows = base.rows.unionAll(rows.select(*shape.cells))
    return rows.select(*shape.cells).toDF(*shape.names)


def by_attnum(changes: DataFrame, shape: Shape) -> DataFrame:
    """Select the required columns and rename them by position, so that no expression contains arbitrary names."""
    inside = {**META, **dict(zip(shape.names, shape.cells, strict=True))}
    missing = sorted(inside.keys() - set(changes.columns))
    strange = set(shape.key) - {column.attnum for column in shape.columns}
    if missing or strange:
        raise InvalidValue(f"the changes do not match the table: columns {missing or strange} are missing")
    renamed = changes.toDF(*(inside.get(name, f"other{place}") for place, name in enumerate(changes.columns)))
    return renamed.select(*inside.values())


def _after_truncate(rows: DataFrame, base: Base | None) -> tuple[DataFrame, Base | None]:
    """Drop everything before the newest TRUNCATE. Its commit is a separate scalar, so the filter reaches the scan."""
    truncates = rows.filter(F.col("truncates").isNotNull())
    newest = F.max(F.struct("commit", "ordinal"))
    commit = truncates.agg(F.coalesce(F.max("commit"), F.lit(-1).cast("long")).alias("commit")).scalar()
    ordinal = truncates.agg(F.coalesce(newest.getField("ordinal"), F.lit(-1).cast("long")).alias("ordinal")).scalar()
    later = rows.filter(F.col("commit") >= commit).filter((F.col("commit") > commit) | (F.col("ordinal") > ordinal))
    if base is None:
        return later, None
    taken_away = None if base.taken_away is None else base.taken_away.filter(commit < 0)
    return later, Base(base.rows.filter(commit < 0), taken_away)


def _keyed(rows: DataFrame, shape: Shape, facts: ChangeFacts, base: Base | None) -> DataFrame:
    """Return the newest row of each key."""
    large: tuple[ShownColumn, ...] = ()
    if facts.unchanged:
        keys, large = may_be_unchanged(rows, shape)
        rows = keys_from_preimages(rows, keys)
    untouched = None
    if base is not None:
        untouched = without_keys(base.rows, rows, shape, many=facts.many)
        rows = (
            rows.unionByName(beneath(base.rows, rows, shape, many=facts.many), allowMissingColumns=True)
            if large
            else rows
        )
    if facts.preimages and large:
        rows = rows.unionByName(carried_rows(rows, shape, large), allowMissingColumns=True)
    newest = _newest(rows, shape, large).select(*shape.cells)
    return newest if untouched is None else untouched.unionAll(newest)


def _newest(rows: DataFrame, shape: Shape, large: tuple[ShownColumn, ...]) -> DataFrame:
    """Return the row of each key that has one. Partitioning by plain columns lets filters on the key reach the scan."""
    newest_first = Window.partitionBy(*shape.key_cells).orderBy(
        *(F.desc(name) for name in ("commit", "ordinal", "rank"))
    )
    age, sent = F.row_number().over(newest_first).alias("age"), newest_sent(large, newest_first)
    newest = rows.withColumn("rank", rank()).select("*", age, *sent).filter(F.col("age") == 1)
    values = sent_values(large)
    is_row = ~F.col("kind").isin(*REMOVALS)
    return newest.filter(is_row).select(*(values.get(cell, F.col(cell)).alias(cell) for cell in shape.cells))


def _multiset(rows: DataFrame, shape: Shape, facts: ChangeFacts, base: Base | None) -> DataFrame:
    """Sum contents, but only those that may have been removed; other rows are passed through."""
    rows = rows.select("kind", *shape.cells)
    if base is None:
        return _summed(rows, shape)
    removes = F.col("kind").isin(*REMOVALS)
    fewer = rows.filter(removes)
    if base.taken_away is not None:
        fewer = fewer.unionByName(base.taken_away.withColumn("kind", F.lit(DELETED)))
    more = rows.filter(~removes).unionByName(base.rows.withColumn("kind", F.lit(INSERTED)))
    untouched, touched = parted(more, fewer, shape, many=facts.many)
    return untouched.select(*shape.cells).unionAll(_summed(touched.unionByName(fewer), shape).select(*shape.cells))


def _summed(rows: DataFrame, shape: Shape) -> DataFrame:
    """Return every content as often as it was added and not removed."""
    return repeated(balances(rows, shape))


def balances(rows: DataFrame, shape: Shape) -> DataFrame:
    """Return every distinct row with its `balance`, the number of additions minus removals, where that is not zero.

    Contents are compared exactly. Spark groups 0.0 and -0.0 together, so columns with floats are also grouped by their
    text, and the value is taken from a row, not from the group.
    """
    floats = [cell for cell in shape.cells if has_floats(rows.schema[cell].dataType)]
    texts = [zeros_apart(cell, rows.schema[cell].dataType).alias(f"text_{cell}") for cell in floats]
    added = F.when(F.col("kind").isin(*REMOVALS), -1).otherwise(1)
    groups = rows.groupBy(*shape.cells, *texts)
    sums = groups.agg(F.sum(added).alias("balance"), *(F.first(cell).alias(f"exact_{cell}") for cell in floats))
    exact = (F.col(f"exact_{cell}" if cell in floats else cell).alias(cell) for cell in shape.cells)
    return sums.filter(F.col("balance") != 0).select("balance", *exact)


def repeated(rows: DataFrame) -> DataFrame:
    """Repeat each row `balance` times, in lots, so that a row with a count of a billion needs no array of that size."""
    balance = F.col("balance")
    text = F.concat(
        F.lit("a row was deleted more often than it was inserted: "),
        (-balance).cast("string"),
        F.lit(f" times\nHint: {COPY_AGAIN}"),
    )
    times = F.when(balance < 0, F.raise_error(text)).otherwise(balance)
    lots = rows.select("*", F.explode(F.sequence(F.lit(1).cast("long"), times, F.lit(LOT).cast("long"))).alias("lot"))
    size = F.least(F.lit(LOT).cast("long"), balance - F.col("lot") + 1).cast("int")
    return lots.withColumn("copy", F.explode(F.array_repeat(F.lit(0), size)))


def has_floats(kind: T.DataType) -> bool:
    """Return whether a type is a float type or an array of one."""
    return isinstance(kind, T.FloatType | T.DoubleType) or (
        isinstance(kind, T.ArrayType) and has_floats(kind.elementType)
    )


def zeros_apart(cell: str, kind: T.DataType) -> Column:
    """Return an expression that differs for 0.0 and -0.0 in a cell of such a type."""
    text = F.col(cell).cast("string")
    return text if isinstance(kind, T.ArrayType) else F.when(F.col(cell) == 0, text)
