"""SQL as text for users to run, with every name and value quoted."""

from __future__ import annotations

from typing import LiteralString

from psycopg import sql

from tidemark.schema.table import Table


def statement(template: LiteralString, *parts: sql.Composable) -> str:
    """Return a statement with its placeholders filled in."""
    return sql.SQL(template).format(*parts).as_string(None)


def table_name(table: Table) -> sql.Identifier:
    """Return a table's name with its schema."""
    return sql.Identifier(table.schema, table.name)
