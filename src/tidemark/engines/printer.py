"""A bottom as a text in SQL, with what most engines have in common. Every type is written out.

An engine's own printer is a subclass with its names of types and functions, its literals, and the operations that it
writes in another way.
"""

# ruff: noqa: S608  the texts are made of trees, whose names and literals are quoted

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from tidemark.errors import EngineRefused
from tidemark.split import ir
from tidemark.split.ir import Kind, Op

_COMPARED = frozenset({Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE})
_INFIX = frozenset({Op.ADD, Op.SUBTRACT, Op.MULTIPLY, Op.MODULO, Op.AND, Op.OR, Op.LIKE, Op.CONCAT, *_COMPARED})
_POSTFIX = frozenset({Op.IS_NULL, Op.IS_TRUE, Op.IS_FALSE})


class SqlPrinter:
    """Prints bottoms. `tables` has the text that names each table, and the names of its columns by attnum."""

    types: ClassVar[Mapping[Kind, str]]
    functions: ClassVar[Mapping[Op, str]]

    def __init__(self, tables: Mapping[int, tuple[str, Mapping[int, str]]]) -> None:
        self._tables = tables
        self._aliases = 0
        self._relations: dict[type, Callable[..., str]] = {
            ir.Scan: self._scan,
            ir.OneRow: lambda _: "SELECT TRUE AS one_row",
            ir.Filter: self._filter,
            ir.Join: self.join,
            ir.Project: self._project,
            ir.Group: self._group,
            ir.Distinct: lambda node: f"SELECT DISTINCT * FROM {self.nested(node.relation)}",
            ir.Union: self._union,
        }

    def bottom(self, bottom: ir.Bottom) -> str:
        """Return the text of a query with the columns of the bottom in order."""
        names = ", ".join(column.name for column in bottom.columns)
        return f"SELECT {names} FROM {self.nested(bottom.relation)}"

    def nested(self, relation: ir.Relation) -> str:
        """Return a relation in parentheses, with an alias."""
        text = self._relations[type(relation)](relation)
        self._aliases += 1
        return f"({text}) AS r{self._aliases}"

    def _scan(self, scan: ir.Scan) -> str:
        table, names = self._tables[scan.table]
        columns = [f"{self.identifier(names[attnum])} AS {column.name}" for attnum, column in scan.columns]
        return f"SELECT {', '.join(columns) or 'TRUE AS any_row'} FROM {table}"

    def _filter(self, node: ir.Filter) -> str:
        return f"SELECT * FROM {self.nested(node.relation)} WHERE {self.expr(node.condition)}"

    def join(self, join: ir.Join) -> str:
        """Return a join."""
        left, right = self.nested(join.left), self.nested(join.right)
        if join.condition is None and join.kind is ir.JoinKind.INNER:
            return f"SELECT * FROM {left} CROSS JOIN {right}"
        condition = "TRUE" if join.condition is None else self.expr(join.condition)
        return f"SELECT * FROM {left} {_JOINS[join.kind]} JOIN {right} ON {condition}"

    def _project(self, node: ir.Project) -> str:
        columns = [f"{self.expr(expr)} AS {column.name}" for column, expr in node.columns]
        return f"SELECT {', '.join(columns) or 'TRUE AS any_row'} FROM {self.nested(node.relation)}"

    def _group(self, node: ir.Group) -> str:
        keys = [f"{self.expr(expr)} AS {column.name}" for column, expr in node.keys]
        aggregates = [f"{self._aggregate(call)} AS {column.name}" for column, call in node.aggregates]
        numbers = ", ".join(str(at) for at in range(1, len(keys) + 1))
        by = f" GROUP BY {numbers}" if keys else ""
        return f"SELECT {', '.join(keys + aggregates)} FROM {self.nested(node.relation)}{by}"

    def _aggregate(self, call: ir.AggregateCall) -> str:
        name, _, distinct = call.aggregate.value.partition("(")
        arg = "*" if call.arg is None else self.expr(call.arg)
        inside = f"DISTINCT {arg}" if distinct.startswith("distinct") else arg
        where = f" FILTER (WHERE {self.expr(call.where)})" if call.where is not None else ""
        return f"CAST({name}({inside}){where} AS {self.type_name(call.type)})"

    def _union(self, node: ir.Union) -> str:
        parts = []
        for relation, columns in node.parts:
            pairs = zip(columns, node.columns, strict=True)
            names = ", ".join(f"{column.name} AS {result.name}" for column, result in pairs)
            parts.append(f"SELECT {names} FROM {self.nested(relation)}")
        return " UNION ALL ".join(parts)

    def expr(self, node: ir.Expr) -> str:
        """Return an expression."""
        if isinstance(node, ir.Column):
            return node.name
        if isinstance(node, ir.Literal):
            return self.literal(node)
        if isinstance(node, ir.Call):
            return self._call(node)
        if isinstance(node, ir.Case):
            whens = " ".join(f"WHEN {self.expr(when)} THEN {self.expr(then)}" for when, then in node.whens)
            return f"CASE {whens} ELSE {self.expr(node.otherwise)} END"
        if isinstance(node, ir.In):
            return f"({self.expr(node.arg)} IN ({', '.join(map(self.expr, node.values))}))"
        if isinstance(node, ir.Exists):
            return f"EXISTS (SELECT 1 FROM {self.nested(node.relation)} WHERE {self.expr(node.condition)})"
        raise TypeError(f"{node} has no value yet")

    def _call(self, call: ir.Call) -> str:
        op, args = call.op, [self.expr(each) for each in call.args]
        if op in _COMPARED or op is Op.IS_DISTINCT:
            args = [self.expr(each) for each in _of_one_type(call.args)]
        if op in _INFIX:
            text = f"({f' {op.value} '.join(args)})"
            arithmetic = call.type.kind is Kind.DECIMAL
            return f"CAST({text} AS {self.type_name(call.type)})" if arithmetic else text
        if op in _POSTFIX:
            return f"({args[0]} {op.value})"
        if op in self.functions:
            return f"{self.functions[op]}({', '.join(args)})"
        return self.other(call, args)

    def other(self, call: ir.Call, args: list[str]) -> str:
        """Return an operation that is not a function or operator of the engine with the same name."""
        name = self.type_name(call.type)
        if call.op in (Op.CAST, Op.ROUND):
            return f"CAST({args[0]} AS {name})"
        if call.op is Op.NOT:
            return f"(NOT {args[0]})"
        if call.op is Op.NEGATE:
            return f"(- {args[0]})"
        raise TypeError(f"{call.op} is not printed")

    def type_name(self, type_: ir.DataType) -> str:
        """Return the name of a type."""
        if type_.kind is Kind.DECIMAL:
            return f"DECIMAL({type_.precision},{type_.scale})"
        return self.types[type_.kind]

    def literal(self, node: ir.Literal) -> str:
        """Return a constant."""
        raise NotImplementedError

    def identifier(self, name: str) -> str:
        """Return the name of a table's column."""
        raise NotImplementedError


_JOINS = {
    ir.JoinKind.INNER: "INNER",
    ir.JoinKind.LEFT: "LEFT OUTER",
    ir.JoinKind.RIGHT: "RIGHT OUTER",
    ir.JoinKind.FULL: "FULL OUTER",
    ir.JoinKind.SEMI: "LEFT SEMI",
    ir.JoinKind.ANTI: "LEFT ANTI",
}


def _of_one_type(args: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
    """Return decimals in one type; Spark would round digits away if they need more than 38."""
    types = [each.type for each in args]
    if types[0].kind is not Kind.DECIMAL or types[0] == types[1]:
        return args
    scale = max(each.scale for each in types)
    digits = max(each.precision - each.scale for each in types) + scale
    if digits > ir.MOST_DIGITS:
        raise EngineRefused("numerics of more than 38 digits are compared", "Run the statement at the source.")
    return tuple(ir.Call(Op.CAST, (each,), ir.decimal(digits, scale)) for each in args)
