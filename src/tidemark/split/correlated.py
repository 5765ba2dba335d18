"""A correlated scalar subquery with an aggregate, as a left join with its groups."""

from __future__ import annotations

from tidemark.errors import Unproven
from tidemark.split import ir
from tidemark.split.aggregates import FinishedAggregate
from tidemark.split.context import Context
from tidemark.split.core import Core
from tidemark.split.grouped import GroupedExpressions, Groups
from tidemark.split.nodes import Fields, Node
from tidemark.split.scope import Source
from tidemark.split.typed import Typed
from tidemark.split.types import UNKNOWN, SqlType

_KEY = SqlType(UNKNOWN)  # a key that no expression of the subquery equals


class _EmptyGroups(Groups):
    """Groups in which a row may find none: PostgreSQL's aggregates then see no rows, and a count is 0."""

    def aggregate(self, node: Node) -> FinishedAggregate:
        found = super().aggregate(node)
        return FinishedAggregate(
            found.name, _or_zero(found.value, found.name), found.count and _or_zero(found.count, "count")
        )


def joined_aggregate(select: Node, core: Core, apart: list[ir.Expr], outer: Source, context: Context) -> Typed:
    """Join the source around a subquery with the groups of the subquery, and return the subquery's value.

    The subquery has the columns around it only in conditions `inside = outside`: its groups are by these insides.
    """
    inside = ir.produced(core.relation)
    groups = _EmptyGroups(context, core.expressions)
    conditions = []
    for condition in apart:
        ours, theirs = _sides(condition, inside)
        column = context.column(ours.type)
        groups.keys[Typed(ours, _KEY)] = column
        conditions.append(ir.Call(ir.Op.EQ, (column, theirs), ir.BOOL))
    value = GroupedExpressions(groups).value(only_target(select))
    if not groups.aggregates or len(groups.keys) != len(apart):
        raise Unproven("a correlated subquery without an aggregate")
    relation = groups.relation(core.relation)
    outer.relation = ir.Join(ir.JoinKind.LEFT, outer.relation, relation, ir.conjunction(conditions))
    return value


def only_target(select: Node) -> Node:
    """Return the expression of the one result column of a subquery."""
    targets = Fields(select)["target_list"]
    if len(targets) != 1:
        raise Unproven("a subquery with several columns, or with none")
    value: Node = Fields(targets[0])["val"]
    return value


def _sides(condition: ir.Expr, inside: set[str]) -> tuple[ir.Expr, ir.Expr]:
    """Return the sides of an equality: the one of the subquery, and the one around it."""
    if not isinstance(condition, ir.Call) or condition.op is not ir.Op.EQ:
        raise Unproven("a correlated subquery with another condition than an equality")
    left, right = condition.args
    for ours, theirs in ((left, right), (right, left)):
        our_names = {each.name for each in ir.columns_in(ours)}
        their_names = {each.name for each in ir.columns_in(theirs)}
        if our_names and our_names <= inside and not their_names & inside:
            return ours, theirs
    raise Unproven("a correlated subquery with another condition than an equality")


def _or_zero(value: Typed, name: str) -> Typed:
    if name != "count":
        return value
    expr = ir.Call(ir.Op.COALESCE, (value.expr, ir.Constant(0, ir.INT8)), ir.INT8)
    return Typed(expr, value.type)
