"""A partitioned table: its partitions one below the other, each column under the root's name for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types

from tidemark.decode.types import Types, decoding_of
from tidemark.lake.columns import TEXT_SUFFIX
from tidemark.query.changes import quoted
from tidemark.query.shown import shown_names
from tidemark.schema.fingerprint import Fingerprint
from tidemark.spark.types import spark_type


def together(
    spark: SparkSession, root: Fingerprint, parts: Sequence[tuple[Fingerprint, DataFrame]], version_num: int
) -> DataFrame:
    """The union of partitions, whose columns are the root's, perhaps in another order and with other attnums."""
    if not parts:
        return _empty(spark, root, version_num)
    names = named(root, version_num)
    frames = [_renamed(frame, named(part, version_num), names) for part, frame in parts]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def named(table: Fingerprint, version_num: int) -> dict[str, str]:
    """For each column, by its own name, its name for readers."""
    return {column.name: name for column, name in shown_names(table.columns, version_num)}


def _renamed(frame: DataFrame, own: dict[str, str], names: dict[str, str]) -> DataFrame:
    """The root's columns in its order, with the texts beside them."""
    there = set(frame.columns)
    chosen: dict[str, str] = {}
    for source, shown in names.items():
        for suffix in ("", TEXT_SUFFIX):
            if own[source] + suffix in there:
                chosen[own[source] + suffix] = shown + suffix
    picked = frame.select(*(quoted(name) for name in chosen))
    return picked.toDF(*chosen.values())


def _empty(spark: SparkSession, root: Fingerprint, version_num: int) -> DataFrame:
    known = {column.type.oid: column.type for column in root.columns}
    types = Types(known, version_num)
    fields = [
        spark_types.StructField(name, spark_type(decoding_of(column.type.oid, column.typmod, types).arrow))
        for column, name in shown_names(root.columns, version_num)
    ]
    return spark.createDataFrame([], spark_types.StructType(fields))
