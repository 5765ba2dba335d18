"""Unchanged TOAST values: large values that an UPDATE did not change and that PostgreSQL did not send again.

`_unchanged` of a change lists their columns. An unchanged value of a key column is in the preimage, which PostgreSQL
always sends in this case. Any other is the value that the row had before the update: the newest one that a change of
the row sent, and otherwise that of the folded row. A row is the same row before and after its key changes, and it is
another row after a delete or a TRUNCATE, so a former row with the same key is never used as a source.

The rule has two forms. Where all changes of a row are in this process, `sources_of` follows them from change to change.
In Spark, a window over the key finds the newest value. An update that changes the key gets carried rows before it:
rows under the new key with values that the row had under the old one, which a task finds with `sources_of`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark_types

from tidemark.errors import LakeDamaged
from tidemark.lake.rows import POSTIMAGE, PREIMAGE, TRUNCATED
from tidemark.reads.shape import COPY_AGAIN, ITS, REMOVALS, Shape, ShownColumn, same_key
from tidemark.values.kernels import Flags, Longs

CARRIED = "carried"  # the kind of rows that are inserted before an update that changes the key
NEVER_SENT = "the value of an unchanged TOAST column is missing from all earlier changes"
LOST = -(1 << 63)  # the source of a value whose row was removed before: the lake is damaged

# Values of these types have a fixed size, so PostgreSQL never stores them out of line.
FIXED = (
    spark_types.BooleanType,
    spark_types.IntegralType,
    spark_types.FloatType,
    spark_types.DoubleType,
    spark_types.DateType,
    spark_types.TimestampType,
    spark_types.TimestampNTZType,
)
FOLDED = "folded"  # the prefix of flags: whether the value of a column is in the folded row
_FROM = ("from_commit", "from_ordinal", "number")
_CARRIES = pa.schema([*((name, pa.int64()) for name in ("commit", "ordinal", *_FROM)), ("unchanged", pa.string())])
_CARRIES_DDL = "commit long, ordinal long, from_commit long, from_ordinal long, number long, unchanged string"
_ORDER = (PREIMAGE, CARRIED)  # the kinds that precede others at the same position, in their order

# Tasks contain the functions of this module, so that workers need pyarrow and numpy, but not Tidemark.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


# --- in this process ----------------------------------------------------------------------------------------------


def sources_of(steps: pa.Table, keys: Longs, order: Longs, attnums: Iterable[int]) -> dict[int, Longs]:
    """For each column and step, return the step that sent the value that the row has after the step.

    `steps` are changes, and rows that are older than these, in any order, with `kind`, `commit`, `ordinal` and
    `unchanged`; `keys` are the numbers of their keys, and `order` is their order by row. A value that no step sent is
    `~step`: it is in the row that had the key of this step before all steps. A value of a row that was removed before
    the step is `LOST`.
    """
    removes: Flags = pc.is_in(steps["kind"], value_set=pa.array(REMOVALS)).to_numpy()
    previous = _previous_steps(steps, _keys_between_truncates(steps, keys), order)
    found = {}
    for attnum in attnums:
        sources = np.where(is_unsent(steps, attnum) & ~removes, previous, np.arange(len(previous)))
        while True:  # each round doubles the number of steps that are passed
            further = np.where(sources >= 0, sources[sources], sources)
            if (further == sources).all():
                break
            sources = further
        found[attnum] = np.where((sources >= 0) & removes[sources], LOST, sources)
    return found


def is_unsent(steps: pa.Table, attnum: int) -> Flags:
    """Return whether each step has an unchanged TOAST value in a column."""
    unsent: Flags = pc.match_substring(steps["unchanged"], f",{attnum},").fill_null(False).to_numpy()
    return unsent


def in_order(steps: pa.Table) -> Longs:
    """Return the order of the steps by position, with a preimage before the new row."""
    order: Longs = np.lexsort((_ranks(steps), steps["ordinal"].to_numpy(), steps["commit"].to_numpy()))
    return order


def by_row(steps: pa.Table, keys: Longs) -> Longs:
    """Return the order of the steps by key and position."""
    order = in_order(steps)
    return order[np.argsort(keys[order], kind="stable")]


def _ranks(steps: pa.Table) -> Longs:
    """Return the order of steps that have the same position."""
    ranks: Longs = pc.index_in(steps["kind"], value_set=pa.array(_ORDER)).fill_null(len(_ORDER)).to_numpy()
    return ranks


def _previous_steps(steps: pa.Table, keys: Longs, order: Longs) -> Longs:
    """Return the previous step of the same row for each step; for the first one, `~step` of the step with its key.

    An update that has a preimage continues the row with the key of the preimage.
    """
    again = np.diff(keys[order]) == 0
    previous = ~np.arange(len(keys))
    previous[order[1:][again]] = order[:-1][again]
    old = _preimages(steps)
    return np.where(old >= 0, previous[old], previous)


def _preimages(steps: pa.Table) -> Longs:
    """Return the preimage of the same change for each step, or -1."""
    found, old = np.full(len(steps), -1, np.int64), pc.equal(steps["kind"], PREIMAGE).to_numpy()
    if not old.any():
        return found
    order = in_order(steps)
    first, second = order[:-1], order[1:]
    same = old[first]
    for name in ("commit", "ordinal"):
        same &= np.diff(steps[name].to_numpy()[order]) == 0
    found[second[same]] = first[same]
    return found


def _keys_between_truncates(steps: pa.Table, keys: Longs) -> Longs:
    """Return numbers for keys that differ before and after a TRUNCATE."""
    truncates: Flags = pc.equal(steps["kind"], TRUNCATED).to_numpy()
    if not truncates.any():
        return keys
    order = in_order(steps)
    epochs = np.empty_like(keys)
    epochs[order] = np.cumsum(truncates[order])
    return keys * (len(keys) + 1) + epochs


def unsent_columns(steps: pa.Table) -> set[int]:
    """Return the attnums of all columns with an unchanged TOAST value, including columns dropped since."""
    texts = [text for text in pc.unique(steps["unchanged"]).to_pylist() if text]
    return {int(attnum) for text in texts for attnum in text.split(",") if attnum}


def keys_from_preimages_here(steps: pa.Table, shape: Shape) -> pa.Table:
    """Fill unchanged TOAST values of key columns from the preimage; LakeDamaged if there is none."""
    unsent = unsent_columns(steps)
    for column in shape.of(attnum for attnum in shape.key if attnum in unsent):
        places = np.where(is_unsent(steps, column.attnum), _preimages(steps), np.arange(len(steps)))
        if (places < 0).any():
            raise LakeDamaged(f"key column {column.name}: {NEVER_SENT}", COPY_AGAIN)
        for cell in column.cells:
            steps = steps.set_column(steps.column_names.index(cell), cell, steps[cell].take(pa.array(places)))
    return steps


class RowValues:
    """The values of rows after steps. `columns` are the cells, by attnum, that may have unchanged TOAST values.

    A column that was dropped is not among them, although older steps may list it as unchanged.
    """

    def __init__(self, steps: pa.Table, keys: Longs, order: Longs, columns: Mapping[int, Sequence[str]]) -> None:
        self._steps = steps
        unsent = sorted(unsent_columns(steps) & columns.keys())
        self.sources = sources_of(steps, keys, order, unsent) if unsent else {}
        self._sources = {cell: self.sources[attnum] for attnum in unsent for cell in columns[attnum]}

    def taken(self, cells: Iterable[str], steps: Longs, *, folded: bool = False) -> pa.Table:
        """Return the cells of the rows after these steps.

        A value that no step sent is null if it may be in a folded row (`folded`), and LakeDamaged otherwise.
        """
        values, own = {}, pa.array(steps)
        for cell in cells:
            places = self._sources[cell][steps] if cell in self._sources else None
            if places is not None and not folded and (places < 0).any():
                raise LakeDamaged(f"column {cell}: {NEVER_SENT}", COPY_AGAIN)
            where = own if places is None else pa.array(np.where(places < 0, steps, places))
            values[cell] = self._steps[cell].take(where)
        return pa.table(values)


@dataclass(frozen=True, slots=True)
class ResolvedRows:
    """Rows with all values, and `incomplete` ones, which need values of folded rows.

    An incomplete row also has the key of its folded row (`its_…`), and for each column whether its value is there
    (`folded…`).
    """

    rows: pa.Table
    incomplete: pa.Table


def resolved_here(steps: pa.Table, keys: Longs, order: Longs, newest: Longs, shape: Shape) -> ResolvedRows | None:
    """Return the rows after the `newest` steps; None if a value is missing, which Spark reports when it reads it."""
    values = RowValues(steps, keys, order, {column.attnum: column.cells for column in shape.not_in_key})
    sources = {attnum: found[newest] for attnum, found in values.sources.items()}
    origins = reduce(np.minimum, sources.values(), newest)
    if (origins == LOST).any():
        return None
    folded = origins < 0
    incomplete = values.taken(shape.cells, newest[folded], folded=True)
    of_folded = steps.select(list(shape.key_cells)).take(pa.array(~origins[folded]))
    for cell in shape.key_cells:
        incomplete = incomplete.append_column(f"{ITS}{cell}", of_folded[cell])
    for attnum, found in sources.items():
        incomplete = incomplete.append_column(f"{FOLDED}{attnum}", pa.array(found[folded] < 0))
    return ResolvedRows(values.taken(shape.cells, newest[~folded]), incomplete)


def _carries(steps: pa.Table, attnums: Sequence[int]) -> pa.Table:
    """Return a carried row for each update that changes the key, and each earlier step that sent its unchanged values.

    `number` is the key of a step. A carried row lists all columns as unchanged whose values the step did not send.
    """
    keys, old = steps["number"].to_numpy(), _preimages(steps)
    commits, ordinals = (steps[name].to_numpy() for name in ("commit", "ordinal"))
    sources = sources_of(steps, keys, by_row(steps, keys), attnums)
    unsent = {attnum: is_unsent(steps, attnum) for attnum in attnums}
    rows = []
    for at in np.flatnonzero((old >= 0) & (keys[old] != keys)).tolist():
        sent_by = {attnum: int(sources[attnum][at]) for attnum in attnums if unsent[attnum][at]}
        for source in sorted(set(sent_by.values())):
            if source < 0:
                raise ValueError(f"commit {commits[at]}, change {ordinals[at]}: {NEVER_SENT}")
            others = (f"{attnum}," for attnum in attnums if sent_by.get(attnum) != source)
            rows.append((commits[at], ordinals[at], commits[source], ordinals[source], keys[source], "".join(others)))
    columns = list(zip(*rows, strict=True)) or [()] * len(_CARRIES)
    columns[-1] = tuple(f",{others}" for others in columns[-1])
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, _CARRIES, strict=True)], _CARRIES)


# --- in Spark -----------------------------------------------------------------------------------------------------


def is_unchanged(column: ShownColumn) -> Column:
    """Return whether a change has an unchanged TOAST value in this column."""
    return F.coalesce(F.col("unchanged").contains(f",{column.attnum},"), F.lit(False))


def may_be_unchanged(rows: DataFrame, shape: Shape) -> tuple[tuple[ShownColumn, ...], tuple[ShownColumn, ...]]:
    """Return the columns that can have unchanged TOAST values: those of the key, and the others."""
    large = [c for c in shape.columns if not isinstance(rows.schema[c.cells[0]].dataType, FIXED)]
    keys = tuple(c for c in large if c.attnum in shape.key)
    return keys, tuple(c for c in large if c.attnum not in shape.key)


def rank() -> Column:
    """Return the order of rows that have the same position."""
    ranks = (F.when(F.col("kind") == kind, place) for place, kind in enumerate(_ORDER))
    return F.coalesce(*ranks, F.lit(len(_ORDER)))


def keys_from_preimages(rows: DataFrame, large: tuple[ShownColumn, ...]) -> DataFrame:
    """Fill unchanged TOAST values of these columns of the key from the preimage."""
    if not large:
        return rows
    unsent = reduce(or_, (is_unchanged(column) for column in large))
    old = _old_rows(rows, tuple(cell for column in large for cell in column.cells))
    filled = {cell: _from_preimage(column, cell) for column in large for cell in column.cells}
    filled["unchanged"] = reduce(
        lambda text, c: F.replace(text, F.lit(f",{c.attnum},"), F.lit(",")), large, F.col("unchanged")
    )
    whole = (filled.get(cell, F.col(cell)).alias(cell) for cell in rows.columns)
    updates = rows.filter(unsent).join(old, _same_position(), "left").select(*whole)
    return rows.filter(~unsent).unionByName(updates)


def _from_preimage(column: ShownColumn, cell: str) -> Column:
    old = F.when(F.col("old_commit").isNull(), _missing(column, "key column")).otherwise(F.col(f"old_{cell}"))
    return F.when(is_unchanged(column), old).otherwise(F.col(cell))


def _missing(column: ShownColumn, kind: str = "column") -> Column:
    return F.raise_error(F.lit(f"{kind} {column.name}: {NEVER_SENT}\nHint: {COPY_AGAIN}"))


def _old_rows(rows: DataFrame, cells: Iterable[str]) -> DataFrame:
    """Return the preimages, with the prefix `old_` in their column names."""
    old = rows.filter(F.col("kind") == PREIMAGE)
    return old.select(*(F.col(name).alias(f"old_{name}") for name in ("commit", "ordinal", *cells)))


def _same_position() -> Column:
    return (F.col("commit") == F.col("old_commit")) & (F.col("ordinal") == F.col("old_ordinal"))


def newest_sent(large: Iterable[ShownColumn], newest_first: WindowSpec) -> list[Column]:
    """Return the newest value that was sent of each column, over all rows of a key."""
    sends = ~F.col("kind").isin(*REMOVALS)
    return [
        F.first(F.when(sends & ~is_unchanged(column), F.struct(*column.cells)), ignorenulls=True)
        .over(newest_first.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing))
        .alias(f"sent{column.attnum}")
        for column in large
    ]


def sent_values(large: Iterable[ShownColumn]) -> dict[str, Column]:
    """Return the values that `newest_sent` found, by cell. A value that was never sent fails the query."""
    found = {column: F.coalesce(F.col(f"sent{column.attnum}"), _missing(column)) for column in large}
    return {cell: value.getField(cell) for column, value in found.items() for cell in column.cells}


def carried_rows(rows: DataFrame, shape: Shape, large: tuple[ShownColumn, ...]) -> DataFrame:
    """Return the carried rows for the updates among these rows that change the key and have unchanged TOAST values.

    Each row has the values that one earlier change sent under an older key, and lists all other columns as unchanged.
    """
    updates = rows.filter((F.col("kind") == POSTIMAGE) & F.col("unchanged").isNotNull())
    moves = updates.join(_old_rows(rows, shape.key_cells), _same_position()).filter(~same_key(shape, "", "old_"))
    of_keys = _numbered(rows, moves, shape)
    steps = of_keys.select("commit", "ordinal", "kind", "number", "unchanged").repartition(1)
    found = steps.mapInArrow(_carrying(tuple(column.attnum for column in large)), _CARRIES_DDL)
    values = [cell for column in large for cell in column.cells]
    sent = of_keys.filter(F.col("kind") != PREIMAGE).select(
        F.col("commit").alias("from_commit"), F.col("ordinal").alias("from_ordinal"), "number", *values
    )
    return (
        moves.select("commit", "ordinal", *shape.key_cells)
        .join(found, ["commit", "ordinal"])
        .join(sent, list(_FROM))
        .select("commit", "ordinal", F.lit(CARRIED).alias("kind"), "unchanged", *shape.key_cells, *values)
    )


def _carrying(attnums: tuple[int, ...]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the search for carried rows as a task of Spark."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        steps = list(batches)
        if steps:
            yield from _carries(pa.Table.from_batches(steps), attnums).to_batches()

    return task


def _numbered(rows: DataFrame, moves: DataFrame, shape: Shape) -> DataFrame:
    """Return all changes of the keys of such updates, with a number for each key.

    The set of keys is closed: all keys in a chain of such updates belong to it. The numbers follow the order of the
    keys, so they are the same when Spark retries a task.
    """
    new, old = (
        F.struct(*(F.col(f"{of}{cell}").alias(f"{ITS}{cell}") for cell in shape.key_cells)) for of in ("", "old_")
    )
    keys = moves.select(F.explode(F.array(new, old)).alias("key")).select("key.*").dropDuplicates()
    ordered = Window.partitionBy(F.lit(0)).orderBy(*(f"{ITS}{cell}" for cell in shape.key_cells))
    return rows.join(keys.withColumn("number", F.row_number().over(ordered).cast("long")), same_key(shape))


def from_folded(incomplete: pa.Table, folded: DataFrame, shape: Shape) -> DataFrame:
    """Fill the values of incomplete rows from the folded rows that have them."""
    unsent = [column for column in shape.columns if f"{FOLDED}{column.attnum}" in incomplete.column_names]
    kinds = {cell: folded.schema[cell].dataType for cell in shape.cells}
    kinds |= {f"{ITS}{cell}": kinds[cell] for cell in shape.key_cells}
    kinds |= {f"{FOLDED}{column.attnum}": spark_types.BooleanType() for column in unsent}
    schema = spark_types.StructType([spark_types.StructField(name, kind) for name, kind in kinds.items()])
    rows = folded.sparkSession.createDataFrame(incomplete, schema)
    keys = rows.select(*(f"{ITS}{cell}" for cell in shape.key_cells))
    found = folded.join(F.broadcast(keys), same_key(shape), "left_semi")
    needed = (*shape.key_cells, *(cell for column in unsent for cell in column.cells))
    found = found.select(F.lit(True).alias("found"), *(F.col(cell).alias(f"old_{cell}") for cell in needed))
    both = rows.join(F.broadcast(found), same_key(shape, "old_"), "left")
    values = {cell: _of_folded(column, cell) for column in unsent for cell in column.cells}
    return both.select(*(values.get(cell, F.col(cell)).alias(cell) for cell in shape.cells))


def _of_folded(column: ShownColumn, cell: str) -> Column:
    value = F.when(F.col("found").isNull(), _missing(column)).otherwise(F.col(f"old_{cell}"))
    return F.when(F.col(f"{FOLDED}{column.attnum}"), value).otherwise(F.col(cell))
