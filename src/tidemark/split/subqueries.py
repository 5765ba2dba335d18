"""Subqueries in expressions below: semi and anti joins, correlated aggregates, and values that are computed first."""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.errors import Unproven
from tidemark.split import ir
from tidemark.split.aggregates import has_aggregates
from tidemark.split.constants import decoded
from tidemark.split.context import Context
from tidemark.split.core import Analyzer, Core
from tidemark.split.correlated import joined_aggregate, only_target
from tidemark.split.expressions import Expressions
from tidemark.split.nodes import Fields, Node, key, kind_of, reading, sql_of, walk, wrapped
from tidemark.split.scope import NameScope
from tidemark.split.typed import Typed, boolean
from tidemark.split.types import DEFAULT_COLLATION, NUMERIC, TEXTS, SqlType, plain


class Pending(Exception):
    """The analysis needs the type of a subquery first."""


class Subqueries:
    """The scope of the expressions of a block, with the subqueries in them."""

    def __init__(self, analyzer: Analyzer, scope: NameScope, *, may_join: bool = True) -> None:
        self._analyzer, self.scope, self._may_join = analyzer, scope, may_join

    def column(self, parts: tuple[str, ...]) -> Typed:
        """Return a column."""
        return self.scope.column(parts)

    def condition(self, node: Node, expressions: Expressions) -> ir.Expr | None:
        """Return a condition of WHERE; None for a subquery that has become a join."""
        negate, inner = False, node
        while kind_of(inner) == "BoolExpr" and Fields(inner).enum("boolop") == "NOT_EXPR":
            with reading(inner) as fields:
                fields.enum("boolop")
                (inner,) = fields["args"]
            negate = not negate
        if kind_of(inner) != "SubLink" or _kind(inner) not in ("EXISTS_SUBLINK", "ANY_SUBLINK"):
            return expressions.condition(node)
        relation, condition = self._matched(inner, expressions, negate=negate)
        source = self.scope.source
        self._require_join()
        kind = ir.JoinKind.ANTI if negate else ir.JoinKind.SEMI
        source.relation = ir.Join(kind, source.relation, relation, condition)
        return None

    def subquery(self, link: Node, expressions: Expressions) -> Typed:
        """Return the value of a subquery in an expression."""
        kind = _kind(link)
        if kind == "EXISTS_SUBLINK":
            relation, condition = self._matched(link, expressions, negate=False)
            return boolean(ir.Exists(relation, condition or ir.Constant(True, ir.BOOL)))
        if kind != "EXPR_SUBLINK":
            raise Unproven("IN with a subquery inside of an expression")
        with reading(link) as fields:
            fields["sub_link_type"]
            select = fields["subselect"]
        correlated = self._correlated(select)
        return correlated if correlated is not None else self._first(select)

    def _require_join(self) -> None:
        if not self._may_join:
            raise Unproven("a subquery in the condition of a join")

    def _matched(self, link: Node, expressions: Expressions, *, negate: bool) -> tuple[ir.Relation, ir.Expr | None]:
        """Return the rows of a subquery, and the condition for which EXISTS or IN needs one of them."""
        with reading(link) as fields:
            fields["sub_link_type"]
            test, select = fields["testexpr"], fields["subselect"]
            if fields["oper_name"]:
                raise Unproven("ANY with a subquery and an operator")
        if test is None:
            return self._rows(select, None, expressions)
        if kind_of(test) == "RowExpr":
            raise Unproven("IN with rows")
        relation, condition = self._rows(select, expressions.typed(test), expressions, null_aware=negate)
        return relation, condition

    def _rows(
        self, select: Node, test: Typed | None, expressions: Expressions, *, null_aware: bool = False
    ) -> tuple[ir.Relation, ir.Expr | None]:
        if not _is_simple(select, self._analyzer):
            source = self._analyzer.inside(None).whole(select)
            _require_closed(source.relation)
            if test is not None and len(source.visible) != 1:
                raise Unproven("IN with several columns")
            conditions = [] if test is None else [_equal(test, source.visible[0][1], expressions, null_aware)]
            return source.relation, _all(conditions)
        inner, core, apart = self._apart(select)
        if test is not None:
            value = core.expressions.value(only_target(select))
            apart.append(_equal(test, value, inner, null_aware))
        _require_closed(core.relation)
        return core.relation, _all(apart)

    def _apart(self, select: Node) -> tuple[Expressions, Core, list[ir.Expr]]:
        """Analyze a simple subquery: its rows, and apart from them the conditions that name columns around it."""
        with reading(select) as fields:
            inner = self._analyzer.inside(self.scope)
            fields["target_list"]
            fields["sort_clause"]
            fields.enum("op")
            fields.enum("limit_option")
            core = inner.core(fields["from_clause"], fields["where_clause"])
        if core.leftover:
            raise Unproven(core.reasons[0])
        inside = ir.produced(core.relation)
        relation = core.relation
        own: list[ir.Expr] = []
        apart: list[ir.Expr] = []
        if isinstance(relation, ir.Filter):
            for condition in _conditions(relation.condition):
                names = {each.name for each in ir.columns_in(condition)}
                (own if names <= inside else apart).append(condition)
            relation = ir.Filter(relation.relation, ir.conjunction(own)) if own else relation.relation
        core.source.relation = relation
        return core.expressions, core, apart

    def _correlated(self, select: Node) -> Typed | None:
        """Return a correlated subquery with one aggregate expression; None if the subquery is not correlated."""
        if not _may_be_simple(select):
            return None
        try:
            _, core, apart = self._apart(select)
        except Unproven:
            return None
        if not core.scope.uses_outer:
            return None
        self._require_join()
        _require_closed(core.relation)
        return joined_aggregate(select, core, apart, self.scope.source, self._analyzer.context)

    def _first(self, select: Node) -> Typed:
        """Return the value of a subquery that is computed before the statement."""
        context = self._analyzer.context
        alone, scalars = standalone(select, context.ctes), context.shared.scalars
        oid = type_of(alone, context)
        if oid in TEXTS:
            _require_default_collation(alone, context)
        if all(key(each) != key(alone) for each in scalars):
            scalars.append(alone)
        number = next(at for at, each in enumerate(scalars) if key(each) == key(alone))
        if oid == NUMERIC:
            return Typed(ir.Scalar(number, ir.decimal(ir.MOST_DIGITS, 0)), SqlType(NUMERIC), 0)
        return Typed(ir.Scalar(number, plain(oid)), SqlType(oid, -1, DEFAULT_COLLATION if oid in TEXTS else 0))


