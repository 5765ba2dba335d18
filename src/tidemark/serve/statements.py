"""Statements of a client, and those that the server answers itself: SHOW tidemark.last, EXPLAIN (TIDEMARK). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from tidemark.serve.messages import BindMessage, parse, query, read_bind, read_parse

MENTION = b"tidemark"
RESETS = re.compile(rb"\b(?:discard|reset)\s+all\b")  # in lower case; the values of the role apply again
SETTING = re.compile(rb'tidemark"?\s*\.\s*"?(?:route|at|cost|wait|notice|prefer)\b', re.IGNORECASE)
_SHOW = re.compile(rb"\s*show\s+tidemark\s*\.\s*last\s*;?\s*", re.IGNORECASE)
_EXPLAIN = re.compile(rb"\s*explain\s*\(\s*tidemark\s*\)\s*(.+)", re.IGNORECASE | re.DOTALL)
_BEGIN = re.compile(rb"\s*(?:begin|start\s+transaction)\b[^;]*;?\s*", re.IGNORECASE)
_PLACEHOLDER = (
    b"SELECT 'not available in a pipeline or a string of statements: run it alone'::pg_catalog.text AS \"%s\""
)


class OwnKind(Enum):
    """A statement that the server answers itself, with the name of its column."""

    SHOW = b"tidemark.last"
    EXPLAIN = b"QUERY PLAN"


class ClientStatement:
    """A statement of a client. `verdict` belongs to the router, which may keep there what it has found out.

    `styles` are the settings with which the source has read its constants, when it was prepared.
    """

    __slots__ = ("kind", "source_text", "styles", "text", "verdict")

    def __init__(self, text: bytes, styles: tuple[str, ...] | None = None) -> None:
        self.styles = styles
        self.kind: OwnKind | None = None
        self.text = self.source_text = text
        self.verdict: object = None
        if MENTION in text.lower():
            self._recognize()

    @property
    def begins_block(self) -> bool:
        """Whether it is a BEGIN, which returns no rows and reads nothing."""
        return _BEGIN.fullmatch(self.text) is not None

    def _recognize(self) -> None:
        if _SHOW.fullmatch(self.text):
            self.kind = OwnKind.SHOW
        elif match := _EXPLAIN.fullmatch(self.text):
            self.kind, self.text = OwnKind.EXPLAIN, match[1]
        if self.kind is not None:
            self.source_text = _PLACEHOLDER % self.kind.value


_CHECK = ClientStatement(b"")


@dataclass(frozen=True)
class Candidate:
    """A statement that may be answered: a simple query, or what a client sends to execute a prepared statement.

    `prefix` are the messages before Bind, such as Parse; `rest` begins with Bind, or is the Query. `is_open` means that
    messages of the same exchange were relayed before, without a Sync, and `begins_block` that `prefix` has a BEGIN.
    A check has no messages of its own: the session holds them until the router has admitted them.
    """

    statement: ClientStatement
    prefix: bytes
    rest: bytes
    bind_body: bytes | None = None
    row_limit: int = 0
    is_described: bool = False
    is_open: bool = False
    begins_block: bool = False

    @property
    def is_check(self) -> bool:
        """Whether the router is to decide only about admitting what the session holds."""
        return self.statement is _CHECK

    @property
    def mentions(self) -> bool:
        """Whether the statement itself may change settings of the server."""
        return any(MENTION in each.lower() for each in (self.text, self.prefix, self.rest))

    @property
    def is_simple(self) -> bool:
        """Whether the client uses the simple protocol."""
        return self.bind_body is None

    @property
    def text(self) -> bytes:
        """The statement, in the encoding of the client."""
        return self.statement.text

    @cached_property
    def bind(self) -> BindMessage:
        """The parameters and formats; those of a simple query are empty."""
        return BindMessage(b"", b"", (), (), ()) if self.bind_body is None else read_bind(self.bind_body)


def check(*, is_open: bool = False) -> Candidate:
    """Return a candidate that stands for messages which the session holds until the router has admitted them."""
    return Candidate(_CHECK, b"", b"", is_open=is_open)


def rewritten_parse(body: bytes, statement: ClientStatement) -> bytes:
    """Build the Parse of a statement that the server answers: the source gets a placeholder with the same column."""
    name, _, types = read_parse(body)
    return parse(name, statement.source_text, types)


def rewritten_query(statement: ClientStatement) -> bytes:
    """Build the Query in place of one that the server answers itself."""
    return query(statement.source_text)
