"""The union of a table and its child tables, with the column names of the table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types

from tidemark.errors import NotAnswerable
from tidemark.lake.columns import TEXT_SUFFIX
from tidemark.quoting import backticked
from tidemark.reads.equalities import Equalities
from tidemark.reads.shown import shown_names
from tidemark.schema.fingerprint import Fingerprint
from tidemark.spark.types import spark_type
from tidemark.values.types import Types, decoding_of


def together(
    spark: SparkSession, root: Fingerprint, parts: Sequence[tuple[Fingerprint, DataFrame]], version_num: int
) -> DataFrame:
    """Return the union of tables that have the root's columns by name, in any order, with other attnums or columns."""
    if not parts:
        return _empty(spark, root, version_num)
    frames = [_renamed(frame, part, root, version_num) for part, frame in parts]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def shared_equalities(equalities: Equalities, root: Fingerprint, part: Fingerprint, version_num: int) -> Equalities:
    """Return the equalities of a query of the root that apply to a part; none unless the column names are the same."""
    names = _named(root, version_num)
    if not names.items() <= _named(part, version_num).items():
        return {}
    shown = {name.lower() for name in names.values()}
    return {column: value for column, value in equalities.items() if column in shown}


def _named(table: Fingerprint, version_num: int) -> dict[str, str]:
    """Map the name of each column at the source to its name for readers."""
    return {column.name: name for column, name in shown_names(table.columns, version_num)}


def matched(root: Fingerprint, part: Fingerprint, version_num: int) -> dict[str, str]:
    """Map the columns of a part that the root has, in the root's order, to those of the root, by names for readers."""
    own, found = _named(part, version_num), dict[str, str]()
    for source, shown in _named(root, version_num).items():
        if source not in own:
            raise NotAnswerable(
                f"{root.qualified} cannot be read with {part.qualified}, whose column {source} is "
                "generated and not replicated",
                f"Read each table alone: ONLY {root.qualified}.",
            )
        found[own[source]] = shown
    return found


def _renamed(frame: DataFrame, part: Fingerprint, root: Fingerprint, version_num: int) -> DataFrame:
    """Select the root's columns in its order, with their text fallbacks."""
    there = set(frame.columns)
    chosen = {
        own + suffix: shown + suffix
        for own, shown in matched(root, part, version_num).items()
        for suffix in ("", TEXT_SUFFIX)
        if own + suffix in there
    }
    picked = frame.select(*(backticked(name) for name in chosen))
    return picked.toDF(*chosen.values())


def _empty(spark: SparkSession, root: Fingerprint, version_num: int) -> DataFrame:
    known = {column.type.oid: column.type for column in root.columns}
    types = Types(known, version_num)
    fields = [
        spark_types.StructField(name, spark_type(decoding_of(column.type.oid, column.typmod, types).arrow))
        for column, name in shown_names(root.columns, version_num)
    ]
    return spark.createDataFrame([], spark_types.StructType(fields))
