"""The edits put into the text, as a format string, with every other byte left as it was."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidemark.query.statement.catalog import TableKey, quoted
from tidemark.query.statement.lookups import Equalities
from tidemark.query.statement.mentions import Edit
from tidemark.query.statement.references import Reference
from tidemark.query.statement.tokens import comments


@dataclass(frozen=True, slots=True)
class Statement:
    """A text for `spark.sql(text, **frames)`, what each placeholder stands for, and which of its rows are asked for.

    `only` are the placeholders of tables that are read by ONLY.

    Where there are tables, the text is a format string and the user's own braces are doubled. Where there are none it
    is the user's text as it was, because Spark formats only when frames are given.
    """

    text: str
    tables: Mapping[str, TableKey]
    lookups: Mapping[str, Equalities] = field(default_factory=dict)
    only: frozenset[str] = frozenset()


def spliced(
    sql: str, references: Sequence[Reference], bound: Mapping[int, TableKey], mentions: Iterator[Edit]
) -> Statement:
    """The text with placeholders, aliases and mentions in place.

    A table that is read twice has one placeholder, and another one where it is read by ONLY.
    """
    placeholders: dict[tuple[TableKey, bool], str] = {}
    edits = [(start, end, _escaped(text)) for start, end, text in mentions]
    for reference in references:
        if reference.start in bound:
            name = placeholders.setdefault((bound[reference.start], reference.only), f"t{len(placeholders)}")
            edits += [(mark.start, mark.end, " ") for mark in reference.marks]
            edits.append((reference.start, reference.end, _apart(sql, reference, name)))
            if reference.alias is None:
                alias = _escaped(quoted(reference.known_as))
                edits.append((reference.alias_at, reference.alias_at, f" AS {alias}"))
    text, at = "", 0
    for start, end, replacement in sorted(edits, key=lambda edit: edit[:2]):
        text += _escaped(sql[at:start]) + replacement
        at = end
    text += _escaped(sql[at:])
    tables = {name: key for (key, _), name in placeholders.items()}
    only = frozenset(name for (_, only), name in placeholders.items() if only)
    return Statement(text if placeholders else sql, tables, only=only)


def _escaped(text: str) -> str:
    """Braces doubled, as Python's formatter wants them."""
    return text.replace("{", "{{").replace("}", "}}")


def _apart(sql: str, reference: Reference, name: str) -> str:
    """The placeholder, with a space where only a backtick kept the name from its neighbour."""
    before = " " if re.match(r"\w", sql[: reference.start][-1:]) else ""
    after = " " if re.match(r"\w", sql[reference.end :][:1]) else ""
    return f"{before}{{{name}}}{_escaped(comments(sql, reference.start, reference.end))}{after}"
