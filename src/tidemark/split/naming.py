"""The name that PostgreSQL gives to a result column without an alias (FigureColname)."""

from __future__ import annotations

from collections.abc import Callable

from tidemark.errors import Unproven
from tidemark.split.nodes import Fields, Node, kind_of, unwrapped

_WEAK, _STRONG = 1, 2
_VALUE_FUNCTIONS = {
    "SVFOP_CURRENT_DATE": "current_date",
    "SVFOP_CURRENT_TIME": "current_time",
    "SVFOP_CURRENT_TIME_N": "current_time",
    "SVFOP_CURRENT_TIMESTAMP": "current_timestamp",
    "SVFOP_CURRENT_TIMESTAMP_N": "current_timestamp",
    "SVFOP_LOCALTIME": "localtime",
    "SVFOP_LOCALTIME_N": "localtime",
    "SVFOP_LOCALTIMESTAMP": "localtimestamp",
    "SVFOP_LOCALTIMESTAMP_N": "localtimestamp",
    "SVFOP_CURRENT_ROLE": "current_role",
    "SVFOP_CURRENT_USER": "current_user",
    "SVFOP_USER": "user",
    "SVFOP_SESSION_USER": "session_user",
    "SVFOP_CURRENT_CATALOG": "current_catalog",
    "SVFOP_CURRENT_SCHEMA": "current_schema",
}
_NO_NAME = frozenset({"A_Const", "ParamRef", "BoolExpr", "NullTest", "BooleanTest"})


def output_name(node: Node) -> str:
    """Return the name of a column without an alias."""
    return _named(node)[1] or "?column?"


def _named(node: Node) -> tuple[int, str]:
    kind = kind_of(node)
    if kind in _NO_NAME:
        return 0, ""
    if kind not in _READERS:
        raise Unproven(f"the name of a column that is a {kind}")
    return _READERS[kind](node)


def _column(node: Node) -> tuple[int, str]:
    names = [unwrapped(each).sval for each in node.fields if each.WhichOneof("node") == "string"]
    return (_STRONG, names[-1]) if names else (0, "")


def _function(node: Node) -> tuple[int, str]:
    return _STRONG, node.funcname[-1].string.sval


def _operator(node: Node) -> tuple[int, str]:
    return (_STRONG, "nullif") if Fields(node).enum("kind") == "AEXPR_NULLIF" else (0, "")


def _cast(node: Node) -> tuple[int, str]:
    strength, name = _named(unwrapped(node.arg))
    if strength > _WEAK or not node.HasField("type_name"):
        return strength, name
    return _WEAK, node.type_name.names[-1].string.sval


def _case(node: Node) -> tuple[int, str]:
    strength, name = _named(unwrapped(node.defresult)) if node.HasField("defresult") else (0, "")
    return (strength, name) if strength > _WEAK else (_WEAK, "case")


def _subquery(node: Node) -> tuple[int, str]:
    kind = Fields(node).enum("sub_link_type")
    if kind == "EXISTS_SUBLINK":
        return _STRONG, "exists"
    if kind == "ARRAY_SUBLINK":
        return _STRONG, "array"
    if kind != "EXPR_SUBLINK":
        return 0, ""
    select = unwrapped(node.subselect)
    if not select.target_list:
        raise Unproven("the name of a column that is a set operation")
    target = select.target_list[0].res_target
    return (_STRONG, target.name) if target.name else _named(unwrapped(target.val))


def _indirection(node: Node) -> tuple[int, str]:
    names = [each.string.sval for each in node.indirection if each.WhichOneof("node") == "string"]
    return (_STRONG, names[-1]) if names else _named(unwrapped(node.arg))


_READERS: dict[str, Callable[[Node], tuple[int, str]]] = {
    "ColumnRef": _column,
    "FuncCall": _function,
    "A_Expr": _operator,
    "TypeCast": _cast,
    "CollateClause": lambda node: _named(unwrapped(node.arg)),
    "CaseExpr": _case,
    "SubLink": _subquery,
    "A_Indirection": _indirection,
    "A_ArrayExpr": lambda _: (_STRONG, "array"),
    "RowExpr": lambda _: (_STRONG, "row"),
    "CoalesceExpr": lambda _: (_STRONG, "coalesce"),
    "MinMaxExpr": lambda node: (_STRONG, {"IS_GREATEST": "greatest"}.get(Fields(node).enum("op"), "least")),
    "GroupingFunc": lambda _: (_STRONG, "grouping"),
    "SQLValueFunction": lambda node: (_STRONG, _VALUE_FUNCTIONS[Fields(node).enum("op")]),
}
