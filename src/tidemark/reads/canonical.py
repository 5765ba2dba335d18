"""The canonical text of a row, which PostgreSQL and Spark generate alike: the output of PostgreSQL's record_out.

    (17,"a b",,t,2024-02-29,400921fb54442d18)

Each value has the format of its type's output function. Floats are represented by their bits in hexadecimal, because
engines print them differently; every NaN is `nan`. Spark's expression is `reads.spark_digests.mirror_row`.

Two servers print every value alike, floats included (`extra_float_digits` is pinned), so there the stored type of a
column is text. The exception is `"char"`, a single byte: PostgreSQL 14 sends a byte above 127 unchanged, and later
versions print it as a backslash and three octal digits, which is the canonical text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from psycopg import sql


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """A column: its name at the source, its name for readers, its stored type, and the name of its text fallback."""

    source_name: str
    name: str
    type: pa.DataType
    text_name: str | None


def source_row(columns: Sequence[ComparedColumn]) -> sql.Composed:
    """Return the PostgreSQL expression for the text of these columns."""
    return sql.SQL("row({})::text").format(sql.SQL(", ").join(_source_value(column) for column in columns))


def _source_value(column: ComparedColumn) -> sql.Composable:
    name = sql.Identifier(column.source_name)
    if pa.types.is_fixed_size_binary(column.type):
        return sql.SQL(
            "case when {0}::int4 < 0 then encode(set_byte('\\x00', 0, {0}::int4 + 256), 'escape') else {0}::text end"
        ).format(name)
    if pa.types.is_floating(column.type):
        return _source_bits(name, column.type)
    if pa.types.is_list(column.type) and pa.types.is_floating(column.type.value_type):
        return sql.SQL(
            "case when array_ndims({0}) > 1 or array_lower({0}, 1) <> 1 then format('%s', {0})"
            " when {0} is distinct from null then (select coalesce('{{' || string_agg(coalesce({1}, 'NULL'), ','"
            " order by at) || '}}', '{{}}') from unnest({0}) with ordinality each (e, at)) end"
        ).format(name, _source_bits(sql.Identifier("e"), column.type.value_type))
    return name


def _source_bits(value: sql.Identifier, kind: pa.DataType) -> sql.Composed:
    send = sql.SQL("float8send" if pa.types.is_float64(kind) else "float4send")
    return sql.SQL("case when {0} = 'NaN' then 'nan' else encode({1}({0}), 'hex') end").format(value, send)
