"""PostgreSQL's text of Arrow arrays, as a session with the pinned settings prints it.

The text of a value depends only on the Arrow type it is stored as, and for timestamptz on the time zone: types without
an equivalent in Arrow are stored as PostgreSQL's text.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from tidemark.errors import InvalidValue
from tidemark.values import arrays, dates, floats, integers, numeric, text
from tidemark.values.cells import Cells, DecodedColumn, bytes_of, strings_of
from tidemark.values.zones import UTC, Zone


def column_text(column: DecodedColumn, zone: Zone = UTC) -> Cells:
    """Return the text of a column; a text fallback is used where there is one. timestamptz is printed in `zone`."""
    column = column.gathered()
    texts = array_text(column.array, zone)
    if column.fallback is None:
        return texts
    return texts.or_else(_in_zone(bytes_of(column.fallback), column.array.type, zone))


def column_strings(column: DecodedColumn, zone: Zone = UTC) -> pa.StringArray:
    """Return the text of a column as an Arrow array."""
    return strings_of(column_text(column, zone))


def array_text(array: pa.Array, zone: Zone = UTC) -> Cells:
    """Return the text of an array of a type that the mirror stores."""
    kind = array.type
    if pa.types.is_string(kind):
        return bytes_of(array)
    if pa.types.is_boolean(kind):
        return integers.boolean_text(array)
    if pa.types.is_signed_integer(kind):
        return integers.integer_text(array)
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return floats.float_text(array)
    if pa.types.is_decimal128(kind):
        return numeric.decimal_text(array)
    if pa.types.is_binary(kind):
        return text.bytea_text(array)
    if pa.types.is_date32(kind):
        return dates.date_text(array)
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return dates.timestamp_text(array, zone)
    if pa.types.is_list(kind):
        return arrays.array_text(array, partial(array_text, zone=zone))
    raise InvalidValue(
        f"no PostgreSQL type is stored as {kind}", "Convert the values to a type that the mirror stores."
    )


def _in_zone(texts: Cells, kind: pa.DataType, zone: Zone) -> Cells:
    """Convert texts of the text fallback, in which timestamptz is in UTC, to another zone."""
    if zone is UTC:
        return texts
    if pa.types.is_list(kind) and pa.types.is_timestamp(kind.value_type) and kind.value_type.tz is not None:
        return arrays.reprinted_array(texts, partial(dates.timestamptz_text, zone=zone))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return dates.timestamptz_text(texts, zone)
    return texts
