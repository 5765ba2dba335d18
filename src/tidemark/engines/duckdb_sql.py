"""The printer of bottoms for DuckDB: each operation as an expression that computes exactly this, or fails. Pure.

Nothing is left to DuckDB's own rules where they differ from the tree's: types of literals and results are written out,
both sides of decimal arithmetic have the type of the result before, a result of 38 digits is checked, and a divisor of
zero fails. `tests/engines` compares every operation with PostgreSQL. What is not printed here is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count

import pyarrow as pa

from tidemark.errors import EngineRefused
from tidemark.reads.local import LocalRows
from tidemark.reads.local_sql import local_type, string
from tidemark.split import ir
from tidemark.split.ir import Aggregate, Column, DataType, Expr, JoinKind, Kind, Op, Relation

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
_COMPARISONS = {Op.EQ: "=", Op.NE: "<>", Op.LT: "<", Op.LE: "<=", Op.GT: ">", Op.GE: ">="}
_COMPARISONS |= {Op.IS_DISTINCT: "IS DISTINCT FROM"}
_FIELDS = {
    Op.YEAR: "year",
    Op.QUARTER: "quarter",
    Op.MONTH: "month",
    Op.DAY: "day",
    Op.HOUR: "hour",
    Op.MINUTE: "minute",
    Op.DAY_OF_WEEK: "dayofweek",
    Op.DAY_OF_YEAR: "dayofyear",
}
_UNITS = frozenset({"year", "quarter", "month", "week", "day", "hour", "minute", "second"})
_FLOATS = (Kind.FLOAT4, Kind.FLOAT8)
_FIRST, _LAST = "CAST('0001-01-01' AS DATE)", "CAST('9999-12-31' AS DATE)"  # of the days that the lake and Arrow have
_OUT_OF_RANGE = "error('out of range')"
_JOINS = {
    JoinKind.INNER: "JOIN",
    JoinKind.LEFT: "LEFT JOIN",
    JoinKind.RIGHT: "RIGHT JOIN",
    JoinKind.FULL: "FULL JOIN",
    JoinKind.SEMI: "SEMI JOIN",
    JoinKind.ANTI: "ANTI JOIN",
}
_AGGREGATES = {
    Aggregate.COUNT: "count({})",
    Aggregate.COUNT_DISTINCT: "count(DISTINCT {})",
    Aggregate.SUM: "sum({})",
    Aggregate.SUM_DISTINCT: "sum(DISTINCT {})",
    Aggregate.MIN: "min({})",
    Aggregate.MAX: "max({})",
    Aggregate.BOOL_AND: "bool_and({})",
    Aggregate.BOOL_OR: "bool_or({})",
}


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


def literal(value: object, type_: DataType) -> str:
    """Return a constant."""
    if value is None:
        text = "NULL"
    elif isinstance(value, bytes):
        return f"from_hex({string(value.hex())})"
    elif isinstance(value, bool):
        return str(value).upper()
    elif isinstance(value, Decimal):
        text = string(format(value, "f"))
    elif isinstance(value, datetime):
        text = string(_timestamp(value, type_))
    elif isinstance(value, date):
        text = string(value.isoformat())
    else:
        text = string(repr(value) if isinstance(value, float) else str(value))
    return f"CAST({text} AS {duck_type(type_)})"


def _timestamp(value: datetime, type_: DataType) -> str:
    if type_.kind is Kind.TIMESTAMPTZ:
        value = value.astimezone(UTC) if value.tzinfo is not None else value
        return f"{value.replace(tzinfo=None).isoformat(' ', 'microseconds')}+00"
    return value.isoformat(" ", "microseconds")


class DuckDbPrinter:
    """Prints one bottom over the rows of tables by OID."""

    def __init__(self, tables: Mapping[int, LocalRows]) -> None:
        self._tables, self._aliases = tables, count(1)

    def bottom(self, bottom: ir.Bottom) -> str:
        """Return a query with the columns of the bottom in order."""
        return f"SELECT {_list(bottom.columns)} FROM {self._from(bottom.relation)}"

    def relation(self, relation: Relation) -> str:
        """Return a relation as a query whose columns have their names in the tree."""
        if isinstance(relation, ir.OneRow):
            return "SELECT 1 AS nothing"
        if isinstance(relation, ir.Scan):
            return self._scan(relation)
        if isinstance(relation, ir.Filter):
            return f"{self._select(relation.relation)} WHERE {self.expr(relation.condition)}"
        if isinstance(relation, ir.Join):
            return self._join(relation)
        if isinstance(relation, ir.Project):
            values = [f"{self.expr(expr)} AS {column.name}" for column, expr in relation.columns]
            return f"SELECT {', '.join(values) or '1 AS nothing'} FROM {self._from(relation.relation)}"
        if isinstance(relation, ir.Group):
            return self._group(relation)
        if isinstance(relation, ir.Distinct):
            return self._select(relation.relation).replace("SELECT", "SELECT DISTINCT", 1)
        return self._union(relation)

    def _select(self, relation: Relation) -> str:
        return f"SELECT {_list(columns_of(relation))} FROM {self._from(relation)}"

    def _from(self, relation: Relation) -> str:
        return f"({self.relation(relation)}) AS r{next(self._aliases)}"

    def _scan(self, scan: ir.Scan) -> str:
        rows = self._tables[scan.table]
        kinds = {column.attnum: column.type for column in rows.columns}
        for attnum, column in scan.columns:
            if kinds.get(attnum) != arrow_type(column.type):
                raise EngineRefused(f"column {attnum} of the table with OID {scan.table} has another type")
        values = [f"v{attnum} AS {column.name}" for attnum, column in scan.columns]
        read = rows.guarded(attnum for attnum, _ in scan.columns)
        return f"SELECT {', '.join(values) or '1 AS nothing'} FROM ({read})"

    def _join(self, join: ir.Join) -> str:
        condition = self.expr(join.condition) if join.condition is not None else "true"
        sides = f"{self._from(join.left)} {_JOINS[join.kind]} {self._from(join.right)}"
        return f"SELECT {_list(columns_of(join))} FROM {sides} ON {condition}"

    def _group(self, group: ir.Group) -> str:
        """Arguments are computed below the aggregates, so that a key is a column and never a number of a column."""
        values = [f"{self.expr(expr)} AS {column.name}" for column, expr in group.keys]
        results = [column.name for column, _ in group.keys]
        for column, call in group.aggregates:
            arg, where = f"{column.name}_of", f"{column.name}_where"
            values += [f"{self.expr(call.arg)} AS {arg}"] if call.arg is not None else []
            values += [f"{self.expr(call.where)} AS {where}"] if call.where is not None else []
            results.append(f"{_aggregate(call, arg, where)} AS {column.name}")
        inner = f"SELECT {', '.join(values) or '1 AS nothing'} FROM {self._from(group.relation)}"
        by = f" GROUP BY {_list(column for column, _ in group.keys)}" if group.keys else ""
        return f"SELECT {', '.join(results) or '1 AS nothing'} FROM ({inner}){by}"

    def _union(self, union: ir.Union) -> str:
        parts = []
        for relation, columns in union.parts:
            pairs = zip(columns, union.columns, strict=True)
            values = [f"{own.name} AS {column.name}" for own, column in pairs]
            if any(own.type != column.type for own, column in zip(columns, union.columns, strict=True)):
                raise EngineRefused("the parts of UNION ALL have different types")
            parts.append(f"SELECT {', '.join(values) or '1 AS nothing'} FROM {self._from(relation)}")
        return " UNION ALL ".join(parts)

    def expr(self, expr: Expr) -> str:
        """Return an expression."""
        if isinstance(expr, ir.Column):
            return expr.name
        if isinstance(expr, ir.Literal):
            return literal(expr.value, expr.type)
        if isinstance(expr, ir.Call):
            return self._call(expr)
        if isinstance(expr, ir.Case):
            whens = "".join(f" WHEN {self.expr(when)} THEN {self.expr(then)}" for when, then in expr.whens)
            return f"CASE{whens} ELSE {self.expr(expr.otherwise)} END"
        if isinstance(expr, ir.In):
            arg, *values = self._alike((expr.arg, *expr.values))
            return f"({arg} IN ({', '.join(values)}))"
        if isinstance(expr, ir.Exists):
            return f"EXISTS (SELECT 1 FROM {self._from(expr.relation)} WHERE {self.expr(expr.condition)})"
        raise EngineRefused("a scalar subquery without its value")

    def _call(self, call: ir.Call) -> str:
        if call.op in _COMPARISONS:
            one, other = self._alike(call.args)
            return f"({one} {_COMPARISONS[call.op]} {other})"
        if call.op in (Op.AND, Op.OR):
            return f"({f' {call.op.value.upper()} '.join(map(self.expr, call.args))})"
        if call.op not in _CALLS:
            raise EngineRefused(f"DuckDB has no {call.op.value}")
        return _CALLS[call.op](call, [self.expr(arg) for arg in call.args])

    def _alike(self, args: tuple[Expr, ...]) -> list[str]:
        """Return arguments in one type: decimals of scalar subqueries have digits of their own."""
        types = {arg.type for arg in args}
        if len(types) == 1:
            return [self.expr(arg) for arg in args]
        if any(each.kind is not Kind.DECIMAL for each in types):
            raise EngineRefused("values of different types")
        scale = max(each.scale for each in types)
        common = ir.decimal(max(each.precision - each.scale for each in types) + scale, scale)
        return [_cast(self.expr(arg), common) for arg in args]


def columns_of(relation: Relation) -> tuple[Column, ...]:
    """Return the columns of a relation."""
    if isinstance(relation, ir.Scan):
        return tuple(column for _, column in relation.columns)
    if isinstance(relation, ir.Filter | ir.Distinct):
        return columns_of(relation.relation)
    if isinstance(relation, ir.Join):
        left = columns_of(relation.left)
        return left if relation.kind in (JoinKind.SEMI, JoinKind.ANTI) else (*left, *columns_of(relation.right))
    if isinstance(relation, ir.Project):
        return tuple(column for column, _ in relation.columns)
    if isinstance(relation, ir.Group):
        return (*(column for column, _ in relation.keys), *(column for column, _ in relation.aggregates))
    return relation.columns if isinstance(relation, ir.Union) else ()


def _list(columns: object) -> str:
    return ", ".join(column.name for column in columns) or "1 AS nothing"  # type: ignore[attr-defined]


def _aggregate(call: ir.AggregateCall, arg: str, where: str) -> str:
    if call.arg is None:
        found = "count(*)"
    elif call.aggregate in (Aggregate.SUM, Aggregate.SUM_DISTINCT) and call.arg.type.kind in _FLOATS:
        raise EngineRefused("a sum of floats depends on the order of rows")
    else:
        found = _AGGREGATES[call.aggregate].format(arg)
    found = f"{found} FILTER (WHERE {where})" if call.where is not None else found
    return _checked(_cast(found, call.type), call.type)


def _cast(value: str, type_: DataType) -> str:
    return f"CAST({value} AS {duck_type(type_)})"


def _checked(value: str, type_: DataType) -> str:
    """Return a value that fails if it has more than the 38 digits that DuckDB's own sums can exceed."""
    if type_.kind is not Kind.DECIMAL or type_.precision < ir.MOST_DIGITS:
        return value
    digits = "9" * (ir.MOST_DIGITS - type_.scale) or "0"
    most = literal(Decimal(f"{digits}.{'9' * type_.scale}"), type_)
    return f"CASE WHEN {value} > {most} OR {value} < -{most} THEN {_OUT_OF_RANGE} ELSE {value} END"


