"""The canonical text of a row, which PostgreSQL and Spark generate alike: the output of PostgreSQL's record_out.

    (17,"a b",,t,2024-02-29,400921fb54442d18)

Each value has the format of its type's output function. Floats are represented by their bits in hexadecimal, because
engines print them differently; every NaN is `nan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from psycopg import sql
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, DoubleType

from tidemark.reads.text import postgres_text
from tidemark.schema.display import backticked
from tidemark.spark.types import spark_type

_QUOTED_IN_ROWS = r'\A\z|["\\(),\s]'  # not $, which matches before a last U+0085 or U+2028 in Java


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


def mirror_row(columns: Iterable[ComparedColumn]) -> Column:
    """Return the Spark expression for the same text."""
    cells = (F.coalesce(_doubled(_mirror_value(column), _QUOTED_IN_ROWS), F.lit("")) for column in columns)
    return F.concat(F.lit("("), F.concat_ws(",", *cells), F.lit(")"))


def _source_value(column: ComparedColumn) -> sql.Composable:
    name = sql.Identifier(column.source_name)
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


def _mirror_value(column: ComparedColumn) -> Column:
    value = F.col(backticked(column.name))
    text = postgres_text(value, spark_type(column.type), _mirror_bits)
    return text if column.text_name is None else F.coalesce(F.col(backticked(column.text_name)), text)


def _mirror_bits(value: Column, kind: DataType) -> Column:
    if isinstance(kind, ArrayType):
        inner = kind.elementType
        return F.transform(value, lambda each: _mirror_bits(each, inner))
    where, how, digits = (
        ("java.lang.Double", "doubleToLongBits", 16)
        if isinstance(kind, DoubleType)
        else ("java.lang.Float", "floatToIntBits", 8)
    )
    bits = F.hex(F.reflect(F.lit(where), F.lit(how), value).cast("long"))
    return F.when(F.isnan(value), "nan").when(
        value.isNotNull(), F.lower(F.lpad(F.right(bits, F.lit(digits)), digits, "0"))
    )


def _doubled(text: Column, quoted_if: str) -> Column:
    """Quote a value as in the text of a row: in double quotes if necessary, with special characters doubled."""
    inside = F.regexp_replace(text, r'(["\\])', "$1$1")
    return F.when(text.rlike(quoted_if), F.concat(F.lit('"'), inside, F.lit('"'))).otherwise(text)
