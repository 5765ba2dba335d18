"""The type table: how each PostgreSQL type maps to an Arrow, Spark and Delta type.

A type that is not in the table is stored as PostgreSQL's text, and the stream must send it as text: ranges, geometry,
composites, network addresses, money, bit strings, tsvector, xml, the reg… types, and extensions' types. A domain is
decoded as its base type, an enum as its label, and an array of a type in the table as a list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from tidemark.errors import UnsupportedMessage
from tidemark.schema.table import PgType
from tidemark.values import arrays, dates, floats, integers, numeric, text, times
from tidemark.values.cells import Cells, DecodedColumn
from tidemark.values.exact import date_text, float_text, timestamp_text

Decode = Callable[[Cells, bool], DecodedColumn]


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One row: the PostgreSQL type, the types it maps to, and its decoders."""

    name: str
    oid: int
    array_oid: int
    arrow: pa.DataType
    spark: str
    delta: str
    decode: Decode
    text_of: Callable[[bytes], str]


@dataclass(frozen=True, slots=True)
class Decoding:
    """The decoder of one column. `binary` is true if values in binary format are supported."""

    arrow: pa.DataType
    decode: Decode
    text_of: Callable[[bytes], str]
    binary: bool = True


def _one(decode: Decode) -> Callable[[bytes], str]:
    """Return a function that formats one binary value, for types whose decoded value prints as PostgreSQL's text."""

    def text_of(raw: bytes) -> str:
        cells = Cells(np.frombuffer(raw, np.uint8), np.zeros(1, np.int64), np.array([len(raw)], np.int32))
        return str(decode(cells, True).array[0].as_py())

    return text_of


def _bytea_text(raw: bytes) -> str:
    return "\\x" + raw.hex()


def _bool_text(raw: bytes) -> str:
    return {b"\0": "f", b"\1": "t"}[raw]


STRING = (pa.string(), "STRING", "string")

TYPES: tuple[TypeRow, ...] = (
    TypeRow("bool", 16, 1000, pa.bool_(), "BOOLEAN", "boolean", integers.boolean, _bool_text),
    TypeRow("int2", 21, 1005, pa.int16(), "SMALLINT", "short", integers.int2, _one(integers.int2)),
    TypeRow("int4", 23, 1007, pa.int32(), "INT", "integer", integers.int4, _one(integers.int4)),
    TypeRow("int8", 20, 1016, pa.int64(), "BIGINT", "long", integers.int8, _one(integers.int8)),
    TypeRow("oid", 26, 1028, pa.int64(), "BIGINT", "long", integers.oid, _one(integers.oid)),
    TypeRow("float4", 700, 1021, pa.float32(), "FLOAT", "float", floats.float4, float_text),
    TypeRow("float8", 701, 1022, pa.float64(), "DOUBLE", "double", floats.float8, float_text),
    TypeRow("numeric", 1700, 1231, *STRING, numeric.numeric_text, _one(numeric.numeric_text)),
    TypeRow("text", 25, 1009, *STRING, text.text, _one(text.text)),
    TypeRow("varchar", 1043, 1015, *STRING, text.text, _one(text.text)),
    TypeRow("bpchar", 1042, 1014, *STRING, text.text, _one(text.text)),
    TypeRow("name", 19, 1003, *STRING, text.text, _one(text.text)),
    TypeRow("char", 18, 1002, *STRING, text.char, _one(text.char)),
    TypeRow("bytea", 17, 1001, pa.binary(), "BINARY", "binary", text.bytea, _bytea_text),
    TypeRow("date", 1082, 1182, pa.date32(), "DATE", "date", dates.date, date_text),
    TypeRow(
        "timestamp", 1114, 1115, pa.timestamp("us"), "TIMESTAMP_NTZ", "timestamp_ntz", dates.timestamp,
        partial(timestamp_text, zoned=False),
    ),
    TypeRow(
        "timestamptz", 1184, 1185, pa.timestamp("us", "UTC"), "TIMESTAMP", "timestamp", dates.timestamptz,
        partial(timestamp_text, zoned=True),
    ),
    TypeRow("time", 1083, 1183, *STRING, times.time, _one(times.time)),
    TypeRow("timetz", 1266, 1270, *STRING, times.timetz, _one(times.timetz)),
    TypeRow("interval", 1186, 1187, *STRING, times.interval, _one(times.interval)),
    TypeRow("uuid", 2950, 2951, *STRING, text.uuid, _one(text.uuid)),
    TypeRow("json", 114, 199, *STRING, text.text, _one(text.text)),
    TypeRow("jsonb", 3802, 3807, *STRING, text.jsonb, _one(text.jsonb)),
)  # fmt: skip

