"""The columns that a relation defines, and those that it names."""

from __future__ import annotations

from tidemark.errors import Unproven
from tidemark.split import ir


def produced(relation: ir.Relation) -> set[str]:
    """Return the names of the columns that are defined inside of a relation."""
    names: set[str] = set()
    for node in ir.walk(relation):
        if isinstance(node, ir.Scan):
            names |= {column.name for _, column in node.columns}
        elif isinstance(node, ir.Project):
            names |= {column.name for column, _ in node.columns}
        elif isinstance(node, ir.Group):
            names |= {column.name for column, _ in (*node.keys, *node.aggregates)}
        elif isinstance(node, ir.Union):
            names |= {column.name for column in node.columns}
    return names


def closed(relation: ir.Relation) -> None:
    """Raise Unproven if a relation names a column that is defined outside of it."""
    if not {each.name for each in ir.columns_in(relation)} <= produced(relation):
        raise Unproven("a correlated subquery of another form")


def all_of(conditions: list[ir.Expr]) -> ir.Expr:
    """Return conditions joined by AND."""
    return conditions[0] if len(conditions) == 1 else ir.Call(ir.Op.AND, tuple(conditions), ir.BOOL)
