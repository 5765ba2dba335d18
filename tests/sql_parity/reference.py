"""An engine for tests: PostgreSQL computes the bottoms, in a session of its own, from the tables of the source.

The tree is printed as its documentation reads, with each type written out, and texts compared by their bytes. So a
difference is one of the split and not of an engine, and thousands of statements take minutes. Like a mirror, it refuses
values that have no form in the lake's types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow as pa

from tidemark.engines import MOST_ROWS
from tidemark.errors import EngineRefused
from tidemark.split import Facts, ir
from tidemark.split.ir import Kind, Op

TYPES = {
    Kind.BOOL: ("bool", pa.bool_()),
    Kind.INT2: ("int2", pa.int16()),
    Kind.INT4: ("int4", pa.int32()),
    Kind.INT8: ("int8", pa.int64()),
    Kind.FLOAT4: ("float4", pa.float32()),
    Kind.FLOAT8: ("float8", pa.float64()),
    Kind.TEXT: ("text", pa.string()),
    Kind.BINARY: ("bytea", pa.binary()),
    Kind.DATE: ("date", pa.date32()),
    Kind.TIMESTAMP: ("timestamp", pa.timestamp("us")),
    Kind.TIMESTAMPTZ: ("timestamptz", pa.timestamp("us", "UTC")),
}
JOINS = {
    ir.JoinKind.INNER: "inner join",
    ir.JoinKind.LEFT: "left join",
    ir.JoinKind.RIGHT: "right join",
    ir.JoinKind.FULL: "full join",
}
PARTS = {
    Op.YEAR: "year",
    Op.QUARTER: "quarter",
    Op.MONTH: "month",
    Op.DAY: "day",
    Op.HOUR: "hour",
    Op.MINUTE: "minute",
    Op.DAY_OF_WEEK: "dow",
    Op.DAY_OF_YEAR: "doy",
}
INFIX = {
    **{op: op.value for op in (Op.ADD, Op.SUBTRACT, Op.MULTIPLY, Op.MODULO, Op.AND, Op.OR, Op.LIKE, Op.CONCAT)},
    **{op: op.value for op in (Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE, Op.IS_DISTINCT)},
    Op.DIVIDE_INT: "/",
    Op.ADD_DAYS: "+",
    Op.DAYS_BETWEEN: "-",
}
FORMS = {
    Op.NEGATE: "(- {})",
    Op.ABS: "abs({})",
    Op.NOT: "(not {})",
    Op.IS_NULL: "({} is null)",
    Op.IS_TRUE: "({} is true)",
    Op.IS_FALSE: "({} is false)",
    Op.LENGTH: "char_length({})",
    Op.RTRIM: "rtrim({}, ' ')",
    Op.SUBSTRING: "substring({}, {}, {})",
    Op.TRUNCATE: "date_trunc({1}, {0})",
    Op.QUOTIENT_SCALE: "scale({0} / {1})",
    Op.QUOTIENT: "({0} / {1} + 0 * (1 / (scale({0} / {1}) <= 20)::int))::numeric(38,20)",  # an error for more digits
}
SETTINGS = "-c timezone=UTC -c search_path=pg_catalog -c statement_timeout=60s"
OUT_OF_RANGE = {
    Kind.DATE: "not ({0} >= '0001-01-01' and {0} <= '9999-12-31')",
    Kind.TIMESTAMP: "not ({0} >= '0001-01-01' and {0} < '10000-01-01')",
    Kind.TIMESTAMPTZ: "not ({0} >= '0001-01-01 00:00:00+00' and {0} < '10000-01-01 00:00:00+00')",
    Kind.DECIMAL: "{0} = 'NaN'",
}


class PostgresEngine:
    """Runs bottoms in a session of the source; the tables are those that the facts name."""

    def __init__(self, connection: psycopg.Connection[Any], facts: Facts) -> None:
        self._connection, self._facts = connection, facts

    def run(self, bottom: ir.Bottom, most_rows: int = MOST_ROWS) -> pa.Table:
        """Return the rows; refuse an error of PostgreSQL, as an engine refuses an overflow."""
        self._require_in_range(bottom.relation)
        names = ", ".join(column.name for column in bottom.columns)
        text = f"select {names} from {_Printer(self._facts).nested(bottom.relation)} limit {most_rows + 1}"
        try:
            rows = self._connection.execute(text.encode()).fetchall()
        except psycopg.Error as error:
            raise EngineRefused(f"PostgreSQL did not compute the statement: {error.sqlstate}") from error
        if len(rows) > most_rows:
            raise EngineRefused("more rows than go up")
        columns = list(zip(*rows, strict=True)) or [() for _ in bottom.columns]
        arrays = [
            pa.array(values, arrow_type(each.type)) for values, each in zip(columns, bottom.columns, strict=False)
        ]
        return pa.table(arrays, [column.name for column in bottom.columns])

    def cancel(self) -> None:
        """Cancel what runs now, from another thread."""
        self._connection.cancel_safe()

    def _require_in_range(self, relation: ir.Relation) -> None:
        for scan in ir.scans(relation):
            table = _table(self._facts, scan.table)
            for attnum, column in scan.columns:
                if column.type.kind in OUT_OF_RANGE:
                    odd = OUT_OF_RANGE[column.type.kind].format(_quoted(table.names[attnum]))
                    found = self._connection.execute(f"select 1 from {table.name} where {odd} limit 1".encode())
                    if found.fetchone():
                        raise EngineRefused("a value that the type of the lake cannot hold")


class _Table:
    def __init__(self, relation: Any) -> None:
        self.name = f"{_quoted(relation.schema)}.{_quoted(relation.name)}"
        self.names = {column.attnum: column.name for column in relation.columns}
        self.types = {column.attnum: (column.type, column.typmod) for column in relation.columns}


def _table(facts: Facts, oid: int) -> _Table:
    return _Table(next(each for each in facts.relations.values() if each is not None and each.oid == oid))


class _Printer:
    def __init__(self, facts: Facts) -> None:
        self._facts, self._aliases = facts, 0
        self._relations: dict[type, Callable[[Any], str]] = {
            ir.Scan: self._scan,
            ir.OneRow: lambda _: "select true as one_row",
            ir.Filter: lambda node: f"select * from {self.nested(node.relation)} where {self.expr(node.condition)}",
            ir.Join: self._join,
            ir.Project: self._project,
            ir.Group: self._group,
            ir.Distinct: lambda node: f"select distinct * from {self.nested(node.relation)}",
            ir.Union: self._union,
        }

    def nested(self, relation: ir.Relation) -> str:
        text = self._relations[type(relation)](relation)
        self._aliases += 1
        return f"({text}) r{self._aliases}"

    def _scan(self, scan: ir.Scan) -> str:
        table, columns = _table(self._facts, scan.table), []
        for attnum, column in scan.columns:
            oid, typmod = table.types[attnum]
            read = _quoted(table.names[attnum])
            read = f"rpad({read}::text, {typmod - 4})" if oid == 1042 and typmod > 4 else read
            columns.append(f"{_typed(read, column.type)} as {column.name}")
        return f"select {', '.join(columns) or 'true as any_row'} from only {table.name}"

    def _join(self, join: ir.Join) -> str:
        left, right = self.nested(join.left), self.nested(join.right)
        condition = "true" if join.condition is None else self.expr(join.condition)
        if join.kind in JOINS:
            return f"select * from {left} {JOINS[join.kind]} {right} on {condition}"
        negated = "not " if join.kind is ir.JoinKind.ANTI else ""
        return f"select * from {left} where {negated}exists (select from {right} where {condition})"

    def _project(self, node: ir.Project) -> str:
        columns = [f"{self.expr(expr)} as {column.name}" for column, expr in node.columns]
        return f"select {', '.join(columns) or 'true as any_row'} from {self.nested(node.relation)}"

    def _group(self, node: ir.Group) -> str:
        keys = [f"{self.expr(expr)} as {column.name}" for column, expr in node.keys]
        calls = [f"{self._aggregate(call)} as {column.name}" for column, call in node.aggregates]
        by = f" group by {', '.join(str(at) for at in range(1, len(keys) + 1))}" if keys else ""
        return f"select {', '.join(keys + calls)} from {self.nested(node.relation)}{by}"

    def _aggregate(self, call: ir.AggregateCall) -> str:
        name, _, distinct = call.aggregate.value.partition("(")
        arg = "*" if call.arg is None else self.expr(call.arg)
        where = f" filter (where {self.expr(call.where)})" if call.where is not None else ""
        inside = f"distinct {arg}" if distinct.startswith("distinct") else arg
        return _typed(f"{name}({inside}){where}", call.type)

    def _union(self, node: ir.Union) -> str:
        parts = []
        for relation, columns in node.parts:
            pairs = zip(columns, node.columns, strict=True)
            parts.append(
                f"select {', '.join(f'{column.name} as {result.name}' for column, result in pairs)} "
                f"from {self.nested(relation)}"
            )
        return " union all ".join(parts)

    def expr(self, node: ir.Expr) -> str:
        if isinstance(node, ir.Column):
            return node.name
        if isinstance(node, ir.Literal):
            return _literal(node)
        if isinstance(node, ir.Case):
            whens = " ".join(f"when {self.expr(when)} then {self.expr(then)}" for when, then in node.whens)
            return f"case {whens} else {self.expr(node.otherwise)} end"
        if isinstance(node, ir.In):
            return f"({self.expr(node.arg)} in ({', '.join(map(self.expr, node.values))}))"
        if isinstance(node, ir.Exists):
            return f"exists (select from {self.nested(node.relation)} where {self.expr(node.condition)})"
        assert isinstance(node, ir.Call), node
        return self._call(node)

    def _call(self, call: ir.Call) -> str:
        args = [self.expr(each) for each in call.args]
        if call.op in INFIX:
            text = f"({f' {INFIX[call.op]} '.join(args)})"
            return _typed(text, call.type) if call.type.kind is Kind.DECIMAL else text
        if call.op in PARTS:
            return f"extract({PARTS[call.op]} from {args[0]})::int4"
        if call.op in FORMS:
            return FORMS[call.op].format(*args)
        if call.op in (Op.COALESCE, Op.GREATEST, Op.LEAST):
            return f"{call.op.value}({', '.join(args)})"
        assert call.op in (Op.CAST, Op.ROUND), call.op
        return _typed(args[0], call.type)


def type_name(type_: ir.DataType) -> str:
    """The name of a type in PostgreSQL."""
    if type_.kind is Kind.DECIMAL:
        return f"numeric({type_.precision},{type_.scale})"
    return TYPES[type_.kind][0]


def arrow_type(type_: ir.DataType) -> pa.DataType:
    """The type of a column that an engine returns."""
    if type_.kind is Kind.DECIMAL:
        return pa.decimal128(type_.precision, type_.scale)
    return TYPES[type_.kind][1]


def _typed(text: str, type_: ir.DataType) -> str:
    collated = ' collate "C"' if type_.kind is Kind.TEXT else ""
    return f"({text})::{type_name(type_)}{collated}"


def _literal(node: ir.Literal) -> str:
    value = node.value
    if value is None:
        return _typed("null", node.type)
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'::bytea"
    text = f"{value:f}" if node.type.kind is Kind.DECIMAL else str(value)
    return _typed("'" + text.replace("'", "''") + "'", node.type)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
