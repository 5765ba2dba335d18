"""Checks for syntax that Spark may accept and a mirror does not: several statements, tables with more than a name."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.errors import InvalidValue
from tidemark.mirror.sql.references import QUERY_STARTS, Reference
from tidemark.mirror.sql.refusal import refuse, refuse_table_keyword
from tidemark.mirror.sql.tokens import Token

_MOMENTS = {"VERSION", "SYSTEM_VERSION", "TIMESTAMP", "SYSTEM_TIME"}
_USE_AT = "Use `--at`, or `mirror.at(…)` in Python: it holds for every table of the query."


def check_is_one_query(sql: str, tokens: Sequence[Token]) -> None:
    """Require one statement that begins like a query; the parser checks the rest."""
    body = [token for token in tokens if token.text != ";"]
    if not body:
        raise InvalidValue("the statement is empty", "Write a SELECT.")
    for token in tokens:
        if token.text == ";" and token.start < body[-1].start:
            refuse(sql, token.start, "multiple statements are not supported", "Run one statement at a time.")
    first = body[0]
    if first.keyword == "TABLE":
        refuse_table_keyword(sql, first.start)
    if (first.keyword or first.text) not in QUERY_STARTS:
        hint = "A mirror is read-only: write SELECT, WITH or VALUES."
        refuse(sql, first.start, f"{first.text[:40]} is not the start of a query", hint)


def check_is_plain(sql: str, tokens: Sequence[Token], reference: Reference) -> None:
    """Refuse a table with more than a name: a catalog, a position of its own, CHANGES FROM, or options."""
    if len(reference.parts) > 2:
        short = ".".join(part.text for part in reference.parts[-2:])
        refuse(sql, reference.start, f"table name {reference} has more than two parts", f"Write {short}.")
    after = [token for token in tokens if token.start >= reference.end][:4]
    words = [token.keyword or token.text for token in after]
    words = words[1:] if words[:1] == ["FOR"] else words
    if words[:1] == ["@"] or (words[:1] and words[0] in _MOMENTS and words[1:3] == ["AS", "OF"]):
        refuse(sql, reference.start, f"time travel for one table ({reference}) is not supported", _USE_AT)
    if words[:2] == ["CHANGES", "FROM"]:
        refuse(
            sql,
            reference.start,
            f"CHANGES FROM is not supported for {reference}",
            "Run `tidemark changes LAKE TABLE`, or use `mirror.changes(…)` in Python.",
        )
    if words[:2] == ["WITH", "("]:
        refuse(sql, reference.start, f"options are not supported for {reference}", "Remove WITH (…).")
