"""The places where a query names tables, found by a scan of its tokens that follows Spark's SqlBaseParser.g4."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tidemark.mirror.sql.tokens import Token, refuse, refuse_table_keyword

QUERY_STARTS = {"SELECT", "WITH", "VALUES", "FROM", "("}
FROM_ENDS = {
    *("SELECT", "WHERE", "GROUP", "HAVING", "WINDOW", "QUALIFY", "ORDER", "CLUSTER", "DISTRIBUTE", "SORT"),
    *("LIMIT", "OFFSET", "UNION", "EXCEPT", "INTERSECT", "MINUS", "SETMINUS"),
}
_NOT_AN_ALIAS = FROM_ENDS | {
    *("JOIN", "CROSS", "INNER", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI", "NATURAL", "LATERAL", "ON", "USING"),
    *("PIVOT", "UNPIVOT"),
}
_FROM_AS_ARGUMENT = {"EXTRACT", "TRIM", "SUBSTR", "SUBSTRING", "OVERLAY"}


@dataclass(frozen=True, slots=True)
class Reference:
    """A name in the place of a table: its parts, its alias if it has one, and where one would be added.

    With `only`, ONLY precedes it. `marks` are the tokens of PostgreSQL's syntax that Spark does not support: ONLY with
    its parentheses, and the * of `name *`.
    """

    parts: tuple[Token, ...]
    alias: Token | None
    alias_at: int
    only: bool = False
    marks: tuple[Token, ...] = ()

    @property
    def start(self) -> int:
        """The offset at which its first part begins."""
        return self.parts[0].start

    @property
    def end(self) -> int:
        """The offset at which its last part ends."""
        return self.parts[-1].end

    @property
    def known_as(self) -> str:
        """The name that qualifies its columns."""
        return (self.alias or self.parts[-1]).name

    def __str__(self) -> str:
        return ".".join(part.text for part in self.parts)


@dataclass(slots=True)
class _Level:
    """The state inside a pair of brackets: in a FROM clause, in a VALUES list, or before the name of a table."""

    opener: str = ""
    in_from: bool = False
    expecting: bool = False
    in_values: bool = False
    in_select: bool = False


@dataclass(slots=True)
class Finder:
    """A scan of the tokens for names where Spark's grammar has a relation. It fails closed: in doubt it raises."""

    sql: str
    tokens: Sequence[Token]
    levels: list[_Level] = field(default_factory=lambda: [_Level()])
    found: list[Reference] = field(default_factory=list)

    def references(self) -> list[Reference]:
        """Return every name in the place of a table, in the order of the text."""
        at = 0
        while at < len(self.tokens):
            at = self._relation(at) if self.levels[-1].expecting else self._other(at)
        if len(self.levels) > 1 or self.levels[0].expecting:
            refuse(self.sql, len(self.sql), "unexpected end of the query", "Complete the query.")
        return self.found

    def _at(self, at: int) -> Token:
        end = len(self.sql)
        return self.tokens[at] if 0 <= at < len(self.tokens) else Token("end", end, end, "", "")

    def _relation(self, at: int) -> int:
        """Process the token in the place of a table, and return the index of the next one."""
        token, level = self._at(at), self.levels[-1]
        if token.text == "(":
            self.levels.append(_Level(in_from=True, expecting=True))
            level.expecting = False
            return at + 1
        if token.keyword == "LATERAL":
            return at + 1
        level.expecting = False
        if token.keyword in {"SELECT", "WITH", "FROM", "TABLE"}:
            level.in_from = False
            return self._other(at)
        if token.keyword == "VALUES":
            level.in_values = True
            return at + 1
        return self._only(at) if self._is_only(at) else self._name(at)

    def _is_only(self, at: int) -> bool:
        """Return whether this is ONLY before a name, and not itself a name."""
        after = self._at(at + 1)
        is_name = after.is_name and after.keyword not in _NOT_AN_ALIAS | {"AS", "TABLESAMPLE"}
        return self._at(at).keyword == "ONLY" and (is_name or after.text == "(")

    def _only(self, at: int) -> int:
        """Process `ONLY name` or `ONLY (name)`."""
        marks = [self._at(at)]
        bracketed = self._at(at + 1).text == "("
        parts, end = self._parts(at + 2 if bracketed else at + 1)
        if bracketed:
            marks += [self._at(at + 1), self._at(end)]
        if (bracketed and self._at(end).text != ")") or self._at(end).text in {"(", "*"}:
            refuse(self.sql, self._at(at).start, "ONLY requires the name of one table", "Write ONLY schema.table.")
        end += bracketed
        self.found.append(self._reference(parts, end, only=True, marks=tuple(marks)))
        return end

    def _name(self, at: int) -> int:
        """Process a name: of a table function, which is left unchanged, or of a table, which a * may follow."""
        parts, end = self._parts(at)
        if self._at(end).text == "*":
            self.found.append(self._reference(parts, end + 1, marks=(self._at(end),)))
            return end + 1
        if self._at(end).text != "(":
            self.found.append(self._reference(parts, end))
        elif any(part.kind == "word" and part.text.upper() in {"IDENTIFIER", "STREAM"} for part in parts):
            refuse(
                self.sql,
                parts[0].start,
                f"{parts[-1].text}(…) is not supported as a table",
                "Write the name of the table.",
            )
        return end

    def _parts(self, at: int) -> tuple[tuple[Token, ...], int]:
        """Return the parts of a name, and the index of the token after it."""
        if not self._at(at).is_name:
            hint = "Write a table name; in Spark's SQL a name that needs quotes stands in backticks."
            refuse(
                self.sql,
                self._at(at).start,
                f"expected a table name, found {self._at(at).text[:40] or 'the end of the query'}",
                hint,
            )
        parts = [self._at(at)]
        while self._at(at + 1).text == "." and self._at(at + 2).is_name:
            at += 2
            parts.append(self._at(at))
        return tuple(parts), at + 1

    def _reference(
        self, parts: tuple[Token, ...], at: int, *, only: bool = False, marks: tuple[Token, ...] = ()
    ) -> Reference:
        """Return a reference with its alias, which in Spark comes after TABLESAMPLE."""
        if self._at(at).keyword == "TABLESAMPLE":
            while self._at(at).text not in {"(", ""}:
                at += 1
            at = self._after_bracket(at)
            at = self._after_bracket(at + 1) if self._at(at).keyword == "REPEATABLE" else at
        token = self._at(at)
        if token.keyword == "AS":
            return Reference(parts, self._at(at + 1), token.start, only, marks)
        is_alias = token.is_name and token.keyword not in _NOT_AN_ALIAS
        return Reference(parts, token if is_alias else None, self._at(at - 1).end, only, marks)

    def _after_bracket(self, at: int) -> int:
        depth = 0
        while self._at(at).text:
            depth += {"(": 1, ")": -1}.get(self._at(at).text, 0)
            at += 1
            if not depth:
                break
        return at

    def _other(self, at: int) -> int:
        """Process a token that is not a table, and update the state for the tokens that follow."""
        token, level = self._at(at), self.levels[-1]
        if token.text in {"(", "["}:
            self.levels.append(_Level(opener=self._at(at - 1).keyword))
        elif token.text in {")", "]"}:
            self._close(token)
        elif token.text == ",":
            level.expecting = level.in_from and (not level.in_values or self._ends_values(at + 1))
        elif token.text == "|>":
            refuse(
                self.sql,
                token.start,
                "the pipe operator |> is not supported",
                "Write the query with SELECT and subqueries.",
            )
        elif token.keyword:
            self._keyword(at, token.keyword, level)
        return at + 1

    def _close(self, token: Token) -> None:
        if len(self.levels) == 1:
            refuse(self.sql, token.start, f"unbalanced {token.text}", "Balance the brackets.")
        self.levels.pop()

    def _ends_values(self, at: int) -> bool:
        """Return whether a relation follows a comma after VALUES: a name that is not a value."""
        token, after = self._at(at), self._at(at + 1)
        is_value = token.keyword in {"NULL", "TRUE", "FALSE"} or after.text == "(" or after.kind == "string"
        return token.is_name and not is_value

    def _keyword(self, at: int, keyword: str, level: _Level) -> None:
        if keyword in FROM_ENDS or (keyword == "LATERAL" and self._at(at + 1).keyword == "VIEW"):
            level.in_from = level.in_values = False
            level.in_select |= keyword == "SELECT"
        elif keyword == "JOIN" or (keyword == "FROM" and not self._is_argument(at, level)):
            level.in_from = level.expecting = True
            level.in_values = False
        elif keyword == "TABLE":
            starts = {self._at(at + 2).keyword, self._at(at + 2).text}
            if self._at(at + 1).text != "(" or not starts & QUERY_STARTS:
                refuse_table_keyword(self.sql, self._at(at).start)
        elif keyword == "INSERT" and self._at(at + 1).keyword in {"INTO", "OVERWRITE", "WITH"}:
            refuse(
                self.sql,
                self._at(at).start,
                "INSERT is not a query",
                "A mirror is read-only: write SELECT, WITH or VALUES.",
            )

    def _is_argument(self, at: int, level: _Level) -> bool:
        """Return whether a FROM starts no clause, as in `extract(year from d)` and `a is distinct from b`."""
        if self._at(at - 1).keyword == "DISTINCT":
            return self._at(at - 2).keyword in {"IS", "NOT"}
        return level.opener in _FROM_AS_ARGUMENT and not level.in_select


def without_marks(tokens: Sequence[Token], masked: str, references: Iterable[Reference]) -> tuple[list[Token], str]:
    """Return the tokens and the masked text without the marks that only PostgreSQL supports; spaces replace them."""
    marks = {mark.start: mark for reference in references for mark in reference.marks}
    for mark in marks.values():
        masked = masked[: mark.start] + " " * (mark.end - mark.start) + masked[mark.end :]
    return [token for token in tokens if token.start not in marks], masked
