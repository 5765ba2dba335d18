"""Query blocks below: FROM and WHERE as a relation, and derived tables, subqueries and CTEs that are proven whole."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.errors import Unproven
from tidemark.split import ir
from tidemark.split.context import Context
from tidemark.split.core import Core
from tidemark.split.expressions import Expressions
from tidemark.split.grouped import Grouping, is_grouped
from tidemark.split.naming import output_name
from tidemark.split.nodes import Fields, Node, kind_of, reading, strings
from tidemark.split.scope import Columns, NameScope, Source
from tidemark.split.subqueries import Subqueries
from tidemark.split.typed import Typed, scale_expr
from tidemark.split.types import BPCHAR, VARCHAR
from tidemark.split.unified import unified

_JOINS = {
    "JOIN_INNER": ir.JoinKind.INNER,
    "JOIN_LEFT": ir.JoinKind.LEFT,
    "JOIN_RIGHT": ir.JoinKind.RIGHT,
    "JOIN_FULL": ir.JoinKind.FULL,
}


class Relations:
    """Analyzes blocks in one context.

    With `ordered`, the rows come in the order of a subquery that is the only item of FROM, so that it is not proven;
    with `limited`, LIMIT chooses by that order, also among the rows of joins.
    """

    def __init__(
        self, context: Context, outer: NameScope | None = None, *, ordered: bool = False, limited: bool = False
    ) -> None:
        self.context, self.outer, self._ordered, self._limited = context, outer, ordered, limited

    def inside(self, outer: NameScope | None) -> Relations:
        """Return the analyzer of a subquery, which may name the columns around it."""
        return Relations(self.context, outer)

    def _of_joined(self) -> Relations:
        """Return the analyzer of an item of FROM that is not the only one."""
        return self if self._limited else Relations(self.context, self.outer)

    def _of_nested(self, context: Context) -> Relations:
        return Relations(context, ordered=self._ordered, limited=self._limited)

    def core(self, from_: list[Node], where: Node | None) -> Core:
        """Analyze FROM and WHERE."""
        source = self._from(from_)
        scope = NameScope(source, self.outer)
        subqueries = Subqueries(self, scope)
        expressions = Expressions(subqueries, self.context.facts, self.context.constants)
        core = Core(source, scope, expressions)
        conditions = []
        for node in conjuncts(where):
            try:
                found = subqueries.condition(node, expressions)
            except Unproven as reason:
                core.leftover.append(node)
                core.reasons.append(str(reason))
                continue
            if found is not None:
                conditions.append(found)
        if conditions:
            source.relation = ir.Filter(source.relation, ir.conjunction(conditions))
        return core

    def _from(self, nodes: list[Node]) -> Source:
        if not nodes:
            return Source(ir.OneRow(), [], {})
        analyzer = self if len(nodes) == 1 else self._of_joined()
        source, *others = (analyzer._item(node) for node in nodes)
        for other in others:
            source = source.joined(other, ir.Join(ir.JoinKind.INNER, source.relation, other.relation, None))
        return source

    def _item(self, node: Node) -> Source:
        readers = {"RangeVar": self._table, "JoinExpr": self._join, "RangeSubselect": self._derived}
        if kind_of(node) not in readers:
            raise Unproven(f"{kind_of(node)} in FROM")
        with reading(node) as fields:
            return readers[kind_of(node)](fields)

    def _table(self, fields: Fields) -> Source:
        schema, name = fields["schemaname"], fields["relname"]
        if not fields["inh"]:
            raise Unproven("ONLY")
        fields["relpersistence"]
        alias, names = _alias(fields["alias"])
        if not schema and name in self.context.ctes:
            return self._cte(name, alias or name, names)
        return self.context.table((schema, name) if schema else (name,), alias or name, names)

    def _cte(self, name: str, alias: str, names: list[str]) -> Source:
        node = self.context.ctes[name]
        with reading(node) as fields:
            fields["ctename"]
            fields["ctematerialized"]
            given = [each.sval for each in fields["aliascolnames"]]
            derived = self._of_nested(self.context.before(name)).whole(fields["ctequery"])
        return _named(derived, alias, _renamed(_renamed([n for n, _ in derived.visible], given), names))

    def _derived(self, fields: Fields) -> Source:
        if fields["lateral"]:
            raise Unproven("LATERAL")
        alias, names = _alias(fields["alias"])
        derived = self._of_nested(self.context).whole(fields["subquery"])
        return _named(derived, alias, _renamed([name for name, _ in derived.visible], names))

    def _join(self, fields: Fields) -> Source:
        kind = _JOINS.get(fields.enum("jointype"))
        analyzer = self._of_joined()
        left, right = analyzer._item(fields["larg"]), analyzer._item(fields["rarg"])
        if kind is None or fields["alias"] is not None or fields["join_using_alias"] is not None:
            raise Unproven("a join of another kind, or with an alias")
        using = list(strings(fields["using_clause"]))
        if fields["is_natural"]:
            there = right.names()
            using = [name for name in _ordered_names(left) if name in there]
        quals = fields["quals"]
        joined = left.joined(right, left.relation)
        scope = NameScope(joined)
        expressions = Expressions(Subqueries(self, scope, may_join=False), self.context.facts, self.context.constants)
        if using:
            return self._using(kind, left, right, joined, using, expressions)
        condition = expressions.condition(quals) if quals is not None else None
        if joined.relation is not left.relation:
            raise Unproven("a subquery in the condition of a join")
        joined.relation = ir.Join(kind, left.relation, right.relation, condition)
        return joined

    def _using(
        self, kind: ir.JoinKind, left: Source, right: Source, joined: Source, names: list[str], expressions: Expressions
    ) -> Source:
        """Join by columns of the same name, which are visible once."""
        conditions, merged = [], []
        for name in names:
            one, other = NameScope(left).column((name,)), NameScope(right).column((name,))
            if one.type != other.type:
                raise Unproven("USING with columns of different types")
            conditions.append(expressions.operators.binary("=", one, other).expr)
            if kind is ir.JoinKind.FULL:
                if (one.data, one.scale) != (other.data, other.scale):
                    raise Unproven("FULL JOIN USING with numerics of different scales")
                expr = ir.Call(ir.Op.COALESCE, (one.expr, other.expr), one.data)
                merged.append((name, Typed(expr, one.type, one.scale)))
            else:
                merged.append((name, other if kind is ir.JoinKind.RIGHT else one))
        joined.relation = ir.Join(
            kind, left.relation, right.relation, ir.conjunction(conditions) if conditions else None
        )
        joined.visible = merged + [each for each in left.visible + right.visible if each[0] not in names]
        return joined

    def whole(self, select: Node) -> Source:
        """Return a query that is proven completely, as a source of its result columns."""
        with reading(select) as fields:
            ordered, context = not is_grouped(select, self.context.facts), self.context.with_ctes(fields["with_clause"])
            inside = Relations(
                context, self.outer, ordered=ordered and self._ordered, limited=ordered and self._limited
            )
            if fields["sort_clause"] and (fields["limit_count"] or fields["limit_offset"]):
                raise Unproven("LIMIT in a subquery below")
            if fields["sort_clause"] and self._ordered:
                raise Unproven("ORDER BY in a subquery, which orders the result")
            fields.enum("limit_option")
            operation = fields.enum("op")
            if operation != "SETOP_NONE":
                return inside._set_operation(operation, fields)
            return inside._block(fields)

    def _set_operation(self, operation: str, fields: Fields) -> Source:
        everything = fields["all"]
        parts = [self.whole(fields["larg"]), self.whole(fields["rarg"])]
        if operation != "SETOP_UNION":
            raise Unproven("INTERSECT or EXCEPT below")
        if len({len(part.visible) for part in parts}) > 1:
            raise Unproven("UNION of different numbers of columns")
        if not parts[0].visible:
            raise Unproven("UNION without columns")
        for at, values in enumerate(zip(*(part.visible for part in parts), strict=True)):
            if any(at in part.literals for part in parts) and any(value.oid == VARCHAR for _, value in values):
                raise Unproven("UNION of a literal and a varchar, of whose type it is")
        unions = [_unified_column(pair, self.context) for pair in zip(*(part.visible for part in parts), strict=True)]
        projected = [
            ir.Project(part.relation, tuple((self.context.column(value.data), value.expr) for value in values))
            for part, values in zip(parts, zip(*(values for _, values in unions), strict=True), strict=True)
        ]
        result = [_as_column(values[0], self.context) for _, values in unions]
        names = [name for name, _ in unions]
        columns = tuple(column for column, _ in result)
        relation: ir.Relation = ir.Union(
            columns, tuple((each, tuple(column for column, _ in each.columns)) for each in projected)
        )
        if not everything:
            operators = Expressions(Subqueries(self, NameScope(parts[0])), self.context.facts, self.context.constants)
            for _, value in result:
                operators.operators.require_groupable(value)
            relation = ir.Distinct(relation)
        visible = list(zip(names, (value for _, value in result), strict=True))
        return Source(relation, visible, {})

    def _block(self, fields: Fields) -> Source:
        """Return a SELECT without set operations, without its order."""
        targets, distinct = fields["target_list"], fields.is_distinct()
        core = self.core(fields["from_clause"], fields["where_clause"])
        if core.leftover:
            raise Unproven(core.reasons[0])
        grouping = Grouping.of(fields, targets, core, self.context)
        values: Columns = []
        literals = set[int]()
        for target in targets:
            if _is_untyped(Fields(target)["val"]):
                literals.add(len(values))
            values += self._target(target, core, grouping)
        relation = core.relation if grouping is None else grouping.relation()
        columns = [(name, *_as_column(value, self.context)) for name, value in values]
        pairs = [(column, value.expr) for (_, column, _), (_, value) in zip(columns, values, strict=True)]
        for (_, _, result), (_, value) in zip(columns, values, strict=True):
            if isinstance(result.scale, ir.TypedColumn):
                pairs.append((result.scale, scale_expr(value.scale)))
        projected: ir.Relation = ir.Project(relation, tuple(pairs))
        if distinct:
            for _, _, value in columns:
                core.expressions.operators.require_groupable(value)
            projected = ir.Distinct(projected)
        return Source(projected, [(name, value) for name, _, value in columns], {}, literals=frozenset(literals))

    def _target(self, node: Node, core: Core, grouping: Grouping | None) -> Columns:
        with reading(node) as fields:
            name, value = fields["name"], fields["val"]
            if kind_of(value) == "ColumnRef" and kind_of(Fields(value)["fields"][-1]) == "A_Star":
                if grouping is not None:
                    raise Unproven("* with groups")
                starred = [each for each in Fields(value)["fields"] if kind_of(each) == "String"]
                return list(NameScope(core.source, self.outer).starred(strings(starred)))
            expressions = core.expressions if grouping is None else grouping.expressions
            return [(name or output_name(value), expressions.value(value))]


def _is_untyped(node: Node) -> bool:
    return kind_of(node) == "A_Const" and (node.isnull or node.WhichOneof("val") == "sval")


def _ordered_names(source: Source) -> list[str]:
    """Return the visible names, those of columns that are not read at the end."""
    visible = [name for name, _ in source.visible]
    return [*visible, *sorted(source.names() - set(visible))]


def conjuncts(node: Node | None) -> Iterable[Node]:
    """Yield the conditions that AND joins."""
    if node is None:
        return
    if kind_of(node) == "BoolExpr" and Fields(node).enum("boolop") == "AND_EXPR":
        with reading(node) as fields:
            fields.enum("boolop")
            for each in fields["args"]:
                yield from conjuncts(each)
    else:
        yield node


def _alias(node: Node | None) -> tuple[str, list[str]]:
    if node is None:
        return "", []
    with reading(node) as fields:
        return fields["aliasname"], list(strings(fields["colnames"]))


def _renamed(names: list[str], given: list[str]) -> list[str]:
    if len(given) > len(names):
        raise Unproven("an alias with more names than columns")
    return [*given, *names[len(given) :]]


def _named(derived: Source, alias: str, names: list[str]) -> Source:
    columns = [(name, value) for name, (_, value) in zip(names, derived.visible, strict=True)]
    return Source(derived.relation, columns, {alias: columns} if alias else {})


def _as_column(value: Typed, context: Context) -> tuple[ir.TypedColumn, Typed]:
    """Return a new column for a value, and the value as that column, with a column for a scale that varies."""
    column = context.column(value.data)
    scale = value.scale if value.scale is None or isinstance(value.scale, int) else context.column(ir.INT4)
    return column, Typed(column, value.type, scale)


def _unified_column(pair: tuple[tuple[str, Typed], ...], context: Context) -> tuple[str, list[Typed]]:
    oids = {value.oid for _, value in pair}
    if BPCHAR in oids and len(oids) > 1:  # a literal beside a char is a char
        raise Unproven("UNION of char and another type")
    values = unified([value for _, value in pair], context.constants)
    if len({each.scale for each in values}) > 1:
        raise Unproven("UNION of numerics of different scales")
    return pair[0][0], values
