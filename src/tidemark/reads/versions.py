"""The versions of a table visible at a boundary: files that need no filter, files filtered by row, and files left out.

Every commit up to the boundary's floor is visible. By their statistics, a file of current rows that all begin at or
below the floor needs no filter, and a file of versions that all end there is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark_types

from tidemark.clock import Boundary
from tidemark.lake.versions import BEGIN_LSN, END_LSN, INTERVAL, VersionFile, Versions
from tidemark.quoting import backticked
from tidemark.reads.changes import READING, plain_homes, shown_cells
from tidemark.reads.equalities import Equalities, Literal, LiteralKind
from tidemark.reads.places import PLACE
from tidemark.reads.shape import Base
from tidemark.reads.shown import ShownTable
from tidemark.reads.visible import spark_sees
from tidemark.spark.types import spark_type
from tidemark.values.hashes import spark_hash

BEGIN, END = "begin", "end"
_INTERVAL = (f"{BEGIN_LSN} as {BEGIN}", f"{END_LSN} as {END}")


@dataclass(frozen=True, slots=True)
class SelectedFiles:
    """The files that a read needs: `clean` files need no filter, the rows of `asked` files are filtered."""

    clean: tuple[VersionFile, ...]
    asked: tuple[VersionFile, ...]


def chosen(files: Sequence[VersionFile], boundary: Boundary) -> SelectedFiles:
    """Choose the files by their statistics."""
    below = boundary.floor
    clean = tuple(file for file in files if file.live and file.greatest_begin <= below)
    asked = tuple(
        file
        for file in files
        if file.least_begin <= boundary.lsn
        and (file.greatest_begin > below if file.greatest_end is None else file.greatest_end > below)
    )
    return SelectedFiles(clean, asked)


Key = tuple[tuple[pa.DataType, int | str], ...]


def key_of_equalities(versions: Versions, table: ShownTable, equalities: Equalities) -> Key | None:
    """Return the key of the rows that satisfy the equalities, if these determine every column of the key."""
    by_attnum = {column.attnum: column for column in table.columns}
    homes = {column.attnum: column.type for column in versions.stored if not column.text}
    key: list[tuple[pa.DataType, int | str]] = []
    for attnum in table.key:
        literal, kind = equalities.get(by_attnum[attnum].name.lower()), homes.get(attnum)
        value = literal_value(literal, kind) if literal is not None and kind == by_attnum[attnum].type else None
        if value is None or kind is None:
            return None
        key.append((kind, value))
    return tuple(key) or None


def files_with(key: Key, versions: Versions) -> tuple[VersionFile, ...]:
    """Return the files that may contain the row with a key: those of its bucket."""
    hashed = spark_hash(key)
    return tuple(file for file in versions.files if file.bucket == hashed % file.buckets)


def literal_value(literal: Literal, kind: pa.DataType) -> int | str | None:
    """Return the value of a literal in a column of this type, or None if it is not certain."""
    if literal.kind is LiteralKind.INTEGER and pa.types.is_signed_integer(kind):
        value = int(literal.text)
        return value if -(1 << (kind.bit_width - 1)) <= value < 1 << (kind.bit_width - 1) else None
    return literal.text[1:-1] if literal.kind is LiteralKind.STRING and pa.types.is_string(kind) else None


def base_of(
    spark: SparkSession,
    table: ShownTable,
    versions: Versions,
    boundary: Boundary,
    files: Sequence[VersionFile],
    *,
    placed: bool = False,
) -> Base:
    """Return the rows of these files that are visible at the boundary.

    With `placed`, the rows also have their places; no file may need a filter then, and there must be one.
    """
    found = chosen(files, boundary)
    cells = table.shape.cells
    frames = []
    taken_away = None
    if placed:
        return Base(version_rows(spark, table, versions, found.clean, extra=PLACE))
    if found.clean or not found.asked:
        frames.append(version_rows(spark, table, versions, found.clean).select(*cells))
    if found.asked:
        asked = version_rows(spark, table, versions, found.asked)
        begun, ended = (spark_sees(boundary, F.col(name)) for name in (BEGIN, END))
        not_ended = F.col(END).isNull() | ~ended
        frames.append(asked.where(begun & not_ended).select(*cells))
        if not table.key and boundary.excluded:
            taken_away = asked.where(~begun & F.col(END).isNotNull() & ended).select(*cells)
    rows = frames[0] if len(frames) == 1 else frames[0].unionAll(frames[1])
    return Base(rows, taken_away)


def version_rows(
    spark: SparkSession,
    table: ShownTable,
    versions: Versions,
    files: Sequence[VersionFile],
    *,
    extra: Sequence[str] = _INTERVAL,
) -> DataFrame:
    """Return the rows of files by cells, with `begin` and `end`, or with other expressions if there are files."""
    cells = table.shape.cells
    if not files:
        fields = [(cell, kind) for cell, (kind, _) in zip(cells, shown_cells(table, ()), strict=True)]
        fields += [(name, spark_type(field.type)) for name, field in zip((BEGIN, END), INTERVAL, strict=True)]
        schema = spark_types.StructType([spark_types.StructField(name, kind) for name, kind in fields])
        return spark.createDataFrame([], schema)
    stored = {column.name: column for column in versions.stored}
    fields = [(name, spark_type(column.type)) for name, column in stored.items()]
    fields += [(field.name, spark_type(field.type)) for field in INTERVAL]
    schema = spark_types.StructType([spark_types.StructField(name, kind) for name, kind in fields])
    rows = spark.read.options(**READING).schema(schema).parquet(*(versions.path(file) for file in files))
    homes = plain_homes(table, versions.stored)
    if homes is not None:  # expressions as text need one call to the JVM instead of several per column
        return rows.selectExpr(*(f"{backticked(h)} as {c}" for h, c in zip(homes, cells, strict=True)), *extra)
    values = [value.alias(cell) for cell, (_, value) in zip(cells, shown_cells(table, versions.stored), strict=True)]
    return rows.select(*values, *(F.expr(text) for text in extra))
