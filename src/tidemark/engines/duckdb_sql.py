"""The printer of bottoms for DuckDB: each operation as an expression that computes exactly this, or fails. Pure.

Nothing is left to DuckDB's own rules where they differ from the tree's: types of literals and results are written out,
both sides of decimal arithmetic have the type of the result before, a result of 38 digits is checked, and a divisor of
zero fails. `tests/engines` compares every operation with PostgreSQL. What is not printed here is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import ClassVar

import pyarrow as pa

from tidemark.engines.printer import BottomPrinter
from tidemark.engines.quotients import RESULT, quotient_scales, quotients
from tidemark.errors import EngineRefused
from tidemark.quoting import duckdb_text
from tidemark.reads.local import LocalRows
from tidemark.reads.local_sql import local_type
from tidemark.split import ir
from tidemark.split.ir import Aggregate, DataType, JoinKind, Kind, Op
from tidemark.split.quotients import MOST_TOTAL_SCALE

_ARROW = {
    Kind.BOOL: pa.bool_(),
    Kind.INT2: pa.int16(),
    Kind.INT4: pa.int32(),
    Kind.INT8: pa.int64(),
    Kind.FLOAT4: pa.float32(),
    Kind.FLOAT8: pa.float64(),
    Kind.TEXT: pa.string(),
    Kind.BINARY: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
}
_FORMS = {
    Op.NEGATE: "CAST((- {0}) AS {type})",
    Op.ABS: "CAST(abs({0}) AS {type})",
    Op.IS_TRUE: "({0} IS NOT DISTINCT FROM true)",
    Op.IS_FALSE: "({0} IS NOT DISTINCT FROM false)",
    Op.LENGTH: "CAST(length({0}) AS {type})",
    Op.RTRIM: "rtrim({0}, ' ')",
    Op.YEAR: "CAST(year({0}) AS {type})",
    Op.QUARTER: "CAST(quarter({0}) AS {type})",
    Op.MONTH: "CAST(month({0}) AS {type})",
    Op.DAY: "CAST(day({0}) AS {type})",
    Op.HOUR: "CAST(hour({0}) AS {type})",
    Op.MINUTE: "CAST(minute({0}) AS {type})",
    Op.DAY_OF_WEEK: "CAST(dayofweek({0}) AS {type})",
    Op.DAY_OF_YEAR: "CAST(dayofyear({0}) AS {type})",
    Op.DAYS_BETWEEN: "CAST(({0} - {1}) AS {type})",
}
_UNITS = frozenset({"year", "quarter", "month", "week", "day", "hour", "minute", "second"})
_FLOATS = (Kind.FLOAT4, Kind.FLOAT8)
_FIRST, _LAST = "CAST('0001-01-01' AS DATE)", "CAST('9999-12-31' AS DATE)"  # of the days that the lake and Arrow have
_QUOTIENT, _QUOTIENT_SCALE = "tidemark_quotient_", "tidemark_quotient_scale_"  # with the scale of the total
_OUT_OF_RANGE = "error('out of range')"


def arrow_type(type_: DataType) -> pa.DataType:
    """Return the Arrow type of a type of the tree."""
    if type_.kind is Kind.DECIMAL:
        return pa.decimal128(type_.precision, type_.scale)
    return _ARROW[type_.kind]


def schema_of(bottom: ir.Bottom) -> pa.Schema:
    """Return the schema of the result of a bottom."""
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in bottom.columns])


def duck_type(type_: DataType) -> str:
    """Return DuckDB's type for a type of the tree."""
    return local_type(arrow_type(type_))


def _timestamp(value: datetime, type_: DataType) -> str:
    if type_.kind is Kind.TIMESTAMPTZ:
        value = value.astimezone(UTC) if value.tzinfo is not None else value
        return f"{value.replace(tzinfo=None).isoformat(' ', 'microseconds')}+00"
    return value.isoformat(" ", "microseconds")


