"""SQL of DuckDB for the values of a table's columns: names, types, literals, and columns that a file lacks. Pure.

It is the same rule as `reads.changes` has for Spark. A conversion that is not known to be exact is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa

from tidemark.errors import EngineRefused
from tidemark.lake.columns import StoredColumn
from tidemark.quoting import double_quoted, duckdb_text
from tidemark.reads.shown import Shown, ShownTable

_MOST_DIGITS = 38
_TYPES = {
    pa.bool_(): "BOOLEAN",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("us", "UTC"): "TIMESTAMPTZ",
}


def local_type(kind: pa.DataType) -> str:
    """Return the type of DuckDB that holds every value of an Arrow type."""
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_list(kind):
        return f"{local_type(kind.value_type)}[]"
    if kind not in _TYPES:
        raise EngineRefused(f"DuckDB has no type for {kind}")
    return _TYPES[kind]


def null_of(kind: pa.DataType) -> str:
    """Return the null of a type."""
    return f"CAST(NULL AS {local_type(kind)})"


def literal(value: pa.Scalar | None, kind: pa.DataType) -> str:
    """Return an expression for an Arrow value."""
    if value is None or not value.is_valid:
        return null_of(kind)
    if pa.types.is_list(kind):
        items = ", ".join(literal(each, kind.value_type) for each in value.values)
        return f"CAST([{items}] AS {local_type(kind)})"
    if pa.types.is_binary(kind):
        return f"from_hex({duckdb_text(value.as_py().hex())})"
    return f"CAST({duckdb_text(_text(value, kind))} AS {local_type(kind)})"


def _text(value: pa.Scalar, kind: pa.DataType) -> str:
    """Return the text that DuckDB casts to a value exactly."""
    if pa.types.is_timestamp(kind):
        micros = timedelta(microseconds=value.cast(pa.int64()).as_py())
        shown = (datetime(1970, 1, 1, tzinfo=UTC) + micros).replace(tzinfo=None).isoformat(" ", "microseconds")
        return f"{shown}+00" if kind.tz else shown
    plain = value.as_py()
    if isinstance(plain, Decimal):
        return format(plain, "f")
    return repr(plain) if isinstance(plain, float) else str(plain)


def cell_values(table: ShownTable, there: Sequence[StoredColumn]) -> list[str]:
    """Return the value of each cell of a table in rows that have only these stored columns."""
    homes = {each.attnum: each for each in reversed(there) if not each.text}
    names = {each.name for each in there}
    cells: list[str] = []
    for column in table.columns:
        home = homes.get(column.attnum)
        beside = home.fallback_column().name if home is not None else ""
        value, text = _missing(column) if home is None else _stored(home, column.type, beside in names)
        cells += [value, text] if column.fallback else [value]
    return cells


def _missing(column: Shown) -> tuple[str, str]:
    """Return the value of a column in rows older than the column, and its text fallback."""
    missing = column.missing
    fallback = missing.fallback[0] if missing is not None and missing.fallback is not None else None
    value = missing.array[0] if missing is not None else None
    return literal(value, column.type), literal(fallback, pa.string())


def _stored(home: StoredColumn, kind: pa.DataType, has_text: bool) -> tuple[str, str]:
    """Return the value of a stored column, converted to this type, and its text fallback; see `reads.changes`."""
    value = double_quoted(home.name)
    text = double_quoted(home.fallback_column().name) if has_text else null_of(pa.string())
    if home.type == kind:
        return value, text
    there = home.type
    if pa.types.is_decimal(there) and pa.types.is_string(kind):
        whole = f"CAST({_with_zero(value, there)} AS VARCHAR)"
        return (f"coalesce({text}, {whole})" if has_text else whole), text
    if pa.types.is_decimal(kind) and (pa.types.is_decimal(there) or pa.types.is_string(there)):
        narrowed = f"TRY_CAST({value} AS {local_type(kind)})"
        return narrowed, f"CASE WHEN {narrowed} IS NULL THEN {value} END" if pa.types.is_string(there) else text
    raise EngineRefused(f"DuckDB does not convert {there} of column {home.name} to {kind} exactly")


def _with_zero(value: str, kind: pa.DataType) -> str:
    """Return a decimal in a type for which DuckDB prints a digit before the point."""
    if kind.scale < kind.precision:
        return value
    if kind.precision == _MOST_DIGITS:
        raise EngineRefused("DuckDB prints no zero before the point of a decimal of 38 fraction digits")
    return f"CAST({value} AS DECIMAL({kind.precision + 1}, {kind.scale}))"
