"""A bottom as a text in SQL: its relations, and what all engines have in common. Every type is written out. Pure.

An engine's own printer is a subclass with its names of types, its literals, and a form for each operation that is not
written in the same way by all engines. What has no form is refused.
"""

# ruff: noqa: S608  the texts are made of trees, whose names and literals are quoted

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import ClassVar

from tidemark.errors import EngineRefused
from tidemark.split import ir
from tidemark.split.ir import Expr, JoinKind, Kind, Op, Relation, TypedColumn

_COMPARED = frozenset({Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE, Op.IS_DISTINCT})
_LISTED = frozenset({Op.AND, Op.OR})
_NOTHING = "TRUE AS nothing"  # instead of no columns


class BottomPrinter(ABC):
    """Prints one bottom. In a form, `{0}` is the first argument, `{all}` are all, and `{type}` is the result's type."""

    types: ClassVar[Mapping[Kind, str]]
    forms: ClassVar[Mapping[Op, str]] = MappingProxyType(
        {
            Op.NOT: "(NOT {0})",
            Op.IS_NULL: "({0} IS NULL)",
            Op.IS_TRUE: "({0} IS TRUE)",
            Op.IS_FALSE: "({0} IS FALSE)",
            Op.COALESCE: "coalesce({all})",
            Op.GREATEST: "greatest({all})",
            Op.LEAST: "least({all})",
            Op.CONCAT: "({0} || {1})",
        }
    )
    joins: ClassVar[Mapping[JoinKind, str]] = MappingProxyType(
        {
            JoinKind.INNER: "JOIN",
            JoinKind.LEFT: "LEFT JOIN",
            JoinKind.RIGHT: "RIGHT JOIN",
            JoinKind.FULL: "FULL JOIN",
            JoinKind.SEMI: "LEFT SEMI JOIN",
            JoinKind.ANTI: "LEFT ANTI JOIN",
        }
    )

    def __init__(self) -> None:
        self._aliases = count(1)

    @abstractmethod
    def stored(self, scan: ir.Scan) -> tuple[str, Iterable[str]]:
        """Return what a scan reads from, and the text of each of its columns."""

    @abstractmethod
    def literal(self, node: ir.Constant) -> str:
        """Return a constant."""

    def bottom(self, bottom: ir.Bottom) -> str:
        """Return a query with the columns of the bottom in order."""
        return f"SELECT {_list(bottom.columns)} FROM {self.nested(bottom.relation)}"

    def nested(self, relation: Relation) -> str:
        """Return a relation in parentheses, with an alias."""
        return f"({self.relation(relation)}) AS r{next(self._aliases)}"

    def relation(self, relation: Relation) -> str:
        """Return a relation as a query whose columns have their names in the tree."""
        if isinstance(relation, ir.OneRow):
            return f"SELECT {_NOTHING}"
        if isinstance(relation, ir.Scan):
            source, texts = self.stored(relation)
            return f"SELECT {_named((c for _, c in relation.columns), texts)} FROM {source}"
        if isinstance(relation, ir.Filter):
            rows = f"SELECT {_list(ir.columns_of(relation))} FROM {self.nested(relation.relation)}"
            return f"{rows} WHERE {self.expr(relation.condition)}"
        if isinstance(relation, ir.Join):
            return self.join(relation)
        if isinstance(relation, ir.Project):
            values = _named((c for c, _ in relation.columns), (self.expr(expr) for _, expr in relation.columns))
            return f"SELECT {values} FROM {self.nested(relation.relation)}"
        if isinstance(relation, ir.Group):
            return self._group(relation)
        if isinstance(relation, ir.Distinct):
            return f"SELECT DISTINCT {_list(ir.columns_of(relation))} FROM {self.nested(relation.relation)}"
        return self._union(relation)

    def join(self, join: ir.Join) -> str:
        """Return a join."""
        condition = self.expr(join.condition) if join.condition is not None else "TRUE"
        sides = f"{self.nested(join.left)} {self.joins[join.kind]} {self.nested(join.right)}"
        return f"SELECT {_list(ir.columns_of(join))} FROM {sides} ON {condition}"

    def _group(self, group: ir.Group) -> str:
        """Arguments are computed below the aggregates, so that a key is a column and never a number of a column."""
        values = [f"{self.expr(expr)} AS {column.name}" for column, expr in group.keys]
        results = [column.name for column, _ in group.keys]
        for column, call in group.aggregates:
            arg, where = f"{column.name}_of", f"{column.name}_where"
            values += [f"{self.expr(call.arg)} AS {arg}"] if call.arg is not None else []
            values += [f"{self.expr(call.where)} AS {where}"] if call.where is not None else []
            results.append(f"{self._aggregate(call, arg, where)} AS {column.name}")
        inner = f"SELECT {', '.join(values) or _NOTHING} FROM {self.nested(group.relation)}"
        by = f" GROUP BY {_list(column for column, _ in group.keys)}" if group.keys else ""
        return f"SELECT {', '.join(results) or _NOTHING} FROM ({inner}) AS r{next(self._aliases)}{by}"

    def _aggregate(self, call: ir.AggregateCall, arg: str, where: str) -> str:
        name, _, distinct = call.aggregate.value.partition("(")
        inside = "*" if call.arg is None else f"DISTINCT {arg}" if distinct.startswith("distinct") else arg
        filtered = f" FILTER (WHERE {where})" if call.where is not None else ""
        return self.aggregated(call, f"{name}({inside}){filtered}")

    def aggregated(self, call: ir.AggregateCall, text: str) -> str:
        """Return the value of an aggregate in the type of the tree."""
        return self.cast(text, call.type)

    def _union(self, union: ir.Union) -> str:
        parts = []
        for relation, columns in union.parts:
            if [column.type for column in columns] != [column.type for column in union.columns]:
                raise EngineRefused("the parts of UNION ALL have different types")
            values = _named(union.columns, (column.name for column in columns))
            parts.append(f"SELECT {values} FROM {self.nested(relation)}")
        return " UNION ALL ".join(parts)

    def expr(self, node: Expr) -> str:
        """Return an expression."""
        if isinstance(node, ir.TypedColumn):
            return node.name
        if isinstance(node, ir.Constant):
            return self.literal(node)
        if isinstance(node, ir.Call):
            return self._call(node)
        if isinstance(node, ir.Case):
            whens = "".join(f" WHEN {self.expr(when)} THEN {self.expr(then)}" for when, then in node.whens)
            return f"CASE{whens} ELSE {self.expr(node.otherwise)} END"
        if isinstance(node, ir.In):
            arg, *values = self._alike((node.arg, *node.values))
            return f"({arg} IN ({', '.join(values)}))"
        if isinstance(node, ir.Exists):
            return f"EXISTS (SELECT 1 FROM {self.nested(node.relation)} WHERE {self.expr(node.condition)})"
        raise EngineRefused("a scalar subquery without its value")

    def _call(self, call: ir.Call) -> str:
        if call.op in _COMPARED:
            one, other = self._alike(call.args)
            return f"({one} {call.op.value.upper()} {other})"
        args = [self.expr(arg) for arg in call.args]
        if call.op in _LISTED:
            return f"({f' {call.op.value.upper()} '.join(args)})"
        return self.operation(call, args)

    def operation(self, call: ir.Call, args: Sequence[str]) -> str:
        """Return any other operation than a comparison, AND or OR."""
        if call.op not in self.forms:
            raise EngineRefused(f"the engine has no {call.op.value}")
        return self.forms[call.op].format(*args, all=", ".join(args), type=self.type_name(call.type))

    def _alike(self, args: Sequence[Expr]) -> list[str]:
        """Return arguments in one type: decimals of scalar subqueries have digits of their own.

        A value with more than 38 digits in this type is an error of the engine.
        """
        types = {arg.type for arg in args}
        if len(types) == 1:
            return [self.expr(arg) for arg in args]
        if any(each.kind is not Kind.DECIMAL for each in types):
            raise EngineRefused("values of different types")
        scale = max(each.scale for each in types)
        common = ir.decimal(max(each.precision - each.scale for each in types) + scale, scale)
        return [self.cast(self.expr(arg), common) for arg in args]

    def cast(self, text: str, type_: ir.DataType) -> str:
        """Return a value in another type."""
        return f"CAST({text} AS {self.type_name(type_)})"

    def type_name(self, type_: ir.DataType) -> str:
        """Return the name of a type."""
        if type_.kind is Kind.DECIMAL:
            return f"DECIMAL({type_.precision},{type_.scale})"
        return self.types[type_.kind]


def _list(columns: Iterable[TypedColumn]) -> str:
    return ", ".join(column.name for column in columns) or _NOTHING


def _named(columns: Iterable[TypedColumn], texts: Iterable[str]) -> str:
    return ", ".join(f"{text} AS {column.name}" for column, text in zip(columns, texts, strict=True)) or _NOTHING
