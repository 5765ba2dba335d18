"""The difference of a table between two positions: the rows that are in one of the two states and not in the other.

Contents are compared exactly, with their number of occurrences, and by PostgreSQL's text where there is a text
fallback. With a key, a removed and an added row with the same key are an update. A row that changed in between and has
the same contents in both states is not part of the difference.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from tidemark.lake.columns import CHANGE_TYPE
from tidemark.lake.rows import DELETED, INSERTED, POSTIMAGE, PREIMAGE
from tidemark.reads.changes import celled
from tidemark.reads.contents import balances, repeated
from tidemark.reads.shape import ITS, MANY, META, Shape, same_key
from tidemark.reads.unchanged import keys_from_preimages, may_be_unchanged


def difference(early: DataFrame, late: DataFrame, changes: DataFrame | None, shape: Shape) -> DataFrame:
    """Return the net change from one state to the other with Delta's change types.

    `changes` are all changes in between, if they are available. With a key, rows are ordered by it.
    """
    touched = _touched(changes, shape) if changes is not None and shape.key else None
    before, after = (_among(celled(rows, shape, {}), touched, shape) for rows in (early, late))
    rows = net(before, after, shape)
    if shape.key:
        rows = rows.orderBy(*shape.key_cells, F.col("kind").isin(DELETED, PREIMAGE).desc())
    return rows.select(*shape.cells, "kind").toDF(*shape.names, CHANGE_TYPE)


def net(before: DataFrame, after: DataFrame, shape: Shape) -> DataFrame:
    """Return the rows that are in one of two sets and not in the other, by cells, with their `kind`."""
    rows = before.withColumn("kind", F.lit(DELETED)).unionByName(after.withColumn("kind", F.lit(INSERTED)))
    gone = F.col("balance") < 0
    found = balances(rows, shape).select(*shape.cells, gone.alias("gone"), F.abs("balance").alias("balance"))
    kind = F.when(F.col("gone"), DELETED).otherwise(INSERTED)
    if not shape.key:
        return repeated(found).select(*shape.cells, kind.alias("kind"))
    of_key = Window.partitionBy(*shape.key_cells)
    both = F.bool_or("gone").over(of_key) & F.bool_or(~F.col("gone")).over(of_key)
    updated = F.when(F.col("gone"), PREIMAGE).otherwise(POSTIMAGE)
    return found.select(*shape.cells, F.when(both, updated).otherwise(kind).alias("kind"))


def _touched(changes: DataFrame, shape: Shape) -> DataFrame | None:
    """Return the distinct changed keys, or None if there are too many or a TRUNCATE changed all."""
    rows = celled(changes, shape, META)
    count, truncates = rows.agg(F.count("*"), F.count("truncates")).collect()[0]
    if truncates or count > MANY:
        return None
    large, _ = may_be_unchanged(rows, shape)
    keys = keys_from_preimages(rows, large).select(*(F.col(cell).alias(f"{ITS}{cell}") for cell in shape.key_cells))
    return F.broadcast(keys.distinct())


def _among(rows: DataFrame, touched: DataFrame | None, shape: Shape) -> DataFrame:
    """Return the rows that have one of these keys, which are in columns `its_…`."""
    if touched is None:
        return rows
    return rows.join(touched, same_key(shape), "left_semi")