def _arithmetic(call: ir.Call, args: list[str]) -> str:
    if call.type.kind is Kind.DECIMAL:
        args = [_cast(arg, call.type) for arg in args]
    elif call.type.kind not in ir.INTEGERS or any(arg.type != call.type for arg in call.args):
        raise EngineRefused("arithmetic of this type")
    return _cast(f"({args[0]} {call.op.value} {args[1]})", call.type)


def _product(call: ir.Call, args: list[str]) -> str:
    if call.type.kind is not Kind.DECIMAL:
        return _arithmetic(call, args)
    if call.type.scale != sum(arg.type.scale for arg in call.args):
        raise EngineRefused("a product of another scale")
    return _cast(f"({args[0]} * {args[1]})", call.type)


def _divided(call: ir.Call, args: list[str]) -> str:
    if call.type.kind not in ir.INTEGERS or any(arg.type != call.type for arg in call.args):
        raise EngineRefused("a division of this type")
    operator = "//" if call.op is Op.DIVIDE_INT else "%"
    return f"CASE WHEN {args[1]} = 0 THEN error('division by zero') ELSE {args[0]} {operator} {args[1]} END"


def _converted(call: ir.Call, args: list[str]) -> str:
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


def _shifted(_: ir.Call, args: list[str]) -> str:
    day = f"({args[0]} + {args[1]})"
    return f"CASE WHEN {day} BETWEEN {_FIRST} AND {_LAST} OR {day} IS NULL THEN {day} ELSE {_OUT_OF_RANGE} END"


