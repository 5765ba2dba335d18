"""A table's changes between two positions as one DataFrame: from files of every age, and from the log's tail.

Files are grouped by the columns they have. What a file has not, because its rows are older than the column, reads as
the value that PostgreSQL keeps for such rows; what is kept in a narrower type is widened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import groupby

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark_types

from tidemark.clock import Boundary
from tidemark.lake.changes import ChangeFile
from tidemark.lake.columns import COMMIT_VERSION, OURS, StoredColumn
from tidemark.reads.shape import Shape
from tidemark.reads.shown import Shown, ShownTable
from tidemark.reads.tail import change_schema
from tidemark.reads.text import quoted
from tidemark.spark.types import spark_type

# A read's own options win over the session's: a file that is missing or unreadable is never read as nothing.
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
    """The rows of these files, whose Delta table has these stored columns; None if there are no files."""
    ordered = sorted(files, key=lambda file: sorted(file.columns))
    groups = [(columns, list(group)) for columns, group in groupby(ordered, key=lambda file: file.columns)]
    frames = [
        _read(spark, table, [each for each in stored if each.name in columns], [file.path for file in group])
        for columns, group in groups
    ]
    return reduce(DataFrame.unionByName, frames) if frames else None


def no_changes(spark: SparkSession, table: ShownTable) -> DataFrame:
    """The same columns, and no row."""
    return spark.createDataFrame([], change_schema(table))


def seen(changes: DataFrame, base: Boundary, boundary: Boundary, files: Sequence[ChangeFile] | None) -> DataFrame:
    """Those that the boundary sees and the base does not; what statistics say of files need not be asked of rows."""
    commit = F.col(COMMIT_VERSION)
    if files is None or any(file.greatest > boundary.lsn for file in files):
        changes = changes.where(commit <= boundary.lsn.value)
    if boundary.excluded:
        changes = changes.where(~commit.isin(sorted(lsn.value for lsn in boundary.excluded)))
    if files is None or any(file.least <= base.lsn for file in files):
        above = commit > base.lsn.value
        changes = changes.where(
            above | commit.isin(sorted(lsn.value for lsn in base.excluded)) if base.excluded else above
        )
    return changes


def celled(rows: DataFrame, shape: Shape, others: Mapping[str, str]) -> DataFrame:
    """A table's columns as cells, and others by other names; a text that is kept nowhere in there is null."""
    there = set(rows.columns)
    cells = [
        (F.col(quoted(name)) if name in there else F.lit(None).cast("string")).alias(cell)
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
    """For each cell of a table its type, and its value in rows that have these stored columns and no others."""
    homes = {each.attnum: each for each in reversed(there) if not each.text}
    names = {each.name for each in there}
    cells: list[tuple[spark_types.DataType, Column]] = []
    for column in table.columns:
        home = homes.get(column.attnum)
        beside = home.companion().name if home is not None else ""
        value, text = _missing(column) if home is None else _stored(home, column.type, beside in names)
        cells.append((spark_type(column.type), value))
        if column.exact:
            cells.append((spark_types.StringType(), text))
    return cells


def plain_homes(table: ShownTable, there: Sequence[StoredColumn]) -> list[str] | None:
    """For each cell of a table the stored column that holds just its value; None if that is not so of all."""
    homes = {(each.attnum, each.text): each for each in reversed(there)}
    found: list[str] = []
    for column in table.columns:
        kinds = {False: column.type, True: pa.string()} if column.exact else {False: column.type}
        for text, kind in kinds.items():
            home = homes.get((column.attnum, text))
            if home is None or home.type != kind:
                return None
            found.append(home.name)
    return found


def _missing(column: Shown) -> tuple[Column, Column]:
    """The value that rows older than a column have, and the text beside it."""
    missing = column.missing
    exact = None if missing is None or missing.exact is None else missing.exact[0].as_py()
    return literal(None if missing is None else missing.array[0], column.type), F.lit(exact).cast("string")


def _stored(home: StoredColumn, kind: pa.DataType, has_text: bool) -> tuple[Column, Column]:
    """A stored column's value as this type has it, and the text beside it.

    A column is read under a type that it had earlier where its rows were folded since: all values that such a read sees
    have a place in the earlier type, and others are cast to null.
    """
    value = F.col(quoted(home.name))
    text = F.col(quoted(home.companion().name)) if has_text else F.lit(None).cast("string")
    if home.type == kind:
        return value, text
    if pa.types.is_string(kind):  # the text that PostgreSQL prints: in ANSI mode Spark writes no exponents
        return (F.coalesce(text, value.cast("string")) if has_text else value.cast("string")), text
    narrowed = value.try_cast(spark_type(kind))
    return narrowed, F.when(narrowed.isNull(), value) if pa.types.is_string(home.type) else text


def literal(value: pa.Scalar | None, kind: pa.DataType) -> Column:
    """A value of Arrow's as one of Spark's. Never by way of Python's dates, which Spark takes for Julian ones."""
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
