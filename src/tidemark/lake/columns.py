"""The mapping from the columns of a table to the columns of its Delta tables.

A stored column belongs permanently to one attnum and one type. It is named after the column when the column was first
stored, with `~attnum` appended if that name is taken: names that differ only in case, a column that was dropped and
added again, a column whose type was widened. Files are therefore never reinterpreted when the table is altered. A
column that has contained a value that its type cannot represent has a text fallback, `name~text`, which contains
PostgreSQL's text of such values.

Stored values are converted to another type for a column whose type was altered without a rewrite of the table.
PostgreSQL does not rewrite the rows when a numeric gets more digits before the decimal point, or loses its limits. If
the new type is stored as text, the stored decimals are converted to it, with all digits of their scale and without an
exponent.

The layout of a relation maps the columns in the stream to stored columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.relation import Relation, columns_of
from tidemark.schema.table import Column, Generated
from tidemark.values.cells import DecodedColumn as Values
from tidemark.values.output import column_strings
from tidemark.values.types import Types, decoding_of

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
ORDINAL, XID, UNCHANGED, TRUNCATE = "_ordinal", "_xid", "_unchanged", "_truncate"

# The columns of every change besides the row. `_unchanged` lists the attnums of unchanged TOAST values as `,3,7,`;
# `_truncate` contains the options of a TRUNCATE and is null for other changes.
OURS = pa.schema(
    [
        pa.field(CHANGE_TYPE, pa.string()),
        pa.field(COMMIT_VERSION, pa.int64()),
        pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", "UTC")),
        pa.field(ORDINAL, pa.int64()),
        pa.field(XID, pa.int64()),
        pa.field(UNCHANGED, pa.string()),
        pa.field(TRUNCATE, pa.int32()),
    ]
)
TEXT_SUFFIX = "~text"
_ATTNUM, _TEXT = b"tidemark.attnum", b"tidemark.text"


@dataclass(frozen=True, slots=True)
class WantedColumn:
    """A column of the current table definition, and the Arrow type of its values."""

    attnum: int
    name: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column of a Delta table. `text` marks the text fallback of the column with the same attnum."""

    name: str
    attnum: int
    type: pa.DataType
    text: bool = False

    def field(self) -> pa.Field:
        """Return the Arrow field. The attnum is also its Parquet field ID; a text fallback has no field ID."""
        metadata = {_ATTNUM: str(self.attnum).encode()}
        metadata |= {_TEXT: b"1"} if self.text else {b"PARQUET:field_id": str(self.attnum).encode()}
        return pa.field(self.name, self.type, metadata=metadata)

    def fallback_column(self) -> StoredColumn:
        """Return the text fallback of this column."""
        return StoredColumn(self.name + TEXT_SUFFIX, self.attnum, pa.string(), text=True)


def wanted_columns(columns: Iterable[Column], types: Types) -> tuple[WantedColumn, ...]:
    """Return the columns of a table that are stored, with their types. Virtual generated columns are not stored."""
    return tuple(
        WantedColumn(column.attnum, column.name, decoding_of(column.type.oid, column.typmod, types).arrow)
        for column in columns
        if column.generated is not Generated.VIRTUAL
    )


def stored_columns(schema: pa.Schema) -> tuple[StoredColumn, ...]:
    """Return the columns of a Delta table that hold columns of the source."""
    return tuple(
        StoredColumn(field.name, int(field.metadata[_ATTNUM]), field.type, _TEXT in field.metadata)
        for field in schema
        if field.metadata and _ATTNUM in field.metadata
    )


def arranged(stored: Sequence[StoredColumn], wanted: Iterable[WantedColumn]) -> Mapping[int, StoredColumn]:
    """Map the attnum of each wanted column to its stored column: an existing one of the same type, or a new one."""
    there = {(column.attnum, column.type): column for column in stored if not column.text}
    homes = [column for column in stored if not column.text]
    taken = {each.name.lower() for column in homes for each in (column, column.fallback_column())} | set(OURS.names)
    kept: dict[int, StoredColumn] = {}
    for column in wanted:
        found = there.get((column.attnum, column.type))
        if found is None:
            found = StoredColumn(free_name(column.name, column.attnum, taken), column.attnum, column.type)
        taken |= {found.name.lower(), found.fallback_column().name.lower()}
        kept[column.attnum] = found
    return kept


def free_name(name: str, attnum: int, taken: set[str]) -> str:
    """Return a name that is free for a column and its text fallback. Delta and Spark ignore the case of names."""
    candidates = [name, *(f"{name}~{attnum}{'.' * bool(n)}{n or ''}" for n in range(1600))]
    return next(each for each in candidates if taken.isdisjoint({each.lower(), (each + TEXT_SUFFIX).lower()}))


def converted(values: Values, kind: pa.DataType) -> Values:
    """Convert stored values to this type. If it is text, the text fallback of a decimal is merged into the values."""
    there = values.array.type
    if there == kind:
        return values
    if pa.types.is_decimal(there) and pa.types.is_string(kind):
        return Values(column_strings(values))
    return Values(values.array.cast(kind), values.fallback)


@dataclass(frozen=True, slots=True)
class Layout:
    """The path of the changes of a relation with one description, and the stored column for each of its columns."""

    oid: int
    path: str
    columns: tuple[StoredColumn, ...]


def layout_of(
    relation: Relation, fingerprint: Fingerprint, path: str, stored: Sequence[StoredColumn], types: Types
) -> Layout:
    """Return the layout of a relation's changes, which reuses the columns that are already stored."""
    columns = columns_of(relation, fingerprint) or ()
    kept: Mapping[int, StoredColumn] = arranged(stored, wanted_columns(columns, types))
    return Layout(relation.oid, path, tuple(kept[column.attnum] for column in columns))
