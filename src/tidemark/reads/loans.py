"""Resolution of unchanged TOAST values in Spark: key columns from the preimage, others from earlier keys of the row.

An unchanged TOAST value is found by the row's key, except where the update also changed the key. For such an update, a
row is inserted just before it under the new key, with the values that the row had under its old key and no others. An
earlier row with the new key is therefore never used as a source. In the code, such an inserted row is called `loan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import and_, or_
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from tidemark.lake.rows import POSTIMAGE, PREIMAGE
from tidemark.reads.shape import COPY_AGAIN, NEVER_SENT, RANK_LOAN, RANK_OTHER, REMOVALS, Shape, ShownColumn, is_marked

Sender = tuple[int, int, int]  # a position and the number of the key, because all folded rows have the same position

_FROM = ("from_commit", "from_ordinal", "number")
LOANS_DDL = "commit long, ordinal long, from_commit long, from_ordinal long, number long, marks string"
LOANS = pa.schema([*((name, pa.int64()) for name in ("commit", "ordinal", *_FROM)), ("marks", pa.string())])


def with_whole_keys(rows: DataFrame, large: tuple[ShownColumn, ...]) -> DataFrame:
    """Fill unchanged TOAST values of key columns from the preimage, which PostgreSQL always sends in this case."""
    if not large:
        return rows
    broken = reduce(or_, (is_marked(column) for column in large))
    old = _preimages(rows, tuple(cell for column in large for cell in column.cells))
    mended = {cell: _from_preimage(column, cell) for column in large for cell in column.cells}
    marks = reduce(lambda so_far, c: F.replace(so_far, F.lit(f",{c.attnum},"), F.lit(",")), large, F.col("marks"))
    whole = (mended.get(cell, marks if cell == "marks" else F.col(cell)).alias(cell) for cell in rows.columns)
    return rows.filter(~broken).unionByName(rows.filter(broken).join(old, _same_position("old"), "left").select(*whole))


def _from_preimage(column: ShownColumn, cell: str) -> Column:
    missing = F.raise_error(F.lit(f"key column {column.name}: {NEVER_SENT}\nHint: {COPY_AGAIN}"))
    old = F.when(F.col("old_commit").isNull(), missing).otherwise(F.col(f"old_{cell}"))
    return F.when(is_marked(column), old).otherwise(F.col(cell))


def _preimages(rows: DataFrame, cells: Iterable[str]) -> DataFrame:
    """Return the preimages, with the prefix `old_` in their column names."""
    old = rows.filter(F.col("kind") == PREIMAGE)
    return old.select(*(F.col(name).alias(f"old_{name}") for name in ("commit", "ordinal", *cells)))


def _same_position(other: str) -> Column:
    return (F.col("commit") == F.col(f"{other}_commit")) & (F.col("ordinal") == F.col(f"{other}_ordinal"))


def _same(cells: Iterable[str], other: str) -> Column:
    return reduce(and_, (F.col(cell).eqNullSafe(F.col(f"{other}_{cell}")) for cell in cells))


def loans(rows: DataFrame, shape: Shape, large: tuple[ShownColumn, ...]) -> DataFrame:
    """Return rows to insert under the new key just before each key-changing update that has unchanged TOAST values.

    Each row has the values that one earlier change sent under an older key, and lists all other columns as unchanged.
    """
    updates = rows.filter((F.col("kind") == POSTIMAGE) & F.col("marks").isNotNull())
    both = updates.join(_preimages(rows, shape.key_cells), _same_position("old"))
    moves = both.filter(~_same(shape.key_cells, "old"))
    its = _numbered(rows, moves, shape)
    in_one = its.select("commit", "ordinal", "rank", "kind", "number", "marks").repartition(1)
    steps = in_one.sortWithinPartitions("commit", "ordinal", "rank")
    found = steps.mapInArrow(_replay(tuple(column.attnum for column in large)), LOANS_DDL)
    values = [cell for column in large for cell in column.cells]
    sent = its.filter(F.col("rank") == RANK_OTHER).select(
        F.col("commit").alias("from_commit"), F.col("ordinal").alias("from_ordinal"), "number", *values
    )
    return (
        moves.select("commit", "ordinal", "kind", *shape.key_cells)
        .join(found, ["commit", "ordinal"])
        .join(sent, list(_FROM))
        .select("commit", "ordinal", F.lit(RANK_LOAN).alias("rank"), "kind", "marks", *shape.key_cells, *values)
    )


def _numbered(rows: DataFrame, moves: DataFrame, shape: Shape) -> DataFrame:
    """Return all changes of the keys of such updates, with a number for each key.

    The set of keys is closed: all keys in a chain of such updates belong to it. The numbers follow the order of the
    keys, so they are the same when Spark retries a task.
    """
    its = [f"its_{cell}" for cell in shape.key_cells]
    new, old = (
        F.struct(*(F.col(f"{of}{cell}").alias(f"its_{cell}") for cell in shape.key_cells)) for of in ("", "old_")
    )
    keys = moves.select(F.explode(F.array(new, old)).alias("its")).select("its.*").dropDuplicates()
    numbered = keys.withColumn("number", F.row_number().over(Window.partitionBy(F.lit(0)).orderBy(*its)))
    return rows.join(numbered.withColumn("number", F.col("number").cast("long")), _same(shape.key_cells, "its"))


def _replay(large: tuple[int, ...]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the replay as a task. Nested functions are pickled by value, so workers need pyarrow but not Tidemark."""
    lend = _lender(large)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        steps = (step for batch in batches for step in zip(*(c.to_pylist() for c in batch.columns), strict=True))
        yield pa.RecordBatch.from_pylist([dict(zip(LOANS.names, loan, strict=True)) for loan in lend(steps)], LOANS)

    return task


def _lender(large: tuple[int, ...]) -> Callable[[Iterable[tuple[Any, ...]]], Iterator[tuple[Any, ...]]]:
    """Return a function that tracks which change sent each large value of each key's row.

    It yields one row to insert per sending change for each key-changing update with unchanged TOAST values.
    """

    def lend(steps: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        rows: dict[int, dict[int, Sender]] = {}
        position, old_key, old_row = (-2, -2), -1, dict[int, Sender]()
        for commit, ordinal, _, kind, key, marks in steps:
            here = commit, ordinal
            if kind in REMOVALS:
                position, old_key, old_row = here, key, rows.pop(key, {})
                continue
            before = old_row if position == here else rows.get(key, {})
            marked = {attnum for attnum in large if f",{attnum}," in (marks or "")}
            if not marked <= before.keys():
                raise ValueError(f"commit {commit}, change {ordinal}: {NEVER_SENT}")
            rows[key] = {attnum: before[attnum] if attnum in marked else (*here, key) for attnum in large}
            for sender in {before[n] for n in marked} if position == here and old_key != key else ():
                others = (n for n in large if n not in marked or before[n] != sender)
                yield *here, *sender, "," + "".join(f"{n}," for n in others)

    return lend
