"""A statement, parsed with PostgreSQL's grammar, and every name that the session has to resolve.

Only kinds of nodes that are listed here are accepted anywhere in a statement. Whether a part of it can be computed
below is decided later; this list is what may stand in the part that PostgreSQL finishes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidemark.errors import Unproven
from tidemark.split.nodes import Node, kind_of, parsed, strings, unwrapped, walk

_ACCEPTED = frozenset(
    {
        *("SelectStmt", "ResTarget", "ColumnRef", "A_Star", "A_Const", "ParamRef", "A_Expr", "BoolExpr", "NullTest"),
        *("BooleanTest", "CaseExpr", "CaseWhen", "CoalesceExpr", "MinMaxExpr", "TypeCast", "TypeName", "FuncCall"),
        *("SubLink", "List", "String", "Integer", "Float", "Boolean", "BitString", "SortBy", "WindowDef", "RangeVar"),
        *("Alias", "JoinExpr", "RangeSubselect", "WithClause", "CommonTableExpr", "GroupingSet", "GroupingFunc"),
        *("A_ArrayExpr", "RowExpr", "SQLValueFunction", "CollateClause", "A_Indirection", "A_Indices"),
    }
)
# Operators that the grammar implies without naming them: JOIN … USING, IN, BETWEEN, and CASE x WHEN.
_IMPLIED = frozenset({"=", "<>", "<", "<=", ">", ">="})
# Functions that read the transaction, which may be another one than the client's.
_OF_TRANSACTION = frozenset(
    {
        *("txid_current", "txid_current_if_assigned", "txid_current_snapshot", "pg_current_snapshot"),
        *("pg_current_xact_id", "pg_current_xact_id_if_assigned"),
    }
)
_SETTINGS_OF_TRANSACTION = ("transaction_", "idle_in_transaction_session_timeout", "tidemark.")
# Words of a date or time that PostgreSQL reads when it parses a statement, which may be before it is run.
_MOMENTS = frozenset({"now", "today", "tomorrow", "yesterday"})
_BESIDE_MOMENTS = frozenset({"allballs", "am", "at", "gmt", "pm", "t", "utc", "z", "zulu"})
_WORDS = re.compile(r"[a-z]+")

Name = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parsed:
    """A SELECT, and the names in it: of relations, functions, types, operators and collations, as they are written."""

    statement: str
    select: Node
    relations: frozenset[Name]
    functions: frozenset[Name]
    types: frozenset[Name]
    operators: frozenset[str]
    parameters: frozenset[int]


def parse(statement: str) -> Parsed:
    """Parse a statement; raise Unproven if it is not a single SELECT of accepted nodes that reads a table."""
    if "\0" in statement:
        raise Unproven("a zero byte in the statement")
    select = parsed(statement)
    if kind_of(select) != "SelectStmt":
        raise Unproven("not a SELECT")
    found: dict[str, set[Name]] = {"relations": set(), "functions": set(), "types": set()}
    operators, parameters = set(_IMPLIED), set[int]()
    for node in walk(select):
        kind = kind_of(node)
        if kind not in _ACCEPTED:
            raise Unproven(f"a node of the kind {kind}")
        if kind == "RangeVar":
            found["relations"].add(_relation(node))
        elif kind == "FuncCall":
            found["functions"].add(name := strings([each.string for each in node.funcname]))
            _require_same_transaction(name[-1], [unwrapped(each) for each in node.args])
        elif kind == "TypeName":
            found["types"].add(strings([each.string for each in node.names]))
        elif kind in {"A_Expr", "SubLink"}:
            operators |= {_operator(list(node.name if kind == "A_Expr" else node.oper_name))}
        elif kind == "SortBy" and node.use_op:
            raise Unproven("ORDER BY … USING")
        elif kind == "ParamRef":
            parameters.add(node.number)
        elif kind == "A_Const":
            _require_no_moment(node.sval.sval)
    if not found["relations"]:
        raise Unproven("no table")
    names = {kind: frozenset(each) for kind, each in found.items()}
    return Parsed(statement, select, **names, operators=frozenset(operators - {""}), parameters=frozenset(parameters))


def _require_same_transaction(name: str, args: list[Node]) -> None:
    """Refuse a function whose value depends on the transaction."""
    if name == "current_setting":
        setting = args[0].sval.sval.lower() if args and kind_of(args[0]) == "A_Const" else ""
        if not setting or setting.startswith(_SETTINGS_OF_TRANSACTION):
            raise Unproven("current_setting of a setting of the transaction, or of one that is not known")
    if name in _OF_TRANSACTION:
        raise Unproven(f"the function {name}, which reads the transaction")


def _require_no_moment(text: str) -> None:
    words = set(_WORDS.findall(text.lower()))
    if words & _MOMENTS and words <= _MOMENTS | _BESIDE_MOMENTS:
        raise Unproven("a literal that may be a moment, such as now or today")


def _relation(node: Node) -> Name:
    if node.catalogname:
        raise Unproven("a table with the name of a database")
    return (node.schemaname, node.relname) if node.schemaname else (node.relname,)


def _operator(parts: list[Node]) -> str:
    """Return the name of an operator; one in another schema than pg_catalog is refused."""
    names = strings([each.string for each in parts])
    if len(names) > 1 and names[0] != "pg_catalog":
        raise Unproven("an operator with the name of a schema")
    return names[-1] if names else ""