class DuckDbPrinter(BottomPrinter):
    """Prints one bottom over the rows of tables by OID."""

    forms: ClassVar[Mapping[Op, str]] = MappingProxyType({**BottomPrinter.forms, **_FORMS})
    joins: ClassVar[Mapping[JoinKind, str]] = MappingProxyType(
        {**BottomPrinter.joins, JoinKind.SEMI: "SEMI JOIN", JoinKind.ANTI: "ANTI JOIN"}
    )

    def __init__(self, tables: Mapping[int, LocalRows]) -> None:
        super().__init__()
        self._tables = tables

    def stored(self, scan: ir.Scan) -> tuple[str, Iterable[str]]:
        """Return the query of a table's rows, and its columns."""
        rows = self._tables[scan.table]
        kinds = {column.attnum: column.type for column in rows.columns}
        for attnum, column in scan.columns:
            if kinds.get(attnum) != arrow_type(column.type):
                raise EngineRefused(f"column {attnum} of the table with OID {scan.table} has another type")
        attnums = [attnum for attnum, _ in scan.columns]
        return f"({rows.guarded(attnums)})", [f"v{attnum}" for attnum in attnums]

    def literal(self, node: ir.Constant) -> str:
        """Return a constant."""
        return _literal(node.value, node.type)

    def operation(self, call: ir.Call, args: Sequence[str]) -> str:
        """Return an operation; some depend on the types or values of their arguments."""
        return _CALLS[call.op](call, args) if call.op in _CALLS else super().operation(call, args)

    def aggregated(self, call: ir.AggregateCall, text: str) -> str:
        """Return the value of an aggregate, checked for its digits."""
        is_sum = call.aggregate in (Aggregate.SUM, Aggregate.SUM_DISTINCT)
        if is_sum and call.arg is not None and call.arg.type.kind in _FLOATS:
            raise EngineRefused("a sum of floats depends on the order of rows")
        return _checked(_cast(text, call.type), call.type)

    def type_name(self, type_: DataType) -> str:
        """Return DuckDB's name of a type."""
        return duck_type(type_)


def _literal(value: object, type_: DataType) -> str:
    """Return a constant."""
    if value is None:
        text = "NULL"
    elif isinstance(value, bytes):
        return f"from_hex({duckdb_text(value.hex())})"
    elif isinstance(value, bool):
        return str(value).upper()
    elif isinstance(value, Decimal):
        text = duckdb_text(format(value, "f"))
    elif isinstance(value, datetime):
        text = duckdb_text(_timestamp(value, type_))
    elif isinstance(value, date):
        text = duckdb_text(value.isoformat())
    else:
        text = duckdb_text(repr(value) if isinstance(value, float) else str(value))
    return f"CAST({text} AS {duck_type(type_)})"


def _cast(value: str, type_: DataType) -> str:
    return f"CAST({value} AS {duck_type(type_)})"


def _checked(value: str, type_: DataType) -> str:
    """Return a value that fails if it has more than the 38 digits that DuckDB's own sums can exceed."""
    if type_.kind is not Kind.DECIMAL or type_.precision < ir.MOST_DIGITS:
        return value
    digits = "9" * (ir.MOST_DIGITS - type_.scale) or "0"
    most = _literal(Decimal(f"{digits}.{'9' * type_.scale}"), type_)
    return f"CASE WHEN {value} > {most} OR {value} < -{most} THEN {_OUT_OF_RANGE} ELSE {value} END"


def _arithmetic(call: ir.Call, args: Sequence[str]) -> str:
    if call.type.kind is Kind.DECIMAL:
        args = [_cast(arg, call.type) for arg in args]
    elif call.type.kind not in ir.INTEGERS or any(arg.type != call.type for arg in call.args):
        raise EngineRefused("arithmetic of this type")
    return _cast(f"({args[0]} {call.op.value} {args[1]})", call.type)


def _product(call: ir.Call, args: Sequence[str]) -> str:
    if call.type.kind is not Kind.DECIMAL:
        return _arithmetic(call, args)
    if call.type.scale != sum(arg.type.scale for arg in call.args):
        raise EngineRefused("a product of another scale")
    return _cast(f"({args[0]} * {args[1]})", call.type)


def _divided(call: ir.Call, args: Sequence[str]) -> str:
    if call.type.kind not in ir.INTEGERS or any(arg.type != call.type for arg in call.args):
        raise EngineRefused("a division of this type")
    operator = "//" if call.op is Op.DIVIDE_INT else "%"
    return f"CASE WHEN {args[1]} = 0 THEN error('division by zero') ELSE {args[0]} {operator} {args[1]} END"


