"""TPC-H in PostgreSQL: the specification's schema, and its 22 queries with their validation parameters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg

from harness.tpc.generate import load

FOLDER = Path(__file__).parent / "tpch"
_TABLE = re.compile(r"create table (\w+) \((.*?)^\);", re.MULTILINE | re.DOTALL)
_COLUMN = re.compile(r"^    (\w+_\w+) ", re.MULTILINE)


def tables() -> dict[str, str]:
    """The list of columns by name of the table."""
    schema = (FOLDER / "schema.sql").read_text()
    return {name: ", ".join(_COLUMN.findall(body)) for name, body in _TABLE.findall(schema)}


def statements() -> dict[str, str]:
    """The queries by name."""
    return {f"tpch {path.stem}": path.read_text().strip() for path in sorted(FOLDER.glob("[0-9]*.sql"))}


def fill(connection: psycopg.Connection[Any], scale: float) -> None:
    """Create and fill the tables."""
    connection.execute((FOLDER / "schema.sql").read_text().encode())
    load(connection, "tpch", scale, tables())
    connection.execute("analyze")
    connection.commit()
