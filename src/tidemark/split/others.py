"""Items of FROM that stay in PostgreSQL beside the rows of a bottom: CTEs and derived tables, and their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from postgast import pg_query_pb2

from tidemark.errors import Unproven
from tidemark.split.context import Context
from tidemark.split.core import Core
from tidemark.split.naming import output_name
from tidemark.split.nodes import Node, kind_of, unwrapped, walk, wrapped
from tidemark.split.operators import Operators
from tidemark.split.relations import Relations
from tidemark.split.subqueries import standalone, type_of
from tidemark.split.unordered import require_one_form
from tidemark.split.upper import grouped_items

Names: TypeAlias = frozenset[str] | None  # of the columns; None if they are not known


def names_of(nodes: list[Node], context: Context) -> dict[str, Names]:
    """Return the names of the columns of each item, by its alias."""
    found: dict[str, Names] = {}
    for node in nodes:
        alias = node.alias.aliasname if node.HasField("alias") else getattr(node, "relname", "")
        if not alias or alias in found:
            raise Unproven("an item of FROM without a name of its own")
        found[alias] = _columns(node, context)
    return found


def _columns(node: Node, context: Context) -> Names:
    if node.alias.colnames or kind_of(node) not in ("RangeVar", "RangeSubselect"):
        return None
    if kind_of(node) == "RangeSubselect":
        return _results(unwrapped(node.subquery))
    cte = context.ctes.get(node.relname)
    return None if cte is None or cte.aliascolnames else _results(unwrapped(cte.ctequery))


def _results(select: Node) -> Names:
    while select.HasField("larg"):
        select = select.larg
    values = [each.res_target for each in select.target_list]
    if any(kind_of(each) == "A_Star" for value in values for each in walk(value)):
        return None
    return frozenset(value.name or output_name(unwrapped(value.val)) for value in values)


def require_clear(select: Node, core: Core | None, others: Mapping[str, Names]) -> None:
    """Raise Unproven if a name may be one of the proven items of FROM, or one of the others."""
    if core is None or not others:
        return
    if set(core.source.tables) & set(others):
        raise Unproven("a table name that is used twice")
    ours = core.source.names()
    both = ours if None in others.values() else ours.intersection(*[frozenset().union(*filter(None, others.values()))])
    own = type(select)()
    own.CopyFrom(select)
    for name in ("with_clause", "from_clause"):  # queries of their own, which do not see these columns
        own.ClearField(name)
    for node in walk(own):
        if kind_of(node) == "ColumnRef" and len(node.fields) == 1 and node.fields[0].string.sval in both:
            raise Unproven(f"the name {node.fields[0].string.sval} in several items of FROM")


def group_nodes(select: Node, core: Core | None, others: Mapping[str, Names]) -> Iterator[Node]:
    """Yield the expressions that GROUP BY means."""
    targets = [each.res_target for each in select.target_list]
    for node in (each for item in select.group_clause for each in grouped_items(unwrapped(item))):
        if kind_of(node) == "A_Const":
            before = targets[: node.ival.ival]
            if len(before) != node.ival.ival or any(_has_star(each) for each in before):
                raise Unproven("GROUP BY a position that is not known")
            yield unwrapped(before[-1].val)
        elif kind_of(node) == "ColumnRef" and len(node.fields) == 1 and not _is_input(node, core, others):
            named = [unwrapped(each.val) for each in targets if each.name == node.fields[0].string.sval]
            yield from named or [node]
        else:
            yield node


def _is_input(node: Node, core: Core | None, others: Mapping[str, Names]) -> bool:
    name = node.fields[0].string.sval
    if core is not None and core.source.hides(name):
        raise Unproven(f"GROUP BY {name}, which may be the name of a column that is not read")
    if core is not None and name in core.source.names():
        return True
    if None in others.values():
        raise Unproven(f"GROUP BY {name}, which may be a column or a result")
    return any(name in names for names in others.values() if names is not None)


def _has_star(target: Node) -> bool:
    return any(kind_of(each) == "A_Star" for each in walk(target))


def type_in(node: Node, select: Node, context: Context) -> int:
    """Return the type of an expression of a block, as PostgreSQL determines it."""
    alone = pg_query_pb2.SelectStmt(limit_option="LIMIT_OPTION_DEFAULT", op="SETOP_NONE")
    alone.target_list.add().res_target.val.CopyFrom(wrapped(node))
    alone.from_clause.extend(select.from_clause)
    return type_of(standalone(alone, context.ctes), context)


def no_type(_: Node) -> int:
    """Refuse an expression over groups that is not proven below."""
    raise Unproven("an aggregate of groups, or DISTINCT, of an expression that is not proven")


def require_one_result(select: Node, context: Context) -> None:
    """Raise Unproven if equal rows of the parts of a set operation may print differently."""
    operators = Operators(context.facts, context.constants)
    parts = [[value for _, value in Relations(context).whole(leaf).visible] for leaf in _leaves(select)]
    if len({len(each) for each in parts}) != 1:
        raise Unproven("a set operation of different numbers of columns")
    for value in (each for part in parts for each in part):
        operators.require_groupable(value)
    require_one_form([list(each) for each in zip(*parts, strict=True)])


def _leaves(select: Node) -> Iterator[Node]:
    if not select.HasField("larg"):
        yield select
        return
    if select.HasField("with_clause"):
        raise Unproven("WITH inside of a set operation")
    yield from _leaves(select.larg)
    yield from _leaves(select.rarg)
