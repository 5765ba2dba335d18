"""Application of the edits to the text, which becomes a format string; every other byte stays the same.

Columns that are qualified with a schema are edited when their table gets an alias.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from tidemark.mirror.sql.catalog import NameCatalog, TableKey
from tidemark.mirror.sql.references import Reference
from tidemark.mirror.sql.tokens import comments, refuse, token_end
from tidemark.quoting import backticked
from tidemark.reads.equalities import Equalities
from tidemark.schema.display import spark_name

Edit = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Mentions:
    """Columns written `schema.table.column`, whose qualifier is replaced by the alias that their table gets.

    A table that has an alias in the query cannot be qualified like this, and such a column is left to Spark. If the
    added alias could mean another relation, the column is refused.
    """

    sql: str
    references: Sequence[Reference]
    bound: Mapping[int, TableKey]
    nodes: Mapping[int, exp.Table]
    names: Mapping[int, str]
    catalog: NameCatalog

    def edits(self) -> Iterator[Edit]:
        """Yield an edit for each column that is qualified with a table that gets an alias."""
        roots = {id(node.root()): node.root() for node in self.nodes.values()}
        for tree in roots.values():
            for column in tree.find_all(exp.Column):
                starts = sorted(part.meta["start"] for part in column.parts if "start" in part.meta)
                if len(starts) >= 2 and len(column.parts) >= 3:
                    yield from self._edit(column, starts[0], starts[1])

    def _edit(self, column: exp.Column, first: int, second: int) -> Iterator[Edit]:
        schema, table = self.names.get(first, ""), self.names.get(second, "")
        key = next((group[0] for group in self.catalog.candidates(schema, table) if len(group) == 1), None)
        scope, others = column.parent_select, 0
        while key is not None and scope is not None:
            inside = [reference for reference in self._sources(scope) if self._is_bare(reference, key)]
            others += sum(name == table.lower() for name in self._other_names(scope, inside))
            if inside and others:
                hint = f"Give {spark_name(key)} an alias, and qualify the column with it."
                refuse(self.sql, first, f"{schema}.{table} is ambiguous: another relation is named {table}", hint)
            if inside:
                end = token_end(self.sql, second)
                yield first, end, backticked(inside[0].known_as) + comments(self.sql, first, end)
                return
            scope = scope.parent_select

    def _is_bare(self, reference: Reference, key: TableKey) -> bool:
        return reference.alias is None and self.bound.get(reference.start) == key

    def _sources(self, scope: exp.Expr) -> list[Reference]:
        return [reference for reference in self.references if self.nodes[reference.start].parent_select is scope]

    def _other_names(self, scope: exp.Expr, inside: Sequence[Reference]) -> Iterator[str]:
        """Yield the names of the relations of a SELECT, without those in `inside`."""
        yield from (reference.known_as.lower() for reference in self._sources(scope) if reference not in inside)
        for alias in scope.find_all(exp.TableAlias):
            is_source = not isinstance(alias.parent, (exp.CTE, exp.Table)) and alias.parent_select is scope
            if is_source and alias.this is not None:
                yield self.names.get(alias.this.meta.get("start", -1), "").lower()


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the text that Spark parses: its offset in the user's text, its size, and whether it has a view name.

    A `verbatim` piece is the user's own text; any other piece replaces a part of it.
    """

    start: int
    size: int
    has_view: bool = False
    verbatim: bool = True


@dataclass(frozen=True, slots=True)
class Statement:
    """A text for `spark.sql(text, **frames)`, the table of each placeholder, and the keys that the query selects of it.

    `only` are the placeholders of tables that are read with ONLY, `as_text` the columns of TEXT hints, by their parts.
    `typed` is the user's text, and `pieces` map an offset in Spark's text to an offset in it.

    With tables, the text is a format string, and the user's own braces are doubled. Without tables it is the user's
    text unchanged, because Spark formats the text only if frames are given.
    """

    text: str
    tables: Mapping[str, TableKey]
    lookups: Mapping[str, Equalities] = field(default_factory=dict)
    only: frozenset[str] = frozenset()
    typed: str = field(default="", compare=False)
    pieces: tuple[Piece, ...] = field(default=(), compare=False)
    as_text: tuple[tuple[str, ...], ...] = ()

    def origin(self, offset: int, view_size: int) -> int | None:
        """Return the offset in the user's text of an offset in Spark's, if view names have this size."""
        for piece in self.pieces:
            size = piece.size + view_size * piece.has_view
            if offset < size:
                return piece.start + offset * piece.verbatim
            offset -= size
        return None

    def rendered(self, offset: int, view_size: int) -> int:
        """Return the offset in Spark's text of an offset in a verbatim piece of the user's."""
        before = 0
        for piece in self.pieces:
            if piece.verbatim and piece.start <= offset < piece.start + piece.size:
                return before + offset - piece.start
            before += piece.size + view_size * piece.has_view
        return before


def spliced(
    sql: str, references: Sequence[Reference], bound: Mapping[int, TableKey], mentions: Iterator[Edit]
) -> Statement:
    """Return the text with placeholders, aliases and edited columns.

    A table that is read twice has one placeholder, and another one where it is read with ONLY.
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
                alias = f" AS {backticked(reference.known_as)}"
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
    """Double the braces, for Python's formatter."""
    return text.replace("{", "{{").replace("}", "}}")


def _apart(sql: str, reference: Reference) -> tuple[str, str]:
    """Return the text around a view name: comments, and spaces where only a backtick separated it from a neighbor."""
    before = " " if re.match(r"\w", sql[: reference.start][-1:]) else ""
    after = " " if re.match(r"\w", sql[reference.end :][:1]) else ""
    return before, comments(sql, reference.start, reference.end) + after
