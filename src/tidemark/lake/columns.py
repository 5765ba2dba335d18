"""How the columns of a table are kept in its Delta tables.

A stored column belongs to one attnum and one type for ever. Its name is the one the column had when it was first seen,
with `~attnum` after it where that name is taken: names that differ by case only, a column dropped and added again, a
column whose type was widened. So a file is never reinterpreted, whatever becomes of the table. Beside a column that has
met a value without a twin stands `name~text` with PostgreSQL's own text of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidemark.schema.table import Column, Generated
from tidemark.values.types import Types, decoding_of

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
ORDINAL, XID, UNCHANGED, TRUNCATE = "_ordinal", "_xid", "_unchanged", "_truncate"

# What every change says besides the row. `_unchanged` names, by attnum, the columns that were not sent because they are
# large and did not change, as `,3,7,`; `_truncate` has a truncate's options and is null for all else.
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
    """A column as a table has it now, and the Arrow type of its values."""

    attnum: int
    name: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column of a Delta table. `text` says that it holds what another one of this attnum has no twin for."""

    name: str
    attnum: int
    type: pa.DataType
    text: bool = False

    def field(self) -> pa.Field:
        """As Delta keeps it, with the attnum as the Parquet field id; a companion has none of its own."""
        metadata = {_ATTNUM: str(self.attnum).encode()}
        metadata |= {_TEXT: b"1"} if self.text else {b"PARQUET:field_id": str(self.attnum).encode()}
        return pa.field(self.name, self.type, metadata=metadata)

    def companion(self) -> StoredColumn:
        """The column beside it for values without a twin."""
        return StoredColumn(self.name + TEXT_SUFFIX, self.attnum, pa.string(), text=True)


def wanted_columns(columns: Iterable[Column], types: Types) -> tuple[WantedColumn, ...]:
    """The columns of a table that are kept, with their types. What is computed when it is read is not stored."""
    return tuple(
        WantedColumn(column.attnum, column.name, decoding_of(column.type.oid, column.typmod, types).arrow)
        for column in columns
        if column.generated is not Generated.VIRTUAL
    )


def stored_columns(schema: pa.Schema) -> tuple[StoredColumn, ...]:
    """The columns of a Delta table that are the source's."""
    return tuple(
        StoredColumn(field.name, int(field.metadata[_ATTNUM]), field.type, _TEXT in field.metadata)
        for field in schema
        if field.metadata and _ATTNUM in field.metadata
    )


def arranged(stored: Sequence[StoredColumn], wanted: Iterable[WantedColumn]) -> Mapping[int, StoredColumn]:
    """For each wanted column, by attnum, the one it is kept in: one that is there, or a new one."""
    there = {(column.attnum, column.type): column for column in stored if not column.text}
    homes = [column for column in stored if not column.text]
    taken = {each.name.lower() for column in homes for each in (column, column.companion())} | set(OURS.names)
    kept: dict[int, StoredColumn] = {}
    for column in wanted:
        found = there.get((column.attnum, column.type))
        if found is None:
            found = StoredColumn(free_name(column.name, column.attnum, taken), column.attnum, column.type)
        taken |= {found.name.lower(), found.companion().name.lower()}
        kept[column.attnum] = found
    return kept


def free_name(name: str, attnum: int, taken: set[str]) -> str:
    """A column's name, made another where it or its companion's is taken; Delta and Spark do not tell case apart."""
    candidates = [name, *(f"{name}~{attnum}{'.' * bool(n)}{n or ''}" for n in range(1600))]
    return next(each for each in candidates if taken.isdisjoint({each.lower(), (each + TEXT_SUFFIX).lower()}))