def _converted(call: ir.Call, args: Sequence[str]) -> str:
    """A cast. Only through its text does a decimal become the nearest float, as in PostgreSQL."""
    there, kind = call.args[0].type.kind, call.type.kind
    if there is Kind.DECIMAL and kind in _FLOATS:
        return _cast(f"CAST({args[0]} AS VARCHAR)", call.type)
    numbers = (*ir.INTEGERS, Kind.DECIMAL)
    known = {
        *((one, other) for one in ir.INTEGERS for other in (*numbers, Kind.FLOAT8)),
        *((Kind.DECIMAL, Kind.DECIMAL), (Kind.FLOAT4, Kind.FLOAT8)),
        *((Kind.DATE, Kind.TIMESTAMP), (Kind.TIMESTAMP, Kind.DATE)),
    }
    if there is not kind and (there, kind) not in known:
        raise EngineRefused(f"a cast from {there.value} to {kind.value}")
    return _cast(args[0], call.type)


def _shifted(_: ir.Call, args: Sequence[str]) -> str:
    day = f"({args[0]} + {args[1]})"
    return f"CASE WHEN {day} BETWEEN {_FIRST} AND {_LAST} OR {day} IS NULL THEN {day} ELSE {_OUT_OF_RANGE} END"


def _truncated(call: ir.Call, args: Sequence[str]) -> str:
    unit = call.args[1].value if isinstance(call.args[1], ir.Constant) else None
    if not isinstance(unit, str) or unit not in _UNITS or call.args[0].type != ir.TIMESTAMP:
        raise EngineRefused("date_trunc with these arguments")
    return f"date_trunc({duckdb_text(unit)}, {args[0]})"


def _like(call: ir.Call, args: Sequence[str]) -> str:
    pattern = call.args[1].value if isinstance(call.args[1], ir.Constant) else None
    if not isinstance(pattern, str) or "\\" in pattern:
        raise EngineRefused("LIKE with such a pattern")
    return f"({args[0]} LIKE {duckdb_text(pattern)})"


def _substring(call: ir.Call, args: Sequence[str]) -> str:
    numbers = [arg.value for arg in call.args[1:] if isinstance(arg, ir.Constant) and isinstance(arg.value, int)]
    if len(numbers) != len(call.args) - 1:
        raise EngineRefused("substring with these arguments")
    return f"substring({', '.join([args[0], *map(str, numbers)])})"


def _quotient(call: ir.Call, args: Sequence[str]) -> str:
    name = _QUOTIENT if call.op is Op.QUOTIENT else _QUOTIENT_SCALE
    scale = call.args[0].type.scale
    return f"{name}{scale}({_cast(args[0], ir.decimal(ir.MOST_DIGITS, scale))}, {_cast(args[1], ir.INT8)})"


_CALLS: Mapping[Op, Callable[[ir.Call, Sequence[str]], str]] = {
    Op.ADD: _arithmetic,
    Op.SUBTRACT: _arithmetic,
    Op.MULTIPLY: _product,
    Op.DIVIDE_INT: _divided,
    Op.MODULO: _divided,
    Op.ROUND: _converted,
    Op.LIKE: _like,
    Op.SUBSTRING: _substring,
    Op.ADD_DAYS: _shifted,
    Op.TRUNCATE: _truncated,
    Op.CAST: _converted,
    Op.QUOTIENT: _quotient,
    Op.QUOTIENT_SCALE: _quotient,
}
_TOTALS = [ir.decimal(ir.MOST_DIGITS, scale) for scale in range(MOST_TOTAL_SCALE + 1)]
FUNCTIONS: Mapping[str, tuple[Callable[[pa.Array, pa.Array], pa.Array], tuple[DataType, DataType], DataType]] = {
    **{f"{_QUOTIENT}{each.scale}": (quotients, (each, ir.INT8), RESULT) for each in _TOTALS},
    **{f"{_QUOTIENT_SCALE}{each.scale}": (quotient_scales, (each, ir.INT8), ir.INT4) for each in _TOTALS},
}