def _truncated(call: ir.Call, args: list[str]) -> str:
    unit = call.args[1].value if isinstance(call.args[1], ir.Literal) else None
    if not isinstance(unit, str) or unit not in _UNITS or call.args[0].type != ir.TIMESTAMP:
        raise EngineRefused("date_trunc with these arguments")
    return f"date_trunc({string(unit)}, {args[0]})"


def _like(call: ir.Call, args: list[str]) -> str:
    pattern = call.args[1].value if isinstance(call.args[1], ir.Literal) else None
    if not isinstance(pattern, str) or "\\" in pattern:
        raise EngineRefused("LIKE with such a pattern")
    return f"({args[0]} LIKE {string(pattern)})"


def _substring(call: ir.Call, args: list[str]) -> str:
    numbers = [arg.value for arg in call.args[1:] if isinstance(arg, ir.Literal) and isinstance(arg.value, int)]
    if len(numbers) != len(call.args) - 1:
        raise EngineRefused("substring with these arguments")
    return f"substring({', '.join([args[0], *map(str, numbers)])})"


def _plain(form: str) -> Callable[[ir.Call, list[str]], str]:
    return lambda _, args: form.format(*args)


def _typed(form: str) -> Callable[[ir.Call, list[str]], str]:
    return lambda call, args: _cast(form.format(*args), call.type)


