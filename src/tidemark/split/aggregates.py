"""Aggregate calls: what an engine computes for each, and how PostgreSQL finishes it from that.

`avg` is the quotient of an exact sum and a count, which is how PostgreSQL computes it. A sum of numerics whose display
scale varies is accompanied by the greatest scale of its values, which is the scale of PostgreSQL's sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidemark.errors import Unproven
from tidemark.split import ir
from tidemark.split.expressions import Expressions
from tidemark.split.facts import Function, SessionFacts
from tidemark.split.nodes import Node, kind_of, reading, strings, walk
from tidemark.split.operators import Operators
from tidemark.split.parse import Name
from tidemark.split.typed import Typed, as_integer, as_numeric, scale_expr
from tidemark.split.types import BOOL, BPCHAR, FLOATS, INT2, INT4, INT8, INTEGERS, NUMERIC, TEXT, VARCHAR, SqlType

NAMES = frozenset({"count", "sum", "avg", "min", "max", "bool_and", "bool_or", "every"})
Add = Callable[[ir.AggregateCall], ir.TypedColumn]  # adds an aggregate to the group, and returns its column


@dataclass(frozen=True, slots=True)
class FinishedAggregate:
    """An aggregate: its value, or for `avg` the sum and the count of which it is the quotient."""

    name: str
    value: Typed
    count: Typed | None = None


def is_aggregate(node: Node, functions: Mapping[Name, Function]) -> bool:
    """Whether a node is a call of an aggregate that groups rows, not one over a window."""
    if kind_of(node) != "FuncCall" or node.HasField("over"):
        return False
    function = functions[strings([each.string for each in node.funcname])]
    return "a" in function.kinds


def aggregated(node: Node, expressions: Expressions, add: Add) -> FinishedAggregate:
    """Analyze an aggregate call, with arguments in the scope below; `add` is called for what has to be computed."""
    with reading(node) as fields:
        name = strings(fields["funcname"])
        fields.enum("funcformat")
        if name[-1] not in NAMES or not expressions.facts.functions[name].builtin:
            raise Unproven(f"the aggregate {name[-1]}")
        args, star, distinct = fields["args"], fields["agg_star"], fields["agg_distinct"]
        where = fields["agg_filter"]
        condition = expressions.condition(where) if where is not None else None
        if star:
            if name[-1] != "count":
                raise Unproven("a star in another aggregate than count")
            return FinishedAggregate("count", _count(ir.Aggregate.COUNT_ROWS, None, condition, add))
        if len(args) != 1:
            raise Unproven(f"the aggregate {name[-1]} with {len(args)} arguments")
        value = expressions.value(args[0])
    return _Aggregates(expressions.operators, condition, add).finished(name[-1], value, distinct=distinct)


class _Aggregates:
    def __init__(self, operators: Operators, where: ir.Expr | None, add: Add) -> None:
        self._operators, self._where, self._add = operators, where, add

    def finished(self, name: str, value: Typed, *, distinct: bool) -> FinishedAggregate:
        if name == "count":
            return FinishedAggregate(name, self._counted(value, distinct=distinct))
        if name == "sum":
            return FinishedAggregate(name, self._sum(value, distinct=distinct))
        if name == "avg":
            count = self._counted(value, distinct=distinct)
            return FinishedAggregate(name, self._sum(value, distinct=distinct), count)
        return FinishedAggregate(name, self._extreme(name, value))

    def _counted(self, value: Typed, *, distinct: bool) -> Typed:
        if not distinct:
            return _count(ir.Aggregate.COUNT, value.expr, self._where, self._add)
        if value.oid == BPCHAR:
            value = Typed(ir.Call(ir.Op.RTRIM, (value.computed().expr,), ir.TEXT), value.type)
        elif value.oid != NUMERIC or isinstance(value.computed().scale, int):
            self._operators.require_groupable(value)
        return _count(ir.Aggregate.COUNT_DISTINCT, value.expr, self._where, self._add)

    def _sum(self, value: Typed, *, distinct: bool) -> Typed:
        aggregate = ir.Aggregate.SUM_DISTINCT if distinct else ir.Aggregate.SUM
        if value.oid in (INT2, INT4):
            call = ir.AggregateCall(aggregate, as_integer(value, INT8).expr, ir.INT8, self._where)
            return Typed(self._add(call), SqlType(INT8))
        if value.oid in FLOATS or value.oid not in (*INTEGERS, NUMERIC):
            raise Unproven("a sum of this type, which depends on the order of rows")
        value = as_numeric(value)
        if isinstance(value.expr, ir.Scalar):
            raise Unproven("a sum of the result of a scalar subquery")
        if distinct and not isinstance(value.scale, int):
            raise Unproven("a sum of distinct numerics of different scales")
        type_ = ir.decimal(ir.MOST_DIGITS, value.data.scale)
        found = self._add(ir.AggregateCall(aggregate, value.expr, type_, self._where))
        return Typed(found, SqlType(NUMERIC), self._greatest_scale(value))

    def _greatest_scale(self, value: Typed) -> int | ir.Expr:
        if isinstance(value.scale, int):
            return value.scale
        is_null = ir.Call(ir.Op.IS_NULL, (value.expr,), ir.BOOL)
        scale = ir.Case(((is_null, ir.Constant(None, ir.INT4)),), scale_expr(value.scale), ir.INT4)
        return self._add(ir.AggregateCall(ir.Aggregate.MAX, scale, ir.INT4, self._where))

    def _extreme(self, name: str, value: Typed) -> Typed:
        if name in ("min", "max"):
            self._operators.require_ordered(value)
            if value.oid == BPCHAR:  # its order ignores trailing blanks
                raise Unproven("MIN or MAX of char")
            oid = TEXT if value.oid == VARCHAR else value.oid  # the function for varchar is that of text
            type_ = SqlType(oid, -1, value.type.collation)
        elif value.oid == BOOL:
            type_ = SqlType(BOOL)
        else:
            raise Unproven(f"{name} of this type")
        aggregate = {
            "min": ir.Aggregate.MIN,
            "max": ir.Aggregate.MAX,
            "bool_or": ir.Aggregate.BOOL_OR,
        }.get(name, ir.Aggregate.BOOL_AND)
        return Typed(self._add(ir.AggregateCall(aggregate, value.expr, value.data, self._where)), type_, value.scale)


def _count(aggregate: ir.Aggregate, arg: ir.Expr | None, where: ir.Expr | None, add: Add) -> Typed:
    return Typed(add(ir.AggregateCall(aggregate, arg, ir.INT8, where)), SqlType(INT8))


def has_aggregates(nodes: list[Node], facts: SessionFacts) -> bool:
    """Whether an expression contains an aggregate that is not inside of a subquery."""
    inside = (each for node in nodes for each in walk(node, lambda inner: kind_of(inner) != "SubLink"))
    return any(is_aggregate(each, facts.functions) for each in inside)
