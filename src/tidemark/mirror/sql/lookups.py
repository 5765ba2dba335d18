"""The keys that a query selects: with `where o.id = 5`, only rows with that key can contribute to the result.

An equality is used only if the tree and the tokens agree that nothing can undo it. In the tree it must be a conjunct of
the WHERE of the SELECT whose FROM names the table, with no joins other than inner ones. In the tokens it must be
between WHERE or AND and the next AND or the end of the clause. In doubt it is not used, and the whole table is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlglot import exp

from tidemark.mirror.sql.catalog import TableKey
from tidemark.mirror.sql.references import FROM_ENDS
from tidemark.mirror.sql.tokens import Token
from tidemark.reads.equalities import Equalities, Literal, LiteralKind

_FORMS = {
    LiteralKind.INTEGER: re.compile(r"-?[0-9]{1,19}"),
    LiteralKind.DECIMAL: re.compile(r"-?[0-9]+\.[0-9]*"),
    LiteralKind.STRING: re.compile(r"'[^'\\]*'"),
    LiteralKind.DATE: re.compile(r"DATE '[0-9]{4}-[0-9]{2}-[0-9]{2}'"),
    LiteralKind.TIMESTAMP: re.compile(
        r"TIMESTAMP '[0-9]{4}(?:-[0-9]{2}){2} [0-9]{2}(?::[0-9]{2}){2}(?:\.[0-9]{1,6})?'"
    ),
}
_PREFIXES = {"-": "-", "DATE": "DATE ", "TIMESTAMP": "TIMESTAMP "}
_SELECT = {
    *("with_", "hint", "distinct", "expressions", "from_", "joins", "where", "group", "having", "qualify", "windows"),
    *("distribute", "sort", "cluster", "order", "limit", "offset"),
}
_NOT_INNER = {"LEFT", "RIGHT", "FULL", "OUTER", "SEMI", "ANTI", "LATERAL", "PIVOT", "UNPIVOT", "TABLESAMPLE"}
_NO_COLUMNS = {"CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "CURRENT_USER", "SESSION_USER", "USER"}


@dataclass(frozen=True, slots=True)
class _Piece:
    """One side of an equality, as the indexes of its first and last token."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class _Column(_Piece):
    qualifier: str
    name: str


@dataclass(frozen=True, slots=True)
class _Value(_Piece):
    literal: Literal


