"""Binding of the user's SQL: tokenize it, find its tables twice, resolve their names, splice in placeholders.

Syntax that Spark may accept and a mirror does not is refused: several statements, tables with more than a name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tidemark.errors import InvalidValue
from tidemark.mirror.sql.catalog import NameCatalog, TableKey
from tidemark.mirror.sql.hints import without_text_hints
from tidemark.mirror.sql.lookups import Lookups
from tidemark.mirror.sql.references import QUERY_STARTS, Finder, Reference, without_marks
from tidemark.mirror.sql.splice import Mentions, Statement, spliced
from tidemark.mirror.sql.tokens import Token, read, refuse, refuse_table_keyword
from tidemark.mirror.sql.tree import agreed, is_cte, parse

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


def bind(sql: str, known: Collection[TableKey], search_path: Sequence[str] = ("public",)) -> Statement:
    """Resolve each table of one query to a table of the mirror, and replace it by a placeholder.

    Unknown tables, ambiguous names, and texts in which a table could be overlooked are refused.
    """
    typed = sql
    sql, as_text = without_text_hints(sql)
    tokens, masked = read(sql)
    check_is_one_query(sql, tokens)
    references = Finder(sql, tokens).references()
    tokens, masked = without_marks(tokens, masked, references)
    for reference in references:
        check_is_plain(sql, tokens, reference)
    nodes = agreed(sql, references, parse(sql, masked))
    names = {token.start: token.name for token in tokens if token.is_name}
    catalog = NameCatalog(sql, tuple(known), tuple(search_path))
    bound: dict[int, TableKey] = {}
    for reference in references:
        if not is_cte(reference, nodes[reference.start], names):
            bound[reference.start] = catalog.find(reference)
        elif reference.marks:
            refuse(
                sql,
                reference.start,
                f"ONLY and * cannot be applied to {reference}, which is defined by WITH",
                f"Write {reference} alone.",
            )
    mentions = Mentions(sql, references, bound, nodes, names, catalog).edits()
    statement = spliced(sql, references, bound, mentions)
    lookups = Lookups(tokens, nodes).of_tables(statement.tables, bound)
    return replace(statement, lookups=lookups, typed=typed, as_text=as_text)
