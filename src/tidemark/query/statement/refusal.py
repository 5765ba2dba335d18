"""Why a query is not bound, with its place in the text and one line of what to try."""

from __future__ import annotations

from typing import NoReturn

from tidemark.errors import InvalidValue


def refuse(sql: str, at: int, what: str, hint: str) -> NoReturn:
    """Say what is wrong at a place of the text, and what to try."""
    line, column = sql.count("\n", 0, at) + 1, at - sql.rfind("\n", 0, at)
    raise InvalidValue(f"{what} (line {line}, column {column})", hint)


def refuse_table_keyword(sql: str, at: int) -> NoReturn:
    """TABLE before a name is a query to Spark, as in `union all table orders`; there are plainer ways to say it."""
    hint = "write select * from name, TABLE (select * from name) as an argument, or `table` for a name"
    refuse(sql, at, "TABLE name is not supported", hint)