@dataclass(frozen=True)
class Lookups:
    """The equalities of a query, from its tokens and from the tree."""

    tokens: Sequence[Token]
    nodes: Mapping[int, exp.Table]

    def of_tables(self, tables: Mapping[str, TableKey], bound: Mapping[int, TableKey]) -> dict[str, Equalities]:
        """Return for each placeholder the equalities that hold wherever its table is read."""
        found = {start: self._of(self.nodes[start], start) for start in bound}
        return {
            placeholder: _common([found[start] for start in found if bound[start] == key])
            for placeholder, key in tables.items()
        }

    def _of(self, node: exp.Table, start: int) -> dict[str, Literal]:
        """Return the equalities of one reference, given by its node and its offset."""
        select = _select_of(node)
        found: dict[str, Literal] = {}
        if select is None:
            return found
        names = [self._known_as(source) for source in _sources(select)]
        mine = self._known_as(node)
        qualifiers = {mine} if len(names) > 1 else {mine, ""}
        for sides in _equalities(select.args["where"].this) if names.count(mine) == 1 else ():
            column = next(filter(None, map(self._column, sides)), None)
            value = next(filter(None, map(self._literal, sides)), None)
            if column and value and column.qualifier in qualifiers and self._stands(column, value, start):
                found.setdefault(column.name, value.literal)
        return found

    @cached_property
    def _index(self) -> dict[int, int]:
        return {token.start: at for at, token in enumerate(self.tokens)}

    def _at(self, index: int) -> Token:
        return self.tokens[index] if 0 <= index < len(self.tokens) else Token("end", -1, -1, "", "")

    def _token(self, node: exp.Expr) -> int:
        """Return the index of the first token of a node, or an index out of range if the node has no position."""
        return self._index.get(node.meta.get("start", -1), -9)

    def _known_as(self, source: exp.Expr) -> str:
        """Return the name that qualifies the columns of a relation."""
        alias = source.args.get("alias")
        return self._at(self._token(source.this if alias is None else alias.this)).name.lower()

    def _column(self, node: exp.Expr) -> _Column | None:
        """Return a column, with or without a qualifier.

        Names that are not ASCII are left out, because only Spark decides which of them are equal regardless of case.
        """
        if not isinstance(node, exp.Column):
            return None
        at = [self._token(part) for part in node.parts]
        tokens = [self._at(index) for index in at]
        names = [token.name.lower() for token in tokens]
        if len(at) > 2 or at[-1] - at[0] != 2 * len(at) - 2 or not all(token.name.isascii() for token in tokens):
            return None
        if len(at) == 1 and tokens[0].keyword in _NO_COLUMNS:
            return None
        return _Column(at[0], at[-1], "".join(names[:-1]), names[-1])

    def _literal(self, node: exp.Expr) -> _Value | None:
        """Return a literal, with the sign or the type before it."""
        inner = node.this if isinstance(node, (exp.Neg, exp.Cast)) else node
        if not isinstance(inner, exp.Literal):
            return None
        last = self._token(inner)
        first = last if inner is node else last - 1
        prefix = _PREFIXES.get(self._at(first).text.upper()) if first < last else ""
        text = "" if prefix is None else prefix + self._at(last).text
        kind = next((kind for kind, form in _FORMS.items() if form.fullmatch(text)), None)
        too_long = kind is LiteralKind.INTEGER and not -(2**63) <= int(text) < 2**63
        return None if kind is None or too_long else _Value(first, last, Literal(kind, text))

    def _stands(self, column: _Column, value: _Value, start: int) -> bool:
        """Return whether this equality is a complete condition in the tokens, after a FROM with only inner joins."""
        pieces: tuple[_Piece, _Piece] = (column, value) if column.first < value.first else (value, column)
        left, right = pieces
        before, after = self._at(left.first - 1), self._at(right.last + 1)
        is_equality = right.first - left.last == 2 and self._at(left.last + 1).text == "="
        begins = before.keyword in {"WHERE", "AND"} or before.text == "("
        ends = after.keyword in FROM_ENDS | {"AND"} or after.text in {")", ";", ""}
        return is_equality and begins and ends and self._is_inner(left.first, start)

    def _is_inner(self, at: int, start: int) -> bool:
        """Return whether no keyword of another kind of join is between the FROM that contains the table and `at`."""
        depth = 0
        for token in reversed(self.tokens[:at]):
            depth = max(depth + {")": 1, "(": -1}.get(token.text, 0), 0)
            if not depth and token.keyword in _NOT_INNER:
                return False
            if not depth and token.keyword == "FROM":
                return token.start < start
        return False


def _common(each: Sequence[Equalities]) -> Equalities:
    """Return the equalities that all of them have."""
    return {column: value for column, value in each[0].items() if all(other.get(column) == value for other in each)}


def _select_of(node: exp.Table) -> exp.Select | None:
    """Return the SELECT that reads a table, if only rows that satisfy its WHERE can contribute to the result."""
    clause = node.parent
    select = clause.parent if isinstance(clause, (exp.From, exp.Join)) else None
    if not isinstance(select, exp.Select) or not select.args.get("where") or not _has_only(select, _SELECT):
        return None
    alias = node.args.get("alias")
    renamed = alias is not None and alias.args.get("columns")
    joins = all(_is_inner(join) for join in select.args.get("joins") or ())
    return select if joins and all(map(_is_plain, _sources(select))) and not renamed else None


def _sources(select: exp.Select) -> list[exp.Expr]:
    """Return the relations of a FROM clause."""
    return [select.args["from_"].this, *(join.this for join in select.args.get("joins") or ())]


def _is_plain(source: exp.Expr) -> bool:
    """Return whether a relation is a name or a subquery, without modifiers such as PIVOT."""
    inside = exp.Identifier if isinstance(source, exp.Table) else exp.Query
    is_one = isinstance(source, (exp.Table, exp.Subquery)) and isinstance(source.this, inside)
    return is_one and _has_only(source, {"this", "db", "alias"})


def _is_inner(join: exp.Join) -> bool:
    kinds = {join.args.get("kind") or "", join.args.get("method") or ""}
    return _has_only(join, {"this", "on", "using", "kind", "method"}) and kinds <= {"", "INNER", "CROSS", "NATURAL"}


def _has_only(node: exp.Expr, args: set[str]) -> bool:
    return all(name in args for name, value in node.args.items() if value)


def _equalities(condition: exp.Expr) -> Iterator[tuple[exp.Expr, exp.Expr]]:
    """Yield both sides of each equality that must hold if the condition holds."""
    waiting = [condition]
    while waiting:
        node = waiting.pop()
        if isinstance(node, exp.And):
            waiting += [node.expression, node.this]
        elif isinstance(node, exp.Paren):
            waiting.append(node.this)
        elif isinstance(node, exp.EQ):
            yield node.this, node.expression
