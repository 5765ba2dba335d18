"""The top of a statement: query blocks in which what could be proven is replaced by the rows of bottoms.

A block is tried in this order. Its groups are computed below, and PostgreSQL gets a row for each. Or they are computed
below by finer keys, and PostgreSQL groups them again. Or the rows of FROM are computed below, as far as it is proven,
with the conditions that are proven; the others stay, and PostgreSQL does everything else.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from postgast import pg_query_pb2

from tidemark.errors import Unproven
from tidemark.split import ir
from tidemark.split.aggregates import has_aggregates
from tidemark.split.context import Context
from tidemark.split.core import Core
from tidemark.split.grouped import GroupedExpressions, grouped_node, is_grouped
from tidemark.split.naming import output_name
from tidemark.split.nodes import (
    Fields,
    Node,
    column_ref,
    key,
    kind_of,
    parsed,
    replaced,
    strings,
    unwrapped,
    walk,
    wrapped,
)
from tidemark.split.others import Names, group_nodes, names_of, no_type, require_clear, require_one_result, type_in
from tidemark.split.plan import Output, PlanPart, derived_table
from tidemark.split.relations import Relations
from tidemark.split.scope import NameScope
from tidemark.split.typed import Typed
from tidemark.split.types import SqlType
from tidemark.split.unordered import Unordered
from tidemark.split.upper import Change, Upper, UpperAgain, grouped_items

AnyUpper = TypeVar("AnyUpper", bound=Upper)
_CHOSEN = "LIMIT or DISTINCT ON in a subquery, which chooses among rows whose order is not complete"


@dataclass(slots=True)
class RewrittenBlock:
    """A block that is being rewritten: the columns of its bottom, and the block around it."""

    alias: str
    scope: NameScope | None
    outputs: dict[Typed, Typed] = field(default_factory=dict)
    outer: RewrittenBlock | None = None
    others: Mapping[str, Names] = field(default_factory=dict)  # the items of FROM that PostgreSQL joins
    is_grouped: bool = False  # its columns are not above the groups

    def renamed(self, parts: tuple[str, ...], context: Context) -> Node | None:
        """Return the column of the bottom for a name; None for a name that keeps its meaning."""
        if parts[0] == self.alias:  # a column of the bottom already, in place of a star
            return None
        found = self.scope.found(parts) if self.scope is not None else None
        if found is not None and self.is_grouped:
            raise Unproven("a subquery above the groups that names a column below them")
        if found is not None:
            return column_ref(self.alias, self.output(found, context))
        if self._is_of_others(parts):
            return None
        if self.outer is None:
            raise Unproven(f"the name {'.'.join(parts)} is no column of a mirrored table")
        return self.outer.renamed(parts, context)

    def _is_of_others(self, parts: tuple[str, ...]) -> bool:
        if len(parts) > 1 or parts[0] in self.others:  # of a table, or a whole row
            return parts[0] in self.others
        if self.outer is not None and any(names is None for names in self.others.values()):
            raise Unproven("a name of this block, or of one around it")
        return any(names is None or parts[0] in names for names in self.others.values())

    def output(self, value: Typed, context: Context) -> str:
        """Return the name of the column that has a value; the bottom computes it."""
        if value not in self.outputs:
            scale = value.scale if value.scale is None or isinstance(value.scale, int) else context.column(ir.INT4)
            self.outputs[value] = Typed(context.column(value.data), value.type, scale)
        expr = self.outputs[value].expr
        assert isinstance(expr, ir.TypedColumn)  # noqa: S101
        return expr.name


class Blocks:
    """Rewrites the blocks of one statement, and collects their bottoms."""

    def __init__(self, statement: Node, parameters: int) -> None:
        self.parts: list[PlanPart] = []
        self._first = parameters + 1
        blocks = [each for each in walk(statement) if kind_of(each) == "SelectStmt"]
        self._limited = any(_is_limited(each) and not each.sort_clause for each in blocks)
        self.reasons: list[str] = []

    def query(
        self, select: Node, context: Context, outer: RewrittenBlock | None = None, *, any_rows: bool = False
    ) -> Node:
        """Return a SELECT with everything in it that reads tables replaced.

        With `any_rows` it does not matter which rows LIMIT chooses: of the statement itself, and of EXISTS.
        """
        inside = context.with_ctes(select.with_clause if select.HasField("with_clause") else None)
        limits = [each for name in ("limit_count", "limit_offset") for each in walk(getattr(select, name))]
        if any(kind_of(each) == "SubLink" for each in limits):
            raise Unproven("a subquery in LIMIT")
        if select.locking_clause or select.HasField("into_clause") or select.values_lists:
            raise Unproven("FOR UPDATE, INTO or VALUES")
        if Fields(select).enum("op") != "SETOP_NONE":
            if _is_limited(select) and not any_rows:
                raise Unproven(_CHOSEN)
            is_union_all = Fields(select).enum("op") == "SETOP_UNION" and bool(select.all)
            if not is_union_all:
                require_one_result(select, inside)
            found = type(select)()
            found.CopyFrom(select)
            found.larg.CopyFrom(self.query(select.larg, inside, outer, any_rows=any_rows and is_union_all))
            found.rarg.CopyFrom(self.query(select.rarg, inside, outer, any_rows=any_rows and is_union_all))
        else:
            if _is_limited(select) and not any_rows:
                self._require_order(select, inside)
            found = self._block(select, inside, outer)
        self._keep_ctes(found, select, inside)
        return found

    def _keep_ctes(self, found: Node, select: Node, context: Context) -> None:
        """Keep the CTEs of a WITH that are still named, with their queries rewritten."""
        found.ClearField("with_clause")
        if not select.HasField("with_clause"):
            return
        kept: list[Node] = []
        for wrapper in reversed(select.with_clause.ctes):
            cte = wrapper.common_table_expr
            if any(cte.ctename in _names_in(each) for each in (found, *kept)):
                copy = type(cte)()
                copy.CopyFrom(cte)
                copy.ctequery.CopyFrom(wrapped(self.query(unwrapped(cte.ctequery), context.before(cte.ctename))))
                kept.append(copy)
        if kept:
            found.with_clause.ctes.extend(wrapped(each) for each in reversed(kept))

    def _block(self, select: Node, context: Context, outer: RewrittenBlock | None) -> Node:
        attempts = [self._rows]
        if select.group_clause or has_aggregates(_outputs_of(select), context.facts):
            attempts = [self._grouped, self._regrouped, self._rows]
        for attempt in attempts:
            before = len(self.parts)
            try:
                return attempt(select, context, outer)
            except Unproven as reason:
                del self.parts[before:]
                self.reasons.append(str(reason))
        raise Unproven(self.reasons[0])

    def _require_order(self, select: Node, context: Context) -> None:
        """Require groups whose order is complete, so that LIMIT or DISTINCT ON chooses the same ones."""
        if not select.group_clause:
            raise Unproven(_CHOSEN)
        core = self._core(select, context)
        targets = [unwrapped(each) for each in select.target_list]
        keys = {key(grouped_node(unwrapped(each), targets, core)) for each in select.group_clause}
        if not keys <= set(map(key, _order_of(select))):
            raise Unproven(_CHOSEN)

    def _require_order_of_array(self, select: Node, context: Context) -> None:
        """Require an order by the elements themselves, where equal ones print alike."""
        inside = context.with_ctes(select.with_clause if select.HasField("with_clause") else None)
        if len(select.target_list) != 1 or Fields(select).enum("op") != "SETOP_NONE":
            raise Unproven("an array of a query whose order is not complete")
        element = unwrapped(select.target_list[0].res_target.val)
        if key(element) not in set(map(key, _order_of(select))):
            raise Unproven("an array of a query whose order is not complete")
        where = unwrapped(select.where_clause) if select.HasField("where_clause") else None
        core = Relations(inside).core([unwrapped(each) for each in select.from_clause], where)
        core.expressions.operators.require_groupable(core.expressions.value(element))

    def _core(self, select: Node, context: Context) -> Core:
        nodes = [unwrapped(each) for each in select.from_clause]
        where = unwrapped(select.where_clause) if select.HasField("where_clause") else None
        core = Relations(context).core(nodes, where)
        if not nodes:
            raise Unproven("no FROM")
        if core.leftover:
            raise Unproven(core.reasons[0])
        return core

    def _grouped(self, select: Node, context: Context, outer: RewrittenBlock | None) -> Node:
        """Compute the groups below, and everything above them in PostgreSQL."""
        core = self._core(select, context)
        upper = self._upper(Upper, context, core, outer)
        targets = [unwrapped(each) for each in select.target_list]
        keys = [grouped_node(unwrapped(each), targets, core) for each in select.group_clause]
        for each in keys:
            upper.groups.add_key(core.expressions.value(each))
        expressions = GroupedExpressions(upper.groups)
        self._require_unordered(select, Unordered(context.facts, expressions, no_type, frozenset(map(key, keys))))
        found = _rewritten(select, upper.change)
        found.ClearField("group_clause")
        found.ClearField("where_clause")
        if select.HasField("having_clause"):
            found.where_clause.CopyFrom(wrapped(replaced(unwrapped(select.having_clause), upper.change)))
            found.ClearField("having_clause")
        self.add(found, upper.relation, upper.values, upper.alias, context)
        return found

    def _upper(self, kind: type[AnyUpper], context: Context, core: Core, outer: RewrittenBlock | None) -> AnyUpper:
        block = RewrittenBlock(context.block(), core.scope, outer=outer, is_grouped=True)
        return kind(context, core, block.alias, lambda node, change: self.sublink(node, change, context, block))

    def _regrouped(self, select: Node, context: Context, outer: RewrittenBlock | None) -> Node:
        """Compute groups by finer keys below; PostgreSQL groups them again, also into several grouping sets."""
        if not select.group_clause or select.group_distinct:
            raise Unproven("no GROUP BY, or GROUP BY DISTINCT")
        core = self._core(select, context)
        upper = self._upper(UpperAgain, context, core, outer)
        targets = [unwrapped(each) for each in select.target_list]
        rows = Unordered(context.facts, core.expressions, lambda node: type_in(node, select, context))
        items = [
            grouped_node(node, targets, core) for each in select.group_clause for node in grouped_items(unwrapped(each))
        ]
        for item in items:
            rows.require_alike(item)
            upper.add_key(item)
        if items and not upper.groups.keys:  # without keys, there is a group below also if there are no rows
            raise Unproven("GROUP BY only of constants that are not proven")
        if any(kind_of(unwrapped(each)) == "GroupingSet" for each in select.group_clause):
            _require_different(items, upper)
        self._require_unordered(select, Unordered(context.facts, GroupedExpressions(upper.groups), no_type))
        found = _rewritten(select, upper.change)
        found.ClearField("where_clause")
        found.ClearField("group_clause")
        for each in select.group_clause:
            found.group_clause.append(wrapped(self._group_item(unwrapped(each), select, core, upper.change)))
        if select.HasField("having_clause"):
            found.having_clause.CopyFrom(wrapped(replaced(unwrapped(select.having_clause), upper.change)))
        self.add(found, upper.relation, upper.values, upper.alias, context)
        return found

    def _rows(self, select: Node, context: Context, outer: RewrittenBlock | None) -> Node:
        """Compute the rows of FROM below as far as possible, and everything else in PostgreSQL."""
        rows_are_results = not is_grouped(select, context.facts)
        limited = rows_are_results and self._limited
        ordered = limited or (rows_are_results and len(select.from_clause) == 1)
        relations = Relations(context, ordered=ordered, limited=limited)
        proven, others = _parted([unwrapped(each) for each in select.from_clause], relations)
        where = unwrapped(select.where_clause) if select.HasField("where_clause") else None
        core = relations.core(proven, where) if proven else None
        names = names_of(others, context)
        block = RewrittenBlock(context.block(), core.scope if core else None, outer=outer, others=names)
        require_clear(select, core, names)

        def type_of(node: Node) -> int:
            if outer is not None:
                raise Unproven("an expression in a correlated subquery, whose type is not known")
            return type_in(node, select, context)

        rows = Unordered(context.facts, core.expressions if core else None, type_of)
        rows.require_aggregates(_outputs_of(select))
        for node in group_nodes(select, core, names):
            rows.require_alike(node)
        self._require_alike_results(select, rows, core)

        def change(node: Node) -> Node | None:
            if kind_of(node) == "SubLink":
                return self.sublink(node, change, context, block)
            if _is_any_of_array(node):  # the order of the elements means nothing
                copy = type(node)()
                copy.CopyFrom(node)
                copy.lexpr.CopyFrom(wrapped(replaced(unwrapped(node.lexpr), change)))
                array = self.sublink(unwrapped(node.rexpr), change, context, block, any_order=True)
                copy.rexpr.CopyFrom(wrapped(array))
                return copy
            if kind_of(node) == "ColumnRef":
                parts = [unwrapped(each) for each in node.fields]
                if kind_of(parts[-1]) == "A_Star":
                    if core is None:
                        return node
                    raise Unproven("* in an expression")
                return block.renamed(strings(parts), context) or node
            return None

        copy = _starless(select, core, others, block, context)
        found = _rewritten(copy, change)
        found.ClearField("where_clause")
        leftover = core.leftover if core is not None else ([where] if where is not None else [])
        if leftover:
            found.where_clause.CopyFrom(_all_of([replaced(each, change) for each in leftover]))
        if select.HasField("having_clause"):
            found.having_clause.CopyFrom(wrapped(replaced(unwrapped(select.having_clause), change)))
        found.ClearField("group_clause")
        for each in select.group_clause:
            found.group_clause.append(wrapped(self._group_item(unwrapped(each), copy, core, change)))
        rest = [self._other(each, context, outer) for each in others]
        found.ClearField("from_clause")
        if core is not None:
            self._add_rows(found, core.relation, block, context)
        found.from_clause.extend(wrapped(each) for each in rest)
        return found

    def _group_item(self, node: Node, select: Node, core: Core | None, change: Change) -> Node:
        if core is not None and kind_of(node) == "ColumnRef":
            target = grouped_node(node, [unwrapped(each) for each in select.target_list], core)
            return node if target is not node else replaced(node, change)
        return node if kind_of(node) == "A_Const" else replaced(node, change)

    def _require_unordered(self, select: Node, groups: Unordered) -> None:
        """Raise Unproven if what PostgreSQL computes over groups depends on their order."""
        groups.require_aggregates(_outputs_of(select), windows_only=True)
        self._require_alike_results(select, groups, None)

    def _require_alike_results(self, select: Node, rows: Unordered, core: Core | None) -> None:
        """Raise Unproven if DISTINCT chooses one of several values that print differently."""
        if not select.distinct_clause or not Fields(select).is_plain_distinct():
            return
        for each in select.target_list:
            node = unwrapped(each.res_target.val)
            if not _is_star(node):
                rows.require_alike(node)
            elif core is None or rows.expressions is None:
                raise Unproven("DISTINCT of all columns")
            else:
                for _, value in core.scope.starred(strings([unwrapped(part) for part in node.fields[:-1]])):
                    rows.expressions.operators.require_groupable(value)

    def _other(self, node: Node, context: Context, outer: RewrittenBlock | None) -> Node:
        """Return an item of FROM that PostgreSQL joins: a CTE, or a derived table whose query is rewritten."""
        kind = kind_of(node)
        if kind == "RangeVar":
            if not node.schemaname and node.relname in context.ctes:
                return node
            raise Unproven(f"the table {node.relname} in a join that is not proven")
        copy = type(node)()
        copy.CopyFrom(node)
        if kind == "RangeSubselect" and not node.lateral:
            copy.subquery.CopyFrom(wrapped(self.query(unwrapped(node.subquery), context, outer)))
            return copy
        raise Unproven(f"{kind} in FROM")

    def sublink(
        self, node: Node, change: Change, context: Context, block: RewrittenBlock, *, any_order: bool = False
    ) -> Node:
        """Return a subquery in an expression of a block, with its query rewritten."""
        copy = type(node)()
        copy.CopyFrom(node)
        if node.HasField("testexpr"):
            copy.testexpr.CopyFrom(wrapped(replaced(unwrapped(node.testexpr), change)))
        kind = Fields(node).enum("sub_link_type")
        if kind == "ARRAY_SUBLINK" and not any_order:
            self._require_order_of_array(unwrapped(node.subselect), context)
        query = self.query(unwrapped(node.subselect), context, block, any_rows=kind == "EXISTS_SUBLINK")
        copy.subselect.CopyFrom(wrapped(query))
        return copy

    def _add_rows(self, found: Node, relation: ir.Relation, block: RewrittenBlock, context: Context) -> None:
        if not block.outputs:
            block.output(Typed(ir.Constant(True, ir.BOOL), SqlType(16)), context)
        pairs = []
        for value, result in block.outputs.items():
            assert isinstance(result.expr, ir.TypedColumn)  # noqa: S101
            pairs.append((result.expr, value.expr))
            if isinstance(result.scale, ir.TypedColumn):
                assert isinstance(value.scale, ir.TypedColumn | ir.Call | ir.Case | ir.Constant)  # noqa: S101
                pairs.append((result.scale, value.scale))
        values = {each.expr.name: each for each in block.outputs.values() if isinstance(each.expr, ir.TypedColumn)}
        self.add(found, ir.Project(relation, tuple(pairs)), values, block.alias, context)

    def add(self, found: Node, relation: ir.Relation, values: dict[str, Typed], alias: str, context: Context) -> None:
        """Add a bottom, and put its rows into the FROM of a block."""
        outputs = tuple(Output.of(name, value) for name, value in values.items())
        if not outputs:  # no value of the groups is used: their number alone counts
            raise Unproven("groups of which nothing is used")
        columns = dict.fromkeys(output.column for output in outputs)
        columns |= dict.fromkeys(output.scale for output in outputs if isinstance(output.scale, ir.TypedColumn))
        first = self._first + sum(len(part.outputs) for part in self.parts)
        self.parts.append(PlanPart(ir.pruned(ir.Bottom(relation, tuple(columns))), outputs, first))
        table = parsed(f"SELECT FROM {derived_table(outputs, first, alias, context.facts)}")
        found.ClearField("from_clause")
        found.from_clause.extend(table.from_clause)


def _require_different(items: list[Node], upper: Upper) -> None:
    """Raise Unproven if two items of grouping sets are one column below: PostgreSQL groups by each of them."""
    nodes = {key(item): upper.groups.key_of(item) for item in items}
    found = [value for value in nodes.values() if value is not None]
    if len(set(found)) < len(found):
        raise Unproven("grouping sets of different expressions that are equal")


def _outputs_of(select: Node) -> list[Node]:
    """Return the expressions of a block in which aggregates may stand."""
    nodes = [unwrapped(each) for each in (*select.target_list, *select.sort_clause, *select.window_clause)]
    return nodes + ([unwrapped(select.having_clause)] if select.HasField("having_clause") else [])


def _is_limited(select: Node) -> bool:
    """Whether only some of the rows are the result, by LIMIT, OFFSET or DISTINCT ON."""
    chooses = select.HasField("limit_count") or select.HasField("limit_offset")
    return bool(chooses or (select.distinct_clause and not Fields(select).is_plain_distinct()))


def _names_in(select: Node) -> set[str]:
    return {each.relname for each in walk(select) if kind_of(each) == "RangeVar" and not each.schemaname}


def _parted(nodes: list[Node], relations: Relations) -> tuple[list[Node], list[Node]]:
    """Return the items of FROM that are proven, and the others."""
    proven, others = [], []
    for node in nodes:
        try:
            relations.core([node], None)
        except Unproven:
            others.append(node)
        else:
            proven.append(node)
    return proven, others


def _rewritten(select: Node, change: Change) -> Node:
    """Return a block with its results, windows and order rewritten; every result has its name."""
    found = type(select)()
    found.CopyFrom(select)
    names = {name for name, _ in _results_of(select)}
    found.ClearField("target_list")
    for each in select.target_list:
        target = type(each.res_target)()
        target.CopyFrom(each.res_target)
        if not _is_star(unwrapped(target.val)):  # a star remains where nothing of the block is computed below
            target.name = target.name or output_name(unwrapped(target.val))
        target.val.CopyFrom(wrapped(replaced(unwrapped(each.res_target.val), change)))
        found.target_list.add().res_target.CopyFrom(target)
    for clause in ("window_clause", "distinct_clause"):
        items = [
            each
            if each.WhichOneof("node") is None or (clause == "distinct_clause" and _is_output(unwrapped(each), names))
            else wrapped(replaced(unwrapped(each), change))
            for each in getattr(select, clause)
        ]
        found.ClearField(clause)
        getattr(found, clause).extend(items)
    found.ClearField("sort_clause")
    for each in select.sort_clause:
        item = type(each.sort_by)()
        item.CopyFrom(each.sort_by)
        node = unwrapped(each.sort_by.node)
        if not _is_output(node, names):
            item.node.CopyFrom(wrapped(replaced(node, change)))
        found.sort_clause.add().sort_by.CopyFrom(item)
    return found


def _is_any_of_array(node: Node) -> bool:
    """Whether a node is ANY or ALL with an array of a subquery."""
    if kind_of(node) != "A_Expr" or Fields(node).enum("kind") not in ("AEXPR_OP_ANY", "AEXPR_OP_ALL"):
        return False
    array = unwrapped(node.rexpr)
    return kind_of(array) == "SubLink" and Fields(array).enum("sub_link_type") == "ARRAY_SUBLINK"


def _results_of(select: Node) -> list[tuple[str, Node]]:
    """Return the results of a block with their names; a star, which has no name of its own, is left out."""
    targets = [(each.res_target.name, unwrapped(each.res_target.val)) for each in select.target_list]
    return [(name or output_name(node), node) for name, node in targets if not _is_star(node)]


def _order_of(select: Node) -> Iterator[Node]:
    """Yield the expressions that ORDER BY means."""
    results = _results_of(select)
    for each in select.sort_clause:
        node = unwrapped(each.sort_by.node)
        if kind_of(node) == "A_Const":
            if len(results) != len(select.target_list) or not 1 <= node.ival.ival <= len(results):
                raise Unproven("ORDER BY a position that is not known")
            node = results[node.ival.ival - 1][1]
        elif _is_output(node, {name for name, _ in results}):
            node = next(result for name, result in results if name == node.fields[0].string.sval)
        yield node


def _is_output(node: Node, names: Container[str]) -> bool:
    """Whether an item of ORDER BY means a result column: by position, or by a name."""
    if kind_of(node) == "A_Const":
        return True
    is_name = kind_of(node) == "ColumnRef" and len(node.fields) == 1 and node.fields[0].WhichOneof("node") == "string"
    return is_name and node.fields[0].string.sval in names


def _starless(select: Node, core: Core | None, others: list[Node], block: RewrittenBlock, context: Context) -> Node:
    """Return a block with the columns that a star in its results stands for."""
    if core is None or not any(_is_star(unwrapped(each.res_target.val)) for each in select.target_list):
        return select
    if others:
        raise Unproven("* of several tables, some of which are not proven")
    copy = type(select)()
    copy.CopyFrom(select)
    copy.ClearField("target_list")
    for each in select.target_list:
        node = unwrapped(each.res_target.val)
        if not _is_star(node):
            copy.target_list.append(each)
            continue
        assert block.scope is not None  # noqa: S101  there is a core
        parts = strings([unwrapped(part) for part in node.fields[:-1]])
        for name, value in block.scope.starred(parts):
            target = copy.target_list.add().res_target
            target.name = name
            target.val.column_ref.CopyFrom(column_ref(block.alias, block.output(value, context)))
    return copy


def _is_star(node: Node) -> bool:
    return kind_of(node) == "ColumnRef" and node.fields[-1].WhichOneof("node") == "a_star"


def _all_of(nodes: Iterable[Node]) -> Node:
    items = [wrapped(each) for each in nodes]
    if len(items) == 1:
        return items[0]
    return pg_query_pb2.Node(bool_expr=pg_query_pb2.BoolExpr(boolop="AND_EXPR", args=items))
