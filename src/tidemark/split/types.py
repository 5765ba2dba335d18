"""PostgreSQL's types in a statement: by OID, typmod and collation, and the type of the tree that holds their values."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.errors import Unproven
from tidemark.split import ir
from tidemark.values.types import BY_OID, decimal_limits

BOOL, BYTEA, INT8, INT2, INT4, TEXT, FLOAT4, FLOAT8 = 16, 17, 20, 21, 23, 25, 700, 701
UNKNOWN, BPCHAR, VARCHAR, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC, UUID = 705, 1042, 1043, 1082, 1114, 1184, 1700, 2950
TIME, INTERVAL, JSON, JSONB = 1083, 1186, 114, 3802
DEFAULT_COLLATION = 100

INTEGERS = (INT2, INT4, INT8)
FLOATS = (FLOAT4, FLOAT8)
TEXTS = (TEXT, VARCHAR, BPCHAR)
_PLAIN = {
    BOOL: ir.BOOL,
    INT2: ir.INT2,
    INT4: ir.INT4,
    INT8: ir.INT8,
    FLOAT4: ir.DataType(ir.Kind.FLOAT4),
    FLOAT8: ir.DataType(ir.Kind.FLOAT8),
    TEXT: ir.TEXT,
    VARCHAR: ir.TEXT,
    BPCHAR: ir.TEXT,
    UUID: ir.TEXT,
    BYTEA: ir.DataType(ir.Kind.BINARY),
    DATE: ir.DATE,
    TIMESTAMP: ir.TIMESTAMP,
    TIMESTAMPTZ: ir.TIMESTAMPTZ,
}
# Types that are only passed to the top, as the text that the mirror stores, which no setting reads differently.
_OPAQUE = frozenset({JSON, JSONB, TIME, NUMERIC})
_NAMES = {oid: f"pg_catalog.{BY_OID[oid].name}" for oid in (*_PLAIN, *_OPAQUE)}


@dataclass(frozen=True, slots=True)
class SqlType:
    """A type as PostgreSQL assigns it to an expression."""

    oid: int
    typmod: int = -1
    collation: int = 0

    @property
    def limits(self) -> tuple[int, int] | None:
        """Precision and scale of a numeric that a DECIMAL can hold."""
        return decimal_limits(self.typmod) if self.oid == NUMERIC else None

    @property
    def width(self) -> int | None:
        """The number of characters of a char(n), which pads its values."""
        return self.typmod - 4 if self.oid == BPCHAR and self.typmod >= 5 else None


def stored(type_: SqlType) -> ir.DataType | None:
    """Return the type in which the mirror stores a column, or None if columns of it are not read."""
    if type_.limits is not None:
        return ir.decimal(*type_.limits)
    return ir.TEXT if type_.oid in _OPAQUE else _PLAIN.get(type_.oid)


def is_opaque(type_: SqlType) -> bool:
    """Whether values are only passed on, not computed with."""
    return type_.oid in _OPAQUE and type_.limits is None


def plain(oid: int) -> ir.DataType:
    """Return the type in the tree of a type that is not numeric."""
    if oid not in _PLAIN:
        raise Unproven(f"a value of the type with OID {oid}")
    return _PLAIN[oid]


def array_oid(type_: SqlType) -> int:
    """Return the OID of the array in which values of a type go up."""
    return BY_OID[_carrier(type_)].array_oid


def name_of(type_: SqlType) -> str:
    """Return the name of the type of the elements of that array."""
    return _NAMES[_carrier(type_)]


def _carrier(type_: SqlType) -> int:
    """Return the type of the elements: text for char(n), since libpg_query prints char without length as char(1)."""
    return TEXT if type_.oid == BPCHAR else type_.oid


def declared(type_: SqlType) -> str | None:
    """Return the name with the typmod if there is one: a cast to it sets the typmod."""
    if type_.oid == BPCHAR and type_.width is None:
        raise Unproven("a char without a length")
    if type_.typmod < 0:
        return None
    if type_.oid == NUMERIC:
        scale = ((type_.typmod - 4) & 0x7FF ^ 1024) - 1024
        return f"pg_catalog.numeric({(type_.typmod - 4) >> 16},{scale})"
    if type_.oid in (BPCHAR, VARCHAR):
        return f"{_NAMES[type_.oid]}({type_.typmod - 4})"
    if type_.oid in (TIMESTAMP, TIMESTAMPTZ, TIME):
        return f"{_NAMES[type_.oid]}({type_.typmod})"
    raise Unproven(f"a modifier of the type with OID {type_.oid}")
