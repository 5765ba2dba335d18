"""Why a query is not bound, with its place in the text and one line of what to try."""

from __future__ import annotations

from typing import NoReturn

from tidemark.errors import InvalidValue


def refuse(sql: str, at: int, what: str, hint: str) -> NoReturn:
    """Refuse a query for what stands at a place of its text."""
    raise InvalidValue(placed(sql, at, what), hint)


def placed(sql: str, at: int, what: str) -> str:
    """A message with its place in the text."""
    return f"{what} (line {sql.count(chr(10), 0, at) + 1}, column {at - sql.rfind(chr(10), 0, at)})"


def refuse_table_keyword(sql: str, at: int) -> NoReturn:
    """TABLE before a name is a query to Spark, as in `union all table orders`; there are plainer ways to say it."""
    hint = "Write select * from name; as an argument, TABLE (select * from name); a table named table in backticks."
    refuse(sql, at, "the TABLE statement is not supported", hint)
