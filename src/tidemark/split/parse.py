"""A statement, parsed with PostgreSQL's grammar, and every name that the session has to resolve.

Only kinds of nodes that are listed here are accepted anywhere in a statement. Whether a part of it can be computed
below is decided later; this list is what may stand in the part that PostgreSQL finishes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.errors import Unproven
from tidemark.split.nodes import Node, kind_of, parsed, strings, walk

_ACCEPTED = frozenset(
    {
        *("SelectStmt", "ResTarget", "ColumnRef", "A_Star", "A_Const", "ParamRef", "A_Expr", "BoolExpr", "NullTest"),
        *("BooleanTest", "CaseExpr", "CaseWhen", "CoalesceExpr", "MinMaxExpr", "TypeCast", "TypeName", "FuncCall"),
        *("SubLink", "List", "String", "Integer", "Float", "Boolean", "BitString", "SortBy", "WindowDef", "RangeVar"),
        *("Alias", "JoinExpr", "RangeSubselect", "WithClause", "CommonTableExpr", "GroupingSet", "GroupingFunc"),
        *("A_ArrayExpr", "RowExpr", "SQLValueFunction", "CollateClause", "A_Indirection", "A_Indices"),
    }
)
# Operators that the grammar implies without naming them: USING, IN, BETWEEN, CASE x WHEN, NULLIF and others.
_IMPLIED = frozenset({"=", "<>", "<", "<=", ">", ">=", "~~", "!~~", "+", "-", "*", "/", "%", "||"})

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
            found["functions"].add(strings([each.string for each in node.funcname]))
        elif kind == "TypeName":
            found["types"].add(strings([each.string for each in node.names]))
        elif kind in {"A_Expr", "SubLink"}:
            operators |= {_operator(list(node.name if kind == "A_Expr" else node.oper_name))}
        elif kind == "SortBy" and node.use_op:
            raise Unproven("ORDER BY … USING")
        elif kind == "ParamRef":
            parameters.add(node.number)
    if not found["relations"]:
        raise Unproven("no table")
    names = {kind: frozenset(each) for kind, each in found.items()}
    return Parsed(statement, select, **names, operators=frozenset(operators - {""}), parameters=frozenset(parameters))


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
