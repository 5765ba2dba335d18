"""What a client has in flight, as a state machine over the bytes of both directions. Pure.

The client's bytes are relayed as they are, except a *candidate*, which is held back for the router: a simple query, or
the messages that execute one prepared statement, up to their Sync. Candidates exist only while the source owes no
response (`is_quiet`). Everything that the machine does not expect is relayed, and never makes it expect less than
the source will send: one response too many ends all candidates of the session (`is_lost`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct

from tidemark.errors import MalformedMessage
from tidemark.serve.messages import read_parameter_status, read_parse
from tidemark.serve.statements import MENTION, Candidate, Statement, rewritten_parse, rewritten_query
from tidemark.serve.wire import CLIENT_LIMITS, HEADER_BYTES

# Larger messages of the client are relayed in pieces and are never candidates; the same holds for all that is held.
HELD_LIMIT = 256 << 10
STATEMENTS_LIMIT = 2_000
PARTIAL_LIMIT = 32 << 10  # a longer message of the source is relayed in pieces
UNNAMED = b""

Considers = Callable[[Statement, "Session"], bool]

_header = Struct("!BI").unpack_from
_int32 = Struct("!I").unpack_from
_PARSE, _BIND, _DESCRIBE, _EXECUTE, _CLOSE = b"PBDEC"
_SYNC, _FLUSH, _QUERY, _CALL, _COPY_DONE, _COPY_FAIL = b"SHQFcf"
_TEXTS = frozenset((_PARSE, _QUERY))
_EXTENDED = frozenset((_PARSE, _BIND, _DESCRIBE, _EXECUTE, _CLOSE, _FLUSH))
_READY, _ERROR, _PARAMETER, _KEY, _COPY_IN = b"ZESKG"
_WATCHED = frozenset((_READY, _ERROR, _PARAMETER, _KEY, _COPY_IN))
_LIMITS = dict(CLIENT_LIMITS)
_FAILED = ord("E")


class Shape(IntEnum):
    """How far the messages that are held are on their way to a candidate."""

    PREFIX = 0
    BOUND = 1
    DESCRIBED = 2
    EXECUTED = 3


class Session:
    """The state of one session. `considers` decides whether a statement is held back for the router.

    `is_touched` means that the client mentioned a setting of the server, so that what was known about them is stale.
    `has_default_settings` is set by the router when it has read that the session sets none of them.
    """

    __slots__ = (
        "_bound", "_considers", "_executed", "_in_flight", "_is_broken", "_is_copying", "_is_open", "_is_passing",
        "_pending", "_query", "_scanned", "_skip", "_source_pending", "_source_skip", "has_default_settings", "is_lost",
        "is_touched", "key", "parameters", "statements", "status",
    )  # fmt: skip

    def __init__(self, considers: Considers) -> None:
        self._considers = considers
        self._in_flight = deque[int]([_QUERY])  # the start of the session ends with a ReadyForQuery too
        self._query: Statement | None = None
        self._is_broken = self._is_copying = self._is_open = self._is_passing = False
        self._pending, self._source_pending = b"", bytearray()
        self._scanned = self._skip = self._source_skip = 0
        self._bound = self._executed = (0, 0)
        self.is_lost = self.is_touched = self.has_default_settings = False
        self.key = b""
        self.parameters: dict[str, str] = {}
        self.statements: dict[bytes, Statement] = {}
        self.status = ord("I")

    @property
    def is_quiet(self) -> bool:
        """Whether the source owes no response, so that statements of the server can run."""
        return not (self._in_flight or self._is_broken or self._is_copying or self.is_lost or self._source_skip)

    @property
    def pending_bytes(self) -> int:
        """The bytes of the client that are held."""
        return len(self._pending)

    def hold(self, data: bytes) -> None:
        """Keep bytes of the client for later, while a candidate is routed."""
        self._pending += data

    def expect(self, candidate: Candidate) -> None:
        """Note that the messages of a candidate are relayed after all."""
        self._in_flight.append(_QUERY if candidate.is_simple else _SYNC)

    def from_client(self, data: bytes) -> tuple[bytes, Candidate | None]:
        """Return what is to be relayed now, and the candidate that follows; what follows that is held."""
        if self._pending:
            data, self._pending = self._pending + data, b""
        at = begin = 0
        if self._skip:
            at = begin = min(self._skip, len(data))
            self._skip -= at
        end, scanned, shape = len(data), at + self._scanned, Shape.PREFIX
        self._scanned = 0
        passing = self._is_passing or not self.is_quiet
        while end - at >= HEADER_BYTES:
            kind, size = _header(data, at)
            if not 4 <= size <= _LIMITS.get(kind, 0):
                raise MalformedMessage(f"invalid message of type {chr(kind)!r} with length {size}", offset=at)
            after = at + 1 + size
            if after > end:
                if size > HELD_LIMIT:
                    self._note_large(kind)
                    self._skip = after - end
                    return data, None
                break
            if at >= scanned and (kind in _TEXTS or (kind == _BIND and not self.is_touched)):
                data, after = self._note_text(kind, data, at, after)
                end = len(data)
            if passing:
                self._note_relayed(kind)
                begin = after
            elif kind in (_SYNC, _QUERY):
                found = self._candidate(kind, data, (begin, at, after), shape)
                if found is not None:
                    self._pending = data[after:]
                    return data[:begin], found
                self._is_passing = kind == _QUERY and (self._is_open or begin < at)
                self._is_open = self._is_open and kind != _SYNC
                self._in_flight.append(kind)
                passing, begin = True, after
            elif kind == _FLUSH and shape is Shape.PREFIX:
                self._is_open, begin = True, after
            else:
                next_shape = self._next_shape(shape, kind, data, at, after)
                if next_shape is None:
                    self._note_relayed(kind)
                    passing, begin = True, after
                    self._is_passing = True
                else:
                    shape = next_shape
            at = after
        if not passing and end - begin > HELD_LIMIT:
            self._is_passing, begin = True, at
        self._pending, self._scanned = data[begin:], at - begin
        return data[:begin], None

    def _next_shape(self, shape: Shape, kind: int, data: bytes, at: int, after: int) -> Shape | None:
        """Return the shape with one more message; None if the messages can no longer be a candidate."""
        if shape is Shape.PREFIX:
            if kind in (_PARSE, _CLOSE) or (kind == _DESCRIBE and data[at + HEADER_BYTES] == _SYNC):  # S: a statement
                return Shape.PREFIX
            if kind == _BIND:
                self._bound = (at, after)
                return Shape.BOUND
        elif kind == _DESCRIBE and shape is Shape.BOUND:
            return Shape.DESCRIBED if data[at + HEADER_BYTES : after] == b"P" + self._portal(data) else None
        elif kind == _EXECUTE and shape is not Shape.EXECUTED:
            self._executed = (at, after)
            return Shape.EXECUTED if data[at + HEADER_BYTES : after - 4] == self._portal(data) else None
        return None

    def _portal(self, data: bytes) -> bytes:
        """Return the portal's name of the Bind that is held, with its zero byte."""
        begin = self._bound[0] + HEADER_BYTES
        return data[begin : data.find(0, begin, self._bound[1]) + 1]

    def _candidate(self, kind: int, data: bytes, span: tuple[int, int, int], shape: Shape) -> Candidate | None:
        """Return what is held with this Sync or Query as a candidate, if the router considers it."""
        begin, at, after = span
        if self.status == _FAILED:
            return None
        statement: Statement | None
        if kind == _QUERY:
            if self._is_open or begin < at or data[after - 1]:
                return None
            text = data[at + HEADER_BYTES : after - 1]
            statement = self._query if self._query is not None else Statement(text)
        else:
            statement = self._bound_statement(data) if shape is Shape.EXECUTED else None
        if statement is None or not (statement.kind is not None or self._considers(statement, self)):
            return None
        if kind == _QUERY:
            return Candidate(statement, b"", data[at:after])
        bind_at, bind_after = self._bound
        (limit,) = _int32(data, self._executed[1] - 4)
        is_described = bind_after != self._executed[0]
        self._is_open, was_open = False, self._is_open
        return Candidate(
            statement, data[begin:bind_at], data[bind_at:after], data[bind_at + HEADER_BYTES : bind_after], limit,
            is_described, was_open,
        )  # fmt: skip

    def _bound_statement(self, data: bytes) -> Statement | None:
        begin, after = self._bound
        name_at = data.find(0, begin + HEADER_BYTES, after) + 1
        name_end = data.find(0, name_at, after)
        return self.statements.get(data[name_at:name_end]) if name_at and name_end >= 0 else None

    def _note_text(self, kind: int, data: bytes, at: int, after: int) -> tuple[bytes, int]:
        """Note a statement, and rewrite it for the source if the server answers it; return the data and the end."""
        body = data[at + HEADER_BYTES : after]
        if kind == _BIND:
            self.is_touched = MENTION in body.lower()
            return data, after
        if kind == _QUERY:
            self._query = None
            self.statements.pop(UNNAMED, None)
            if MENTION not in body.lower():
                return data, after
            self._query = statement = Statement(body[:-1])
            rewritten = rewritten_query(statement)
        else:
            name, text, _ = read_parse(body)
            statement = Statement(text)
            self._remember(name, statement)
            if statement.kind is None and MENTION not in text.lower():
                return data, after
            rewritten = rewritten_parse(body, statement)
        if statement.kind is None:
            self.is_touched = True
            return data, after
        return data[:at] + rewritten + data[after:], at + len(rewritten)

    def _remember(self, name: bytes, statement: Statement) -> None:
        """Keep a statement under its name; of too many, all are forgotten, and then relayed."""
        if len(self.statements) >= STATEMENTS_LIMIT:
            self.statements.clear()
        self.statements[name] = statement

    def _note_large(self, kind: int) -> None:
        """Note a message that is relayed in pieces, with all that is held before it."""
        if kind in (_PARSE, _BIND, _QUERY):
            self.is_touched = True
            self.statements.clear()
        self._note_relayed(kind)

    def _note_relayed(self, kind: int) -> None:
        """Note which response the source will owe for a message that is relayed."""
        if kind == _SYNC:
            self._is_passing = self._is_open = False
            if not self._is_copying:
                self._in_flight.append(_SYNC)
        elif kind in _EXTENDED:
            self._is_passing = True
        elif kind in (_QUERY, _CALL):
            self._in_flight.append(_QUERY)
        elif kind in (_COPY_DONE, _COPY_FAIL):
            if self._is_copying:
                self._is_copying = False
            elif self._in_flight and self._in_flight[0] == _SYNC:
                self._in_flight.append(_COPY_DONE)

    def from_source(self, data: bytes) -> bytes:
        """Return what is to be relayed now: whole messages, or pieces of a long one."""
        if self._source_pending:
            data = bytes(self._source_pending) + data
            self._source_pending.clear()
        at, end = 0, len(data)
        if self._source_skip:
            at = min(self._source_skip, end)
            self._source_skip -= at
        while end - at >= HEADER_BYTES:
            kind, size = _header(data, at)
            after = at + 1 + size
            if size < 4:
                raise MalformedMessage(f"invalid message of the source, type {chr(kind)!r}, length {size}", offset=at)
            if after > end:
                if size <= PARTIAL_LIMIT:
                    break
                self._source_skip, at = after - end, end
                if kind == _ERROR:
                    self._note_error()
                return data
            if kind in _WATCHED:
                self.note_from_source(kind, data[at + HEADER_BYTES : after])
            at = after
        if at < end:
            self._source_pending += data[at:]
            return data[:at]
        return data

    def frames_from_source(
        self, data: bytes, is_expecting: Callable[[], bool] = lambda: True
    ) -> Iterator[tuple[int, bytes]]:
        """Return the type and the bytes of whole messages, while a candidate is routed; the rest is kept."""
        pending = self._source_pending
        pending += data
        while len(pending) >= HEADER_BYTES and is_expecting():
            kind, size = _header(pending, 0)
            if size < 4:
                raise MalformedMessage(f"invalid message of the source, type {chr(kind)!r}, length {size}", offset=0)
            if len(pending) < 1 + size:
                break
            found = bytes(pending[: 1 + size])
            del pending[: 1 + size]
            yield kind, found

    def note_from_source(self, kind: int, body: bytes) -> None:
        """Note a message of the source that changes the state of the session."""
        if kind == _READY:
            self.status = body[0]
            self._is_broken = False
            self._note_ready()
        elif kind == _ERROR:
            self._note_error()
        elif kind == _PARAMETER:
            name, value = read_parameter_status(body)
            self.parameters[name] = value
        elif kind == _KEY:
            self.key = body
        elif kind == _COPY_IN:
            self._note_copy_in()

    def _note_ready(self) -> None:
        if self._in_flight:
            self._in_flight.popleft()
        else:
            self.is_lost = True
        while self._in_flight and self._in_flight[0] == _COPY_DONE:
            self._in_flight.popleft()

    def _note_error(self) -> None:
        """After an error the source ignores messages up to a Sync, so the unnamed statement is not certain."""
        self._is_broken = True
        self._is_copying = False
        self.statements.pop(UNNAMED, None)

    def _note_copy_in(self) -> None:
        """The source ignores every Sync of the client up to the end of the rows, except in the simple protocol."""
        if not self._in_flight or self._in_flight[0] == _QUERY:
            return
        while self._in_flight:
            if self._in_flight.popleft() == _COPY_DONE:
                return
        self._is_copying = True
