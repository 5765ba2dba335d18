"""Binding of the user's SQL: tokenize it, find its tables twice, resolve their names, splice in placeholders."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tidemark.mirror.sql.catalog import NameCatalog, TableKey
from tidemark.mirror.sql.hints import without_text_hints
from tidemark.mirror.sql.limits import check_is_one_query, check_is_plain
from tidemark.mirror.sql.lookups import Lookups
from tidemark.mirror.sql.mentions import Mentions
from tidemark.mirror.sql.references import Finder, without_marks
from tidemark.mirror.sql.refusal import refuse
from tidemark.mirror.sql.splice import Statement, spliced
from tidemark.mirror.sql.tokens import read
from tidemark.mirror.sql.tree import agreed, is_cte, parse


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
