"""The edits put into the text, as a format string, with every other byte left as it was."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidemark.mirror.sql.catalog import TableKey, quoted
from tidemark.mirror.sql.mentions import Edit
from tidemark.mirror.sql.references import Reference
from tidemark.mirror.sql.tokens import comments
from tidemark.reads.equalities import Equalities


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the text that Spark parses: where it comes from, its size, and whether it has a view's name in it.

    What is `verbatim` is the user's own text; all else stands in place of it.
    """

    start: int
    size: int
    has_view: bool = False
    verbatim: bool = True


@dataclass(frozen=True, slots=True)
class Statement:
    """A text for `spark.sql(text, **frames)`, what each placeholder stands for, and which of its rows are asked for.

    `only` are the placeholders of tables that are read by ONLY, `as_text` the columns of TEXT hints, by their parts.
    `typed` is what the user wrote, and `pieces` tell which part of it an offset in Spark's text belongs to.

    Where there are tables, the text is a format string and the user's own braces are doubled. Where there are none it
    is the user's text as it was, because Spark formats only when frames are given.
    """

    text: str
    tables: Mapping[str, TableKey]
    lookups: Mapping[str, Equalities] = field(default_factory=dict)
    only: frozenset[str] = frozenset()
    typed: str = field(default="", compare=False)
    pieces: tuple[Piece, ...] = field(default=(), compare=False)
    as_text: tuple[tuple[str, ...], ...] = ()

    def origin(self, offset: int, view_size: int) -> int | None:
        """The user's offset of one in Spark's text, where views have names of this size."""
        for piece in self.pieces:
            size = piece.size + view_size * piece.has_view
            if offset < size:
                return piece.start + offset * piece.verbatim
            offset -= size
        return None

    def rendered(self, offset: int, view_size: int) -> int:
        """The offset in Spark's text of one of the user's, in what is verbatim."""
        before = 0
        for piece in self.pieces:
            if piece.verbatim and piece.start <= offset < piece.start + piece.size:
                return before + offset - piece.start
            before += piece.size + view_size * piece.has_view
        return before


def spliced(
    sql: str, references: Sequence[Reference], bound: Mapping[int, TableKey], mentions: Iterator[Edit]
) -> Statement:
    """The text with placeholders, aliases and mentions in place.

    A table that is read twice has one placeholder, and another one where it is read by ONLY.
    """
    placeholders: dict[tuple[TableKey, bool], str] = {}
    edits = [(start, end, text, "", "") for start, end, text in mentions]
    for reference in references:
        if reference.start in bound:
            name = placeholders.setdefault((bound[reference.start], reference.only), f"t{len(placeholders)}")
            edits += [(mark.start, mark.end, " ", "", "") for mark in reference.marks]
            before, after = _apart(sql, reference)
            edits.append((reference.start, reference.end, before, name, after))
            if reference.alias is None:
                alias = f" AS {quoted(reference.known_as)}"
                edits.append((reference.alias_at, reference.alias_at, alias, "", ""))
    text, at, pieces = "", 0, list[Piece]()
    for start, end, before, view, after in sorted(edits, key=lambda edit: edit[:2]):
        text += _escaped(sql[at:start]) + _escaped(before) + (f"{{{view}}}" if view else "") + _escaped(after)
        pieces += [Piece(at, start - at), Piece(start, len(before) + len(after), bool(view), verbatim=False)]
        at = end
    text += _escaped(sql[at:])
    pieces.append(Piece(at, len(sql) - at))
    tables = {name: key for (key, _), name in placeholders.items()}
    only = frozenset(name for (_, only), name in placeholders.items() if only)
    return Statement(text if placeholders else sql, tables, only=only, typed=sql, pieces=tuple(pieces))


def _escaped(text: str) -> str:
    """Braces doubled, as Python's formatter wants them."""
    return text.replace("{", "{{").replace("}", "}}")


def _apart(sql: str, reference: Reference) -> tuple[str, str]:
    """What stands around a view's name: spaces where only a backtick kept it from its neighbours, and comments."""
    before = " " if re.match(r"\w", sql[: reference.start][-1:]) else ""
    after = " " if re.match(r"\w", sql[reference.end :][:1]) else ""
    return before, comments(sql, reference.start, reference.end) + after
