"""The text that PostgreSQL would print for a decoded value, for comparison with the server's output."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from tidemark.values.cells import DecodedColumn
from tidemark.values.exact import clock_text, float_text


def printed(column: DecodedColumn) -> list[str | None]:
    """Every value of a column as text; a text fallback is used as is, and its value must be null."""
    values = [None if value is None else text(value, column.array.type) for value in column.array.to_pylist()]
    if column.exact is None:
        return values
    exact = column.exact.to_pylist()
    assert all(value is None for value, kept in zip(values, exact, strict=True) if kept is not None)
    return [kept if kept is not None else value for value, kept in zip(values, exact, strict=True)]


def text(value: Any, kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "t" if value else "f"
    if pa.types.is_float32(kind):
        return float_text(struct.pack("!f", value))
    if pa.types.is_float64(kind):
        return float_text(struct.pack("!d", value))
    if pa.types.is_decimal(kind):
        return f"{value:f}"
    if pa.types.is_binary(kind):
        return f"\\x{value.hex()}"
    if pa.types.is_date(kind):
        return f"{value.year:04}-{value.month:02}-{value.day:02}"
    if pa.types.is_timestamp(kind):
        micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        zone = "+00" if kind.tz else ""
        return f"{value.year:04}-{value.month:02}-{value.day:02} {clock_text(micros)}{zone}"
    if pa.types.is_list(kind):
        return "{" + ",".join("NULL" if v is None else quoted(text(v, kind.value_type)) for v in value) + "}"
    return str(value)


def quoted(element: str) -> str:
    if element and element.upper() != "NULL" and not any(char in '"\\{}, \t\n\r\v\f' for char in element):
        return element
    return '"' + element.replace("\\", "\\\\").replace('"', '\\"') + '"'
