"""Errors for queries that cannot be bound, with the position in the text and a hint."""

from __future__ import annotations

from typing import NoReturn

from tidemark.errors import InvalidValue


def refuse(sql: str, at: int, what: str, hint: str) -> NoReturn:
    """Raise InvalidValue for an offset in the text of a query."""
    raise InvalidValue(placed(sql, at, what), hint)


def placed(sql: str, at: int, what: str) -> str:
    """Return a message with its line and column in the text."""
    return f"{what} (line {sql.count(chr(10), 0, at) + 1}, column {at - sql.rfind(chr(10), 0, at)})"


def refuse_table_keyword(sql: str, at: int) -> NoReturn:
    """Refuse TABLE before a name, which is a query in Spark, as in `union all table orders`; SELECT is equivalent."""
    hint = "Write select * from name; as an argument, TABLE (select * from name); a table named table in backticks."
    refuse(sql, at, "the TABLE statement is not supported", hint)
