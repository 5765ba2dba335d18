"""What became of a table between two positions: the rows that are in one of its two states and not in the other.

Contents are compared exactly, as often as they are there, and by PostgreSQL's text where a value has no twin. With a
key, what went and what came under the same one is an update. What changed in between and is as it was is not shown.
"""

from __future__ import annotations

from functools import reduce
from operator import and_

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from tidemark.lake.columns import CHANGE_TYPE
from tidemark.lake.rows import DELETED, INSERTED, POSTIMAGE, PREIMAGE
from tidemark.reads.changes import celled
from tidemark.reads.contents import balances, may_be_marked, repeated
from tidemark.reads.loans import with_whole_keys
from tidemark.reads.shape import MANY, META, Shape


def difference(early: DataFrame, late: DataFrame, changes: DataFrame | None, shape: Shape) -> DataFrame:
    """The net change from one state to the other, in Delta's words; `changes` are all there were in between, if known.

    Rows are in the order of the key.
    """
    touched = _touched(changes, shape) if changes is not None and shape.key else None
    before, after = (_among(celled(rows, shape, {}), touched, shape) for rows in (early, late))
    told = net(before, after, shape)
    if shape.key:
        told = told.orderBy(*shape.key_cells, F.col("kind").isin(DELETED, PREIMAGE).desc())
    return told.select(*shape.cells, "kind").toDF(*shape.names, CHANGE_TYPE)


def net(before: DataFrame, after: DataFrame, shape: Shape) -> DataFrame:
    """What is in one of two sets of rows and not in the other, by cells, with its `kind`."""
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
    """The keys that changed, each once, if they are few and do not stand for all: a truncate changes every one."""
    rows = celled(changes, shape, META)
    count, truncates = rows.agg(F.count("*"), F.count("truncates")).collect()[0]
    if truncates or count > MANY:
        return None
    large, _ = may_be_marked(rows, shape)
    keys = with_whole_keys(rows, large).select(*(F.col(cell).alias(f"its_{cell}") for cell in shape.key_cells))
    return F.broadcast(keys.distinct())


def _among(rows: DataFrame, touched: DataFrame | None, shape: Shape) -> DataFrame:
    """The rows whose keys are among these, which are called `its_…`."""
    if touched is None:
        return rows
    same = reduce(and_, (F.col(cell).eqNullSafe(F.col(f"its_{cell}")) for cell in shape.key_cells))
    return rows.join(touched, same, "left_semi")