def _listed(name: str) -> Callable[[ir.Call, list[str]], str]:
    return lambda _, args: f"{name}({', '.join(args)})"


_CALLS: Mapping[Op, Callable[[ir.Call, list[str]], str]] = {
    Op.ADD: _arithmetic,
    Op.SUBTRACT: _arithmetic,
    Op.MULTIPLY: _product,
    Op.DIVIDE_INT: _divided,
    Op.MODULO: _divided,
    Op.NEGATE: _typed("(- {})"),
    Op.ABS: _typed("abs({})"),
    Op.ROUND: _converted,
    Op.NOT: _plain("(NOT {})"),
    Op.IS_NULL: _plain("({} IS NULL)"),
    Op.IS_TRUE: _plain("({} IS NOT DISTINCT FROM true)"),
    Op.IS_FALSE: _plain("({} IS NOT DISTINCT FROM false)"),
    Op.COALESCE: _listed("coalesce"),
    Op.GREATEST: _listed("greatest"),
    Op.LEAST: _listed("least"),
    Op.LIKE: _like,
    Op.CONCAT: _plain("({} || {})"),
    Op.SUBSTRING: _substring,
    Op.LENGTH: _typed("length({})"),
    Op.RTRIM: _plain("rtrim({}, ' ')"),
    **{op: _typed(f"{name}({{}})") for op, name in _FIELDS.items()},
    Op.ADD_DAYS: _shifted,
    Op.DAYS_BETWEEN: _typed("({} - {})"),
    Op.TRUNCATE: _truncated,
    Op.CAST: _converted,
}
