"""The canonical text of a row, made by either engine: what PostgreSQL's record_out prints.

    (17,"a b",,t,2024-02-29,400921fb54442d18)

Each value is in the words of its type's output function. Floats are their bits, in hexadecimal, since no two engines
print them alike; any NaN is `nan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from psycopg import sql
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from tidemark.query.changes import quoted

_QUOTED_IN_ROWS = r'^$|["\\(),\s]'
_QUOTED_IN_ARRAYS = r'^$|^(?i:null)$|["\\{},\s]'


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """A column: its name at the source, its name for readers, how it is kept, and the column of texts beside it."""

    source_name: str
    name: str
    type: pa.DataType
    text_name: str | None


def source_row(columns: Sequence[ComparedColumn]) -> sql.Composed:
    """The text of these columns, in PostgreSQL's SQL."""
    return sql.SQL("row({})::text").format(sql.SQL(", ").join(_source_value(column) for column in columns))


def mirror_row(columns: Iterable[ComparedColumn]) -> Column:
    """The same in Spark's."""
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
    value = F.col(quoted(column.name))
    text = _mirror_text(value, column.type)
    return text if column.text_name is None else F.coalesce(F.col(quoted(column.text_name)), text)


def _mirror_text(value: Column, kind: pa.DataType) -> Column:
    if pa.types.is_list(kind):
        inner = kind.value_type
        items = F.transform(value, lambda e: F.coalesce(_escaped(_mirror_text(e, inner)), F.lit("NULL")))
        return F.concat(F.lit("{"), F.array_join(items, ","), F.lit("}"))
    if pa.types.is_boolean(kind):
        return F.when(value, "t").when(~value, "f")
    if pa.types.is_floating(kind):
        return _mirror_bits(value, kind)
    if pa.types.is_binary(kind):
        return F.concat(F.lit("\\x"), F.lower(F.hex(value)))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return F.concat(value.cast("string"), F.lit("+00"))
    return value.cast("string")


def _mirror_bits(value: Column, kind: pa.DataType) -> Column:
    where, how, digits = (
        ("java.lang.Double", "doubleToLongBits", 16)
        if pa.types.is_float64(kind)
        else ("java.lang.Float", "floatToIntBits", 8)
    )
    bits = F.hex(F.reflect(F.lit(where), F.lit(how), value).cast("long"))
    return F.when(F.isnan(value), "nan").when(
        value.isNotNull(), F.lower(F.lpad(F.right(bits, F.lit(digits)), digits, "0"))
    )


def _doubled(text: Column, quoted_if: str) -> Column:
    """With quotation marks where they are needed, and what is special doubled, as rows have it."""
    inside = F.regexp_replace(text, r'(["\\])', "$1$1")
    return F.when(text.rlike(quoted_if), F.concat(F.lit('"'), inside, F.lit('"'))).otherwise(text)


def _escaped(text: Column) -> Column:
    """The same as arrays have it: what is special comes after a backslash."""
    inside = F.regexp_replace(text, r'(["\\])', r"\\$1")
    return F.when(text.rlike(_QUOTED_IN_ARRAYS), F.concat(F.lit('"'), inside, F.lit('"'))).otherwise(text)
