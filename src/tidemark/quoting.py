"""Names and texts in statements: one function for each rule of quoting. A test rejects any other code that quotes.

Statements for PostgreSQL are composed with `psycopg.sql` where a session executes them; the functions here are for
statements that are analyzed, shown or passed on.
"""

from __future__ import annotations

import re

_PLAIN_TEXT = re.compile(r"[A-Za-z0-9 _.,:;@#%&*()+/<>=!?|~^-]*")


def in_quotes(text: str, mark: str) -> str:
    """Return a text between quotation marks, with those inside doubled."""
    return mark + text.replace(mark, 2 * mark) + mark


def double_quoted(name: str) -> str:
    """Return an identifier of PostgreSQL or DuckDB."""
    return in_quotes(name, '"')


def backticked(name: str) -> str:
    """Return an identifier of Spark, which may have every character."""
    return in_quotes(name, "`")


def postgres_text(text: str) -> str:
    """Return a string constant of PostgreSQL, for every setting of standard_conforming_strings."""
    constant = in_quotes(text, "'")
    return "E" + constant.replace("\\", "\\\\") if "\\" in text else constant


def duckdb_text(text: str) -> str:
    """Return a string constant of DuckDB."""
    return in_quotes(text, "'")


def spark_text(text: str) -> str:
    """Return a string constant of Spark; hexadecimal digits if a character could be an escape or a variable."""
    return in_quotes(text, "'") if _PLAIN_TEXT.fullmatch(text) else f"CAST({spark_bytes(text.encode())} AS STRING)"


def spark_bytes(data: bytes) -> str:
    """Return a constant of Spark's type BINARY."""
    return "X" + in_quotes(data.hex(), "'")


def array_element(text: str) -> str:
    """Return a text as an element of an array in PostgreSQL's text form."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
