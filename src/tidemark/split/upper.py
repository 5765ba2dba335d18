"""What stands above groups: expressions of PostgreSQL over the keys and aggregates that a bottom has computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidemark.errors import Unproven
from tidemark.split import ir
from tidemark.split.aggregates import is_aggregate
from tidemark.split.context import Context
from tidemark.split.core import Core
from tidemark.split.grouped import Groups
from tidemark.split.nodes import Node, column_ref, from_sql, kind_of, replaced, unwrapped, walk, wrapped
from tidemark.split.typed import Typed
from tidemark.split.types import NUMERIC, SqlType

Change = Callable[[Node], Node | None]
_EXPRESSIONS = frozenset(
    {
        *("ColumnRef", "A_Expr", "BoolExpr", "NullTest", "BooleanTest", "CaseExpr", "CoalesceExpr", "MinMaxExpr"),
        *("TypeCast", "FuncCall"),
    }
)


class Upper:
    """What stands above the groups of a block: keys and aggregates are columns of the bottom."""

    def __init__(self, context: Context, core: Core, alias: str, sublink: Callable[[Node, Change], Node]) -> None:
        self._context, self._core, self.alias, self._sublink = context, core, alias, sublink
        self.groups = Groups(context, core.expressions)
        self.values: dict[str, Typed] = {}

    @property
    def relation(self) -> ir.Group:
        """The groups; everything above them must have been rewritten."""
        return self.groups.relation(self._core.relation)

    def change(self, node: Node) -> Node | None:
        """Return what stands in place of a node; None for a node whose parts are changed."""
        kind = kind_of(node)
        if kind == "SubLink":
            return self._sublink(node, self.change)
        if kind in _EXPRESSIONS and not self._context.constants.is_known(node):
            found = self.groups.key_of(node)
            if found is not None:
                return self._output(found)
        if is_aggregate(node, self._context.facts.functions):
            return self._aggregate(node)
        if kind == "ColumnRef":
            return self._output(self.groups.add_key(self._core.expressions.typed(node)))
        if kind == "GroupingFunc":
            return self._grouping()
        return None

    def _grouping(self) -> Node | None:
        raise Unproven("GROUPING without grouping sets")

    def _aggregate(self, node: Node) -> Node:
        finished = self.groups.aggregate(node)
        if finished.count is None:
            return self._output(finished.value)
        return _quotient(self._numeric(finished.value), self._numeric(finished.count))

    def _numeric(self, value: Typed) -> Node:
        """Return an integer column as a numeric: its array is of numerics."""
        return self._output(value if value.oid == NUMERIC else Typed(value.expr, SqlType(NUMERIC), 0))

    def _output(self, value: Typed) -> Node:
        assert isinstance(value.expr, ir.TypedColumn)  # noqa: S101  a key or an aggregate
        name = f"{value.expr.name}_{value.oid}"  # a sum is an int8, and a numeric for an average
        self.values[name] = value
        return column_ref(self.alias, name)


class UpperAgain(Upper):
    """What stands above groups that PostgreSQL groups again: aggregates of the aggregates."""

    def add_key(self, node: Node) -> None:
        """Add an item of GROUP BY: itself, or the columns in it."""
        try:
            self.groups.add_key(self._core.expressions.value(node))
        except Unproven:
            for each in walk(node):
                if kind_of(each) == "SubLink":
                    raise
                if kind_of(each) == "ColumnRef":
                    self.groups.add_key(self._core.expressions.typed(each))

    def _grouping(self) -> Node | None:
        return None

    def _aggregate(self, node: Node) -> Node:
        if node.agg_distinct:
            raise Unproven("an aggregate of distinct values in groups of groups")
        finished = self.groups.aggregate(node)
        if finished.count is not None:
            total, count = self._numeric(finished.value), self._numeric(finished.count)
            return _quotient(_filled("pg_catalog.sum(a)", total), _filled("pg_catalog.sum(a)", count))
        column = self._output(finished.value)
        if finished.name == "count":
            return _filled("COALESCE(pg_catalog.sum(a), 0)::pg_catalog.int8", column)
        if finished.name == "sum":
            as_int8 = "" if finished.value.oid == NUMERIC else "::pg_catalog.int8"
            return _filled(f"pg_catalog.sum(a){as_int8}", column)
        return _filled(f"pg_catalog.{finished.name}(a)", column)


def _filled(expression: str, column: Node) -> Node:
    """Return an expression with a column in place of `a`."""
    return replaced(from_sql(expression), lambda node: column if kind_of(node) == "ColumnRef" else None)


def grouped_items(node: Node) -> Iterable[Node]:
    """Yield the expressions of an item of GROUP BY."""
    if kind_of(node) == "GroupingSet":
        for each in node.content:
            yield from grouped_items(unwrapped(each))
    elif kind_of(node) == "RowExpr":
        for each in node.args:
            yield from grouped_items(unwrapped(each))
    elif kind_of(node) == "List":
        for each in node.items:
            yield from grouped_items(unwrapped(each))
    else:
        yield node


def _quotient(total: Node, count: Node) -> Node:
    """Return the division that `avg` ends with."""
    node = from_sql("a OPERATOR(pg_catalog./) b")
    node.lexpr.CopyFrom(wrapped(total))
    node.rexpr.CopyFrom(wrapped(count))
    return node
