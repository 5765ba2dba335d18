"""The tokens of a text as Spark's lexer reads it (SqlBaseLexer.g4), and a masked copy of equal length for sqlglot.

In the copy, literals, comments, hints and quoted names are replaced by plain text, so that only this module decides
what is a literal in Spark.

`refuse` raises the error for a query that cannot be bound, with the position in the text and a hint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from tidemark.errors import InvalidValue

_SPACE = " \\t\\n\\f\\r\\x0b\\xa0\\u1680\\u2000-\\u200a\\u2028\\u202f\\u205f\\u3000"
_TOKEN = re.compile(
    rf"""(?P<space>[{_SPACE}]+|--(?:\\\n|[^\r\n])*)
    |(?P<string>'(?:[^'\\]|\\.|'')*'|[rR]'[^']*'|[rR]"[^"]*"|"(?:[^"\\]|\\.|"")*"|(?P<tag>\$[A-Za-z]*\$).*?(?P=tag))
    |(?P<quoted>`(?:[^`]|``)*`)
    |(?P<number>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:[fFdD]|[bB][dD])?(?![A-Za-z0-9_]))
    |(?P<word>\w+)
    |(?P<symbol>\|>|/\*\+|\*/|\$\{{|.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_MARK = re.compile(r"/\*|\*/")
_KINDS = ("space", "string", "quoted", "number", "word", "symbol")


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


@dataclass(frozen=True, slots=True)
class Token:
    """A token of Spark's parser. `keyword` is empty where the word can only be a name."""

    kind: str
    start: int
    end: int
    text: str
    keyword: str

    @property
    def is_name(self) -> bool:
        """Whether it can be a name or a part of one."""
        return self.kind == "quoted" or (self.kind == "word" and not self.text.isdigit())

    @property
    def name(self) -> str:
        """The name without its quotes."""
        return self.text[1:-1].replace("``", "`") if self.kind == "quoted" else self.text


def read(sql: str) -> tuple[list[Token], str]:
    """Return the tokens, without those of hints, and the masked text for sqlglot."""
    tokens: list[Token] = []
    masked: list[str] = []
    in_hint = False
    for kind, start, end in _lexemes(sql):
        text = sql[start:end]
        opens, closes = text == "/*+", in_hint and text == "*/"
        if in_hint or opens or kind == "space":
            masked.append(_blank(text))
        else:
            keyword = text.upper() if kind == "word" and not (tokens and tokens[-1].text == ".") else ""
            tokens.append(Token(kind, start, end, text, keyword))
            masked.append(_mask(kind, text))
        if in_hint and text.upper() in {"FROM", "TABLE"}:
            refuse(sql, start, "a hint contains a query", "Use only names and numbers in hints.")
        in_hint = (in_hint or opens) and not closes
    return tokens, "".join(masked)


def hints(sql: str) -> Iterator[list[Token]]:
    """Yield the tokens of each hint, from its opening to its end, without spaces."""
    inside: list[Token] = []
    for kind, start, end in _lexemes(sql):
        text = sql[start:end]
        if kind != "space" and (inside or text == "/*+"):
            inside.append(Token(kind, start, end, text, ""))
        if inside and text == "*/":
            yield inside
            inside = []


def _lexemes(sql: str) -> Iterator[tuple[str, int, int]]:
    """Yield kind, start and end of every piece of the text, spaces and comments included."""
    at = 0
    while at < len(sql):
        if sql.startswith("/*", at) and not sql.startswith("/*+", at):
            kind, end = "space", _comment_end(sql, at)
        else:
            match = _TOKEN.match(sql, at)
            assert match is not None  # noqa: S101  the last alternative takes any character
            kind, end = next(name for name in _KINDS if match[name]), match.end()
        if kind == "symbol" and sql[at] in "'\"`":
            refuse(sql, at, f"unterminated quote {sql[at]}", "Close the quote, or double it inside a literal.")
        if sql.startswith("${", at) and kind == "symbol":
            refuse(sql, at, "variable substitution ${…} is not supported", "Write the value.")
        yield kind, at, end
        at = end


def _comment_end(sql: str, start: int) -> int:
    """Return the end of a bracketed comment. Comments nest; one that contains `/*+` is refused."""
    depth = 0
    for mark in _COMMENT_MARK.finditer(sql, start):
        if sql.startswith("/*+", mark.start()):
            refuse(sql, mark.start(), "a comment contains a hint", "Remove the + after /*.")
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    return refuse(sql, start, "unterminated comment", "End the comment with */.")


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _mask(kind: str, text: str) -> str:
    """Return plain text of the same length that parses as the same kind of token."""
    if kind == "string":
        return "'" + re.sub(r"['\"\\]|[^\x20-\x7e\n]", "x", text[1:-1]) + "'"
    if kind == "quoted":
        return "`" + "q" * (len(text) - 2) + "`"
    return " " if text == ";" else re.sub(r"[^\x20-\x7e]", "q", text)


def comments(sql: str, start: int, end: int) -> str:
    """Return the spaces and comments inside a name of several parts, which are kept."""
    return "".join(sql[start + at : start + to] for kind, at, to in _lexemes(sql[start:end]) if kind == "space")


def token_end(sql: str, start: int) -> int:
    """Return the end of the token that begins here."""
    match = _TOKEN.match(sql, start)
    return match.end() if match else start