BY_OID: Mapping[int, TypeRow] = MappingProxyType({row.oid: row for row in TYPES})
ELEMENTS: Mapping[int, int] = MappingProxyType({row.array_oid: row.oid for row in TYPES})
NUMERIC, _INTERVAL = 1700, 1186
_VECTORS = frozenset({22, 30})  # int2vector and oidvector: arrays in the catalog, but with their own text format


@dataclass(frozen=True, slots=True)
class Types:
    """The context for decoding: the types that are not built in, and the server version of the source."""

    known: Mapping[int, PgType] = field(default_factory=dict)
    version_num: int = 180000

    def with_part(self, part: PgType) -> Types:
        """Return a copy that also contains `part`, a type nested in another."""
        return Types({**self.known, part.oid: part}, self.version_num)


def decoding_of(oid: int, typmod: int, types: Types) -> Decoding:
    """Return the decoder of a column of this type."""
    if oid in BY_OID:
        return _built_in(oid, typmod, types)
    if oid in ELEMENTS:
        return _array(ELEMENTS[oid], typmod, types)
    described = types.known.get(oid)
    if described is None or oid in _VECTORS:
        return _as_text(oid)
    if described.kind == "d":
        (base,) = described.parts
        return decoding_of(base.type.oid, base.typmod, types.with_part(base.type))
    if described.kind == "e":
        return Decoding(pa.string(), text.text, _one(text.text))
    if described.kind == "b" and len(described.parts) == 1:
        element = described.parts[0].type
        return _array(element.oid, typmod, types.with_part(element))
    return _as_text(oid)


def _built_in(oid: int, typmod: int, types: Types) -> Decoding:
    row = BY_OID[oid]
    if oid == _INTERVAL and types.version_num < 170000:
        return Decoding(row.arrow, times.finite_interval, _one(times.finite_interval))
    if oid == NUMERIC and (limits := decimal_limits(typmod)):
        precision, scale = limits
        decode = partial(numeric.decimal, precision=precision, scale=scale)
        return Decoding(pa.decimal128(precision, scale), decode, row.text_of)
    return Decoding(row.arrow, row.decode, row.text_of)


def decimal_limits(typmod: int) -> tuple[int, int] | None:
    """Return precision and scale of a numeric type modifier, or None if no DECIMAL can have them."""
    if typmod < 4:
        return None
    precision, scale = (typmod - 4) >> 16, ((typmod - 4) & 0x7FF ^ 1024) - 1024
    return (precision, scale) if 0 <= scale <= precision <= 38 else None


def _array(element: int, typmod: int, types: Types) -> Decoding:
    inner = decoding_of(element, typmod, types)
    if not inner.binary or pa.types.is_list(inner.arrow):
        return _as_text(element)
    decode = partial(arrays.array, element=inner.decode, element_oid=element, text_of=inner.text_of)
    return Decoding(pa.list_(pa.field("element", inner.arrow)), decode, inner.text_of)


def _as_text(oid: int) -> Decoding:
    def decode(cells: Cells, binary: bool) -> DecodedColumn:
        if binary and (cells.lengths >= 0).any():
            raise UnsupportedMessage(
                f"a value of type oid {oid} was received in binary format, which is not supported for this type",
                "Report the error as a bug.",
            )
        return text.text(cells, False)

    return Decoding(pa.string(), decode, bytes.decode, binary=False)
