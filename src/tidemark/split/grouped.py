"""Groups below: the keys and aggregates of a block, and expressions over them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemark.errors import Unproven
from tidemark.split import ir
from tidemark.split.aggregates import FinishedAggregate, aggregated, has_aggregates, is_aggregate
from tidemark.split.context import Context
from tidemark.split.core import Core
from tidemark.split.expressions import Expressions
from tidemark.split.facts import SessionFacts
from tidemark.split.nodes import Fields, Node, kind_of, reading, unwrapped
from tidemark.split.quotients import quotient
from tidemark.split.typed import Typed


@dataclass(slots=True)
class Groups:
    """The keys and aggregates of a group, each with its column; equal ones have the same column."""

    context: Context
    base: Expressions
    keys: dict[Typed, ir.TypedColumn] = field(default_factory=dict)
    aggregates: dict[ir.AggregateCall, ir.TypedColumn] = field(default_factory=dict)

    def add_key(self, value: Typed) -> Typed:
        """Add a key; the value of a group is that of any of its rows."""
        self.base.operators.require_groupable(value)
        if value not in self.keys:
            self.keys[value] = self.context.column(value.data)
        return Typed(self.keys[value], value.type, value.scale)

    def add(self, call: ir.AggregateCall) -> ir.TypedColumn:
        """Add an aggregate."""
        if call not in self.aggregates:
            self.aggregates[call] = self.context.column(call.type)
        return self.aggregates[call]

    def key_of(self, node: Node) -> Typed | None:
        """Return the key that an expression is equal to, or None."""
        try:
            value = self.base.typed(node)
        except Unproven:
            return None
        column = self.keys.get(value)
        return None if column is None else Typed(column, value.type, value.scale)

    def aggregate(self, node: Node) -> FinishedAggregate:
        """Return an aggregate call."""
        return aggregated(node, self.base, self.add)

    def relation(self, rows: ir.Relation) -> ir.Group:
        """Return the groups of these rows."""
        if not self.keys and not self.aggregates:  # HAVING alone: the tree has no form for one group of all rows
            raise Unproven("HAVING without GROUP BY and aggregates")
        keys = tuple((column, value.expr) for value, column in self.keys.items())
        return ir.Group(rows, keys, tuple((column, call) for call, column in self.aggregates.items()))


class GroupedExpressions(Expressions):
    """Expressions over the keys and aggregates of groups."""

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups.base.scope, groups.base.facts, groups.base.constants)
        self._groups = groups

    def typed(self, node: Node) -> Typed:
        """Return a key, the value of an aggregate, or an expression over these."""
        if self.constants.is_known(node):
            return self.constants.value(node)
        found = self._groups.key_of(node)
        if found is not None:
            return found
        if is_aggregate(node, self.facts.functions):
            return _value(self._groups.aggregate(node))
        if kind_of(node) == "ColumnRef":  # PostgreSQL accepts it if the key of its table determines it
            return self._groups.add_key(self._groups.base.typed(node))
        return super().typed(node)


def _value(finished: FinishedAggregate) -> Typed:
    return finished.value if finished.count is None else quotient(finished.value, finished.count)


@dataclass(slots=True)
class Grouping:
    """The groups of a block that is computed completely below."""

    core: Core
    groups: Groups
    expressions: Expressions
    having: Node | None

    @classmethod
    def of(cls, fields: Fields, targets: list[Node], core: Core, context: Context) -> Grouping | None:
        """Read GROUP BY and HAVING; None for a block without groups."""
        clause, having = fields["group_clause"], fields["having_clause"]
        nodes = [*targets, *([having] if having is not None else [])]
        if not clause and having is None and not has_aggregates(nodes, context.facts):
            return None
        groups = Groups(context, core.expressions)
        for node in clause:
            groups.add_key(core.expressions.value(grouped_node(node, targets, core)))
        return cls(core, groups, GroupedExpressions(groups), having)

    def relation(self) -> ir.Relation:
        """Return the groups for which HAVING is true; all expressions must have been analyzed before."""
        having = self.expressions.condition(self.having) if self.having is not None else None
        found = self.groups.relation(self.core.relation)
        return found if having is None else ir.Filter(found, having)


def is_grouped(select: Node, facts: SessionFacts) -> bool:
    """Whether the results of a SELECT are those of groups, so that the order of its rows means nothing."""
    results = [unwrapped(each) for each in select.target_list]
    return bool(select.group_clause) or select.HasField("having_clause") or has_aggregates(results, facts)


def grouped_node(node: Node, targets: list[Node], core: Core) -> Node:
    """Return the expression that an item of GROUP BY means: a position, a column, or the name of a result column."""
    if kind_of(node) == "A_Const":
        with reading(node) as fields:
            number = fields["ival"]
            if number is None or not 1 <= number.ival <= len(targets):
                raise Unproven("GROUP BY a constant that is no position")
            return Fields(targets[number.ival - 1])["val"]
    if kind_of(node) == "ColumnRef" and len(node.fields) == 1 and node.fields[0].WhichOneof("node") == "string":
        name = node.fields[0].string.sval
        if core.source.hides(name):
            raise Unproven(f"GROUP BY {name}, which may be the name of a column that is not read")
        if not any(name == each for each, _ in core.source.visible):
            found = [each for each in targets if each.name == name]
            if len(found) == 1:
                return Fields(found[0])["val"]
    if kind_of(node) == "GroupingSet":
        raise Unproven("GROUPING SETS below")
    return node
