"""The columns of a table for readers at one position. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemark.clock import Lsn
from tidemark.lake.columns import OURS, TEXT_SUFFIX, StoredColumn, free_name
from tidemark.reads.shape import Shape, ShownColumn
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import Span, TableHistory
from tidemark.schema.table import Column, Generated
from tidemark.values.cells import Cells
from tidemark.values.cells import DecodedColumn as Values
from tidemark.values.types import NUMERIC, Types, decimal_limits, decoding_of


@dataclass(frozen=True, slots=True)
class Shown:
    """A column: its name for readers, its type, and its value in rows older than the column.

    If `fallback`, it has a text fallback for values that its type cannot represent.
    """

    name: str
    source_name: str
    attnum: int
    type: pa.DataType
    fallback: bool
    missing: Values | None

    @property
    def text_name(self) -> str:
        """The name of its text fallback."""
        return self.name + TEXT_SUFFIX


@dataclass(frozen=True, slots=True)
class ShownTable:
    """The columns and the key of a table."""

    oid: int
    columns: tuple[Shown, ...]
    key: tuple[int, ...]

    @property
    def shape(self) -> Shape:
        """The same columns as names and cells for Spark plans."""
        columns = tuple(ShownColumn(each.name, each.attnum, each.fallback) for each in self.columns)
        return Shape(columns, self.key)


def shown_table(
    history: TableHistory,
    fingerprint: Fingerprint,
    stored: Sequence[StoredColumn],
    types: Types,
    retired: Sequence[Column] = (),
) -> ShownTable:
    """Return the table with this definition and these stored columns; `retired`, dropped columns, are appended."""
    texts = {each.attnum for each in stored if each.text}
    columns = []
    for column, name in shown_names((*fingerprint.columns, *retired), types.version_num):
        kind = decoding_of(column.type.oid, column.typmod, types).arrow
        missing = missing_value(history.missing(column.attnum), column, types)
        fallback = column.attnum in texts or (missing is not None and missing.fallback is not None)
        if pa.types.is_decimal(kind) and not fallback:
            fallback = _was_unlimited(history, column.attnum)
        fallback = fallback and not pa.types.is_string(kind)
        columns.append(Shown(name, column.name, column.attnum, kind, fallback, missing))
    return ShownTable(fingerprint.oid, tuple(columns), fingerprint.key)


def _was_unlimited(history: TableHistory, attnum: int) -> bool:
    """Return whether a column was ever a numeric that no DECIMAL can hold, which is stored as text, including NaN."""
    columns = (column for event in history.events for column in event.fingerprint.columns if column.attnum == attnum)
    return any(each.type.oid == NUMERIC and decimal_limits(each.typmod) is None for each in columns)


def shape_of(table: Fingerprint, version_num: int, there: Collection[str], fallback: Collection[int] = ()) -> Shape:
    """Return the shape of a table in frames with the columns `there`; those in `fallback` have a text fallback."""
    columns = (
        ShownColumn(name, column.attnum, column.attnum in fallback or name + TEXT_SUFFIX in there)
        for column, name in shown_names(table.columns, version_num)
    )
    return Shape(tuple(columns), table.key)


def is_alike(one: Fingerprint, other: Fingerprint) -> bool:
    """Return whether two definitions of a table have the same columns for readers and the same key."""
    columns = (
        [(column.attnum, column.name, column.type.oid, column.typmod) for column in each.columns]
        for each in (one, other)
    )
    return one.key == other.key and next(columns) == next(columns)


def shown_names(columns: Iterable[Column], version_num: int) -> Iterator[tuple[Column, str]]:
    """Return the columns that are shown, each with its name for readers."""
    taken = set(OURS.names)
    for column in columns:
        if is_streamed(column, version_num):
            name = free_name(column.name, column.attnum, taken)
            taken |= {name.lower(), (name + TEXT_SUFFIX).lower()}
            yield column, name


def retired_columns(history: TableHistory, span: Span, retained: Lsn) -> tuple[Column, ...]:
    """Return the columns dropped since the table's base that reads within the retention period may still need."""
    there = {column.attnum for column in span.fingerprint.columns}
    earlier = [each for each in history.spans() if each.base == span.base and each.begin <= span.begin]
    spans = [each for each in earlier if each.end is None or each.end >= retained]
    latest = {column.attnum: column for each in spans for column in each.fingerprint.columns}
    return tuple(column for attnum, column in sorted(latest.items()) if attnum not in there)


def is_streamed(column: Column, version_num: int) -> bool:
    """Return whether the stream has a column: stored generated columns from PostgreSQL 18 on, virtual ones never."""
    return column.generated is Generated.NO or (column.generated is Generated.STORED and version_num >= 180000)


def missing_value(text: str | None, column: Column, types: Types) -> Values | None:
    """Decode the text of a value to an array with one element."""
    if text is None:
        return None
    raw = np.frombuffer(text.encode(), np.uint8)
    cells = Cells(raw, np.zeros(1, np.int64), np.array([len(raw)], np.int32))
    return decoding_of(column.type.oid, column.typmod, types).decode(cells, False)
