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

import pyarrow as pa

from tidemark.errors import InvalidValue, UnsupportedMessage
from tidemark.schema.table import PgType
from tidemark.values import arrays, dates, floats, integers, numeric, output, text, times
from tidemark.values.cells import Cells, DecodedColumn, bytes_of

Decode = Callable[[Cells, bool], DecodedColumn]
Encode = Callable[[pa.Array], Cells]
Convert = Callable[[Cells], Cells]


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One row: the PostgreSQL type, the types it maps to, and how its values are converted.

    `encode` converts an array to binary, `parse` PostgreSQL's text to binary. Without `encode`, the type is stored as
    PostgreSQL's text; without `parse`, no value of the type has a text fallback.
    """

    name: str
    oid: int
    array_oid: int
    arrow: pa.DataType
    spark: str
    delta: str
    decode: Decode
    encode: Encode | None = None
    parse: Convert | None = None


@dataclass(frozen=True, slots=True)
class Decoding:
    """How the values of one column are decoded, and encoded in binary: from Arrow, and from PostgreSQL's text.

    `binary` is true if values in binary format are supported.
    """

    arrow: pa.DataType
    decode: Decode
    encode: Encode
    parse: Convert
    binary: bool = True


STRING = (pa.string(), "STRING", "string")

TYPES: tuple[TypeRow, ...] = (
    TypeRow("bool", 16, 1000, pa.bool_(), "BOOLEAN", "boolean", integers.boolean, integers.boolean_binary),
    TypeRow("int2", 21, 1005, pa.int16(), "SMALLINT", "short", integers.int2, integers.integer_binary),
    TypeRow("int4", 23, 1007, pa.int32(), "INT", "integer", integers.int4, integers.integer_binary),
    TypeRow("int8", 20, 1016, pa.int64(), "BIGINT", "long", integers.int8, integers.integer_binary),
    TypeRow("oid", 26, 1028, pa.int64(), "BIGINT", "long", integers.oid, integers.oid_binary),
    TypeRow("float4", 700, 1021, pa.float32(), "FLOAT", "float", floats.float4, floats.float_binary),
    TypeRow("float8", 701, 1022, pa.float64(), "DOUBLE", "double", floats.float8, floats.float_binary),
    TypeRow("numeric", 1700, 1231, *STRING, numeric.numeric_text, None, numeric.parsed_numeric),
    TypeRow("text", 25, 1009, *STRING, text.text, None, text.as_is),
    TypeRow("varchar", 1043, 1015, *STRING, text.text, None, text.as_is),
    TypeRow("bpchar", 1042, 1014, *STRING, text.text, None, text.as_is),
    TypeRow("name", 19, 1003, *STRING, text.text, None, text.as_is),
    TypeRow("char", 18, 1002, *STRING, text.char, None, text.parsed_char),
    TypeRow("bytea", 17, 1001, pa.binary(), "BINARY", "binary", text.bytea, bytes_of),
    TypeRow("date", 1082, 1182, pa.date32(), "DATE", "date", dates.date, dates.date_binary, dates.parsed_date),
    TypeRow(
        "timestamp", 1114, 1115, pa.timestamp("us"), "TIMESTAMP_NTZ", "timestamp_ntz", dates.timestamp,
        dates.timestamp_binary, dates.parsed_timestamp,
    ),
    TypeRow(
        "timestamptz", 1184, 1185, pa.timestamp("us", "UTC"), "TIMESTAMP", "timestamp", dates.timestamptz,
        dates.timestamp_binary, dates.parsed_timestamp,
    ),
    TypeRow("time", 1083, 1183, *STRING, times.time, None, times.parsed_time),
    TypeRow("timetz", 1266, 1270, *STRING, times.timetz, None, times.parsed_timetz),
    TypeRow("interval", 1186, 1187, *STRING, times.interval, None, times.parsed_interval),
    TypeRow("uuid", 2950, 2951, *STRING, text.uuid, None, text.parsed_uuid),
    TypeRow("json", 114, 199, *STRING, text.text, None, text.as_is),
    TypeRow("jsonb", 3802, 3807, *STRING, text.jsonb, None, text.parsed_jsonb),
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
    """Return the decoder and encoder of a column of this type."""
    if oid in BY_OID:
        return _built_in(oid, typmod, types)
    if oid in ELEMENTS:
        return _array(oid, ELEMENTS[oid], typmod, types)
    described = types.known.get(oid)
    if described is None or oid in _VECTORS:
        return _as_text(oid, types)
    if described.kind == "d":
        (base,) = described.parts
        return decoding_of(base.type.oid, base.typmod, types.with_part(base.type))
    if described.kind == "e":
        return Decoding(pa.string(), text.text, bytes_of, text.as_is)
    if described.kind == "b" and len(described.parts) == 1:
        element = described.parts[0].type
        return _array(oid, element.oid, typmod, types.with_part(element))
    return _as_text(oid, types)


def _built_in(oid: int, typmod: int, types: Types) -> Decoding:
    row = BY_OID[oid]
    decode, encode, parse = row.decode, row.encode, row.parse
    if oid == _INTERVAL and types.version_num < 170000:
        decode = times.finite_interval
    if oid == NUMERIC and (limits := decimal_limits(typmod)):
        precision, scale = limits
        decimal = partial(numeric.decimal, precision=precision, scale=scale)
        return Decoding(pa.decimal128(precision, scale), decimal, numeric.decimal_binary, numeric.parsed_numeric)
    if parse is None:
        assert encode is not None  # noqa: S101
        parse = partial(_parsed, decode=decode, encode=encode)
    return Decoding(row.arrow, decode, encode or partial(_stored, parse=parse), parse)


def _parsed(cells: Cells, decode: Decode, encode: Encode) -> Cells:
    return encode(decode(cells, False).array)


def _stored(array: pa.Array, parse: Convert) -> Cells:
    """Encode an array of PostgreSQL's texts."""
    return parse(bytes_of(array))


