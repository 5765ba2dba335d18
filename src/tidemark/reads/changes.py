"""Reading the change files of a table as one DataFrame, whichever columns each file has.

Files are grouped by their columns. A column that a file does not have, because its rows are older than the column,
reads as the value that PostgreSQL stores for such rows (`attmissingval`). A value of another stored type is converted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import groupby

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark_types

from tidemark.lake.changes import ChangeFile
from tidemark.lake.columns import OURS, StoredColumn
from tidemark.quoting import backticked
from tidemark.reads.shape import Shape
from tidemark.reads.shown import Shown, ShownTable
from tidemark.reads.tail import change_schema
from tidemark.spark.types import spark_type

# Options of a read override those of the session. A missing or unreadable file must cause an error.
READING = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "recursiveFileLookup": "false",
}


def file_changes(
    spark: SparkSession, table: ShownTable, files: Iterable[ChangeFile], stored: Sequence[StoredColumn]
) -> DataFrame | None:
    """Return the rows of these files, whose Delta table has these stored columns; None if there are no files."""
    ordered = sorted(files, key=lambda file: sorted(file.columns))
    groups = [(columns, list(group)) for columns, group in groupby(ordered, key=lambda file: file.columns)]
    frames = [
        _read(spark, table, [each for each in stored if each.name in columns], [file.path for file in group])
        for columns, group in groups
    ]
    return reduce(DataFrame.unionByName, frames) if frames else None


def no_changes(spark: SparkSession, table: ShownTable) -> DataFrame:
    """Return an empty DataFrame with the columns of changes."""
    return spark.createDataFrame([], change_schema(table))


def celled(rows: DataFrame, shape: Shape, others: Mapping[str, str]) -> DataFrame:
    """Rename a table's columns to cells, and `others` as given. Text fallbacks that the rows do not have are null."""
    there = set(rows.columns)
    cells = [
        (F.col(backticked(name)) if name in there else F.lit(None).cast("string")).alias(cell)
        for name, cell in zip(shape.names, shape.cells, strict=True)
    ]
    return rows.select(*cells, *(F.col(name).alias(other) for name, other in others.items()))


def _read(spark: SparkSession, table: ShownTable, stored: Iterable[StoredColumn], paths: list[str]) -> DataFrame:
    shown = {column.attnum for column in table.columns}
    there = [each for each in stored if each.attnum in shown]
    fields = [spark_types.StructField(each.name, spark_type(each.type)) for each in there]
    fields += [spark_types.StructField(field.name, spark_type(field.type)) for field in OURS]
    rows = spark.read.options(**READING).schema(spark_types.StructType(fields)).parquet(*paths)
    values = (value.alias(name) for name, (_, value) in zip(table.shape.names, shown_cells(table, there), strict=True))
    return rows.select(*values, *OURS.names)


def shown_cells(table: ShownTable, there: Sequence[StoredColumn]) -> list[tuple[spark_types.DataType, Column]]:
    """Return the type of each cell of a table, and its value in rows that have only these stored columns."""
    homes = {each.attnum: each for each in reversed(there) if not each.text}
    names = {each.name for each in there}
    cells: list[tuple[spark_types.DataType, Column]] = []
    for column in table.columns:
        home = homes.get(column.attnum)
        beside = home.fallback_column().name if home is not None else ""
        value, text = _missing(column) if home is None else _stored(home, column.type, beside in names)
        cells.append((spark_type(column.type), value))
        if column.fallback:
            cells.append((spark_types.StringType(), text))
    return cells


def plain_homes(table: ShownTable, there: Sequence[StoredColumn]) -> list[str] | None:
    """Return the stored column of each cell, or None if the value of any cell needs a conversion or a default."""
    homes = {(each.attnum, each.text): each for each in reversed(there)}
    found: list[str] = []
    for column in table.columns:
        kinds = {False: column.type, True: pa.string()} if column.fallback else {False: column.type}
        for text, kind in kinds.items():
            home = homes.get((column.attnum, text))
            if home is None or home.type != kind:
                return None
            found.append(home.name)
    return found


def _missing(column: Shown) -> tuple[Column, Column]:
    """Return the value of a column in rows older than the column, and its text fallback."""
    missing = column.missing
    fallback = None if missing is None or missing.fallback is None else missing.fallback[0].as_py()
    return literal(None if missing is None else missing.array[0], column.type), F.lit(fallback).cast("string")


def _stored(home: StoredColumn, kind: pa.DataType, has_text: bool) -> tuple[Column, Column]:
    """Return the value of a stored column, converted to this type, and its text fallback.

    A read of the past uses the type that the column had then, although its rows may have been folded since under a
    later type. Values visible to such a read fit the earlier type or have a text; others become null.
    """
    value = F.col(backticked(home.name))
    text = F.col(backticked(home.fallback_column().name)) if has_text else F.lit(None).cast("string")
    if home.type == kind:
        return value, text
    if pa.types.is_string(kind):  # in ANSI mode Spark prints no exponents, like PostgreSQL
        return (F.coalesce(text, value.cast("string")) if has_text else value.cast("string")), text
    narrowed = value.try_cast(spark_type(kind))
    return narrowed, F.when(narrowed.isNull(), value) if pa.types.is_string(home.type) else text


def literal(value: pa.Scalar | None, kind: pa.DataType) -> Column:
    """Convert an Arrow value to a Spark literal. Python dates are avoided, because Spark reads them as Julian dates."""
    target = spark_type(kind)
    if value is None or not value.is_valid:
        return F.lit(None).cast(target)
    if pa.types.is_list(kind):
        return F.array(*(literal(each, kind.value_type) for each in value.values)).cast(target)
    if pa.types.is_date(kind):
        return F.date_from_unix_date(F.lit(value.cast(pa.int32()).as_py()))
    if pa.types.is_timestamp(kind):
        return F.timestamp_micros(F.lit(value.cast(pa.int64()).as_py())).cast(target)
    plain = value.as_py()
    return F.lit(bytearray(plain) if isinstance(plain, bytes) else plain).cast(target)