def type_of(alone: Node, context: Context) -> int:
    """Return the OID of the type of a SELECT with one column, as PostgreSQL determines it."""
    name = b"type:" + key(alone)
    constants = context.constants
    if name not in constants.known:
        query = f"(SELECT ({sql_of(alone)}) WHERE false)"
        constants.asked[name] = f"pg_catalog.pg_typeof({query})::pg_catalog.oid::pg_catalog.int8"
        raise Pending
    oid = decoded(constants.known[name]).expr
    assert isinstance(oid, ir.Constant)  # noqa: S101  an int8
    assert isinstance(oid.value, int)  # noqa: S101
    return oid.value


def _require_default_collation(alone: Node, context: Context) -> None:
    """Refuse a text whose collation may be another one than the default."""
    if set(context.facts.collations) != {DEFAULT_COLLATION} or any(
        kind_of(each) == "CollateClause" for each in walk(alone)
    ):
        raise Unproven("a scalar subquery that returns a text, whose collation is not known")


def standalone(select: Node, ctes: Mapping[str, Node]) -> Node:
    """Return a subquery as a statement, with the CTEs that it can name."""
    alone = type(select)()
    alone.CopyFrom(select)
    if ctes:
        if select.HasField("with_clause"):
            raise Unproven("WITH in a scalar subquery beside other CTEs")
        alone.with_clause.ctes.extend(wrapped(each) for each in ctes.values())
    return alone


def _all(conditions: list[ir.Expr]) -> ir.Expr | None:
    return ir.conjunction(conditions) if conditions else None


def _conditions(expr: ir.Expr) -> list[ir.Expr]:
    if isinstance(expr, ir.Call) and expr.op is ir.Op.AND:
        return [each for arg in expr.args for each in _conditions(arg)]
    return [expr]


def _kind(link: Node) -> str:
    return Fields(link).enum("sub_link_type")


def _equal(left: Typed, right: Typed, expressions: Expressions, null_aware: bool) -> ir.Expr:
    equal = expressions.operators.binary("=", left, right).expr
    if not null_aware:
        return equal
    return ir.Call(ir.Op.OR, (equal, ir.Call(ir.Op.IS_NULL, (equal,), ir.BOOL)), ir.BOOL)


_SIMPLE = frozenset({"target_list", "from_clause", "where_clause", "sort_clause", "op", "limit_option"})


def _may_be_simple(select: Node) -> bool:
    names = {field.name for field, _ in select.ListFields()}
    return names <= _SIMPLE and Fields(select).enum("op") == "SETOP_NONE"


def _is_simple(select: Node, analyzer: Analyzer) -> bool:
    """Whether a subquery has only FROM and WHERE, and no aggregates."""
    return _may_be_simple(select) and not has_aggregates(Fields(select)["target_list"], analyzer.context.facts)


def _require_closed(relation: ir.Relation) -> None:
    """Raise Unproven if a relation names a column that is defined outside of it."""
    if not {each.name for each in ir.columns_in(relation)} <= ir.produced(relation):
        raise Unproven("a correlated subquery of another form")