def decimal_limits(typmod: int) -> tuple[int, int] | None:
    """Return precision and scale of a numeric type modifier, or None if no DECIMAL can have them."""
    if typmod < 4:
        return None
    precision, scale = (typmod - 4) >> 16, ((typmod - 4) & 0x7FF ^ 1024) - 1024
    return (precision, scale) if 0 <= scale <= precision <= 38 else None


def _array(oid: int, element: int, typmod: int, types: Types) -> Decoding:
    inner = decoding_of(element, typmod, types)
    if not inner.binary or pa.types.is_list(inner.arrow):
        return _as_text(oid, types)
    text_of = partial(_text_of_binary, decode=inner.decode)
    return Decoding(
        pa.list_(pa.field("element", inner.arrow)),
        partial(arrays.array, element=inner.decode, element_oid=element, text_of=text_of),
        partial(arrays.array_binary, element_oid=element, binary_of=inner.encode),
        partial(arrays.parsed_array, element_oid=element, binary_of=inner.parse),
    )


def _text_of_binary(cells: Cells, decode: Decode) -> Cells:
    return output.column_text(decode(cells, True))


def _as_text(oid: int, types: Types) -> Decoding:
    """Return the decoder of a type that is stored as PostgreSQL's text and has no binary format here."""
    name = f"type {types.known[oid].name}" if oid in types.known else f"type oid {oid}"

    def decode(cells: Cells, binary: bool) -> DecodedColumn:
        if binary and (cells.lengths >= 0).any():
            raise UnsupportedMessage(
                f"a value of type oid {oid} was received in binary format, which is not supported for this type",
                "Report the error as a bug.",
            )
        return text.text(cells, False)

    def refuse(_: object) -> Cells:
        raise InvalidValue(f"{name} cannot be encoded in binary format", "Encode the values as text.")

    return Decoding(pa.string(), decode, refuse, refuse, binary=False)
