"""What a client has in flight, as a state machine over the bytes of both directions. Pure.

The client's bytes are relayed as they are, except a *candidate*, which is held back for the router: a simple query, or
the messages that execute one prepared statement, up to their Sync. Candidates exist only while the source owes no
response (`is_quiet`). Everything that the machine does not expect is relayed, and never makes it expect less than
the source will send: one response too many ends all candidates of the session (`is_lost`).

A session that may read the past must not get rows of the present: while it is not known that the source may answer
(`is_guarded`), other messages that execute something are held back too, until the router has admitted or rejected them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct

from tidemark.errors import MalformedMessage
from tidemark.serve import messages
from tidemark.serve.messages import read_parameter_status, read_parse
from tidemark.serve.statements import (
    MENTION,
    RESETS,
    SETTING,
    Candidate,
    ClientStatement,
    check,
    rewritten_parse,
    rewritten_query,
)
from tidemark.serve.wire import CLIENT_LIMITS, HEADER_BYTES

# Larger messages of the client are relayed in pieces and are never candidates; the same holds for all that is held.
HELD_LIMIT = 256 << 10
STATEMENTS_LIMIT = 2_000
PARTIAL_LIMIT = 32 << 10  # a longer message of the source is relayed in pieces
UNNAMED = b""

Considers = Callable[[ClientStatement, "ClientSession"], bool]

_header = Struct("!BI").unpack_from
_int32 = Struct("!I").unpack_from
_PARSE, _BIND, _DESCRIBE, _EXECUTE, _CLOSE = b"PBDEC"
_SYNC, _FLUSH, _QUERY, _CALL, _COPY_DONE, _COPY_FAIL = b"SHQFcf"
_TEXTS = frozenset((_PARSE, _QUERY))
_ALONE = frozenset((_QUERY, _CALL))  # messages with a ReadyForQuery of their own
_EXECUTING = frozenset((_BIND, *_ALONE))  # Execute runs what a Bind has prepared
_EXTENDED = frozenset((_PARSE, _BIND, _DESCRIBE, _EXECUTE, _CLOSE, _FLUSH))
_READY, _ERROR, _PARAMETER, _KEY, _COPY_IN = b"ZESKG"
_STARTING = _EXTENDED | _ALONE
_WATCHED = frozenset((_READY, _ERROR, _PARAMETER, _KEY, _COPY_IN))
_LIMITS = dict(CLIENT_LIMITS)
_FAILED = ord("E")
_STYLES = ("TimeZone", "DateStyle", "IntervalStyle")
_NO_STATEMENT = b"_tidemark_refused"  # a syntax error for the source, which is then replaced by the reason
_IN_PIPELINE = "settings of tidemark cannot be changed together with other statements: SET them alone"


class HeldShape(IntEnum):
    """How far the messages that are held are on their way to a candidate."""

    PREFIX = 0
    BOUND = 1
    DESCRIBED = 2
    EXECUTED = 3


class ClientSession:
    """The state of one session. `considers` decides whether a statement is held back for the router.

    `is_touched` means that the client mentioned a setting of the server, so that what was known about them is stale.
    `has_default_settings` is set by the router when it has read that the session sets none of them, and
    `is_answered_by_source` when the source may answer what the mirror cannot. `is_waiting` means that messages are held
    until the source owes no response. Only with `guards` are there messages that the source must not answer.
    """

    __slots__ = (
        "_begins", "_bound", "_considers", "_discard", "_executed", "_executes_begin", "_guards", "_in_flight",
        "_is_admitted", "_is_broken", "_is_copying", "_is_open", "_is_passing", "_names_settings", "_pending",
        "_query", "_rejection", "_scanned", "_skip", "_source_pending", "_source_skip", "has_default_settings",
        "is_answered_by_source", "is_lost", "is_touched", "is_waiting", "key", "parameters", "statements", "status",
    )  # fmt: skip

    def __init__(self, considers: Considers, *, guards: bool = False) -> None:
        self._considers, self._guards = considers, guards
        self._begins = self._executes_begin = self._is_admitted = self._names_settings = False
        self.is_waiting = self.is_answered_by_source = False
        self._rejection: bytes | None = None
        self._discard = 0
        self._in_flight = deque[int]([_QUERY])  # the start of the session ends with a ReadyForQuery too
        self._query: ClientStatement | None = None
        self._is_broken = self._is_copying = self._is_open = self._is_passing = False
        self._pending, self._source_pending = b"", bytearray()
        self._scanned = self._skip = self._source_skip = 0
        self._bound = self._executed = (0, 0)
        self.is_lost = self.is_touched = self.has_default_settings = False
        self.key = b""
        self.parameters: dict[str, str] = {}
        self.statements: dict[bytes, ClientStatement] = {}
        self.status = ord("I")

    @property
    def is_quiet(self) -> bool:
        """Whether the source owes no response, so that statements of the server can run."""
        return not (self._in_flight or self._is_broken or self._is_copying or self.is_lost or self._source_skip)

    @property
    def pending_bytes(self) -> int:
        """The bytes of the client that are held."""
        return len(self._pending)

    @property
    def styles(self) -> tuple[str, ...]:
        """The settings with which the source reads constants of dates and times."""
        return tuple(self.parameters.get(name, "") for name in _STYLES)

    @property
    def is_guarded(self) -> bool:
        """Whether the source must not execute anything that was not checked."""
        return self._guards and (self.is_touched or not self.is_answered_by_source)

    def hold(self, data: bytes) -> None:
        """Keep bytes of the client for later, while a candidate is routed."""
        self._pending += data

    def expect(self, candidate: Candidate) -> None:
        """Note that the messages of a candidate are relayed after all."""
        self._in_flight.append(_QUERY if candidate.is_simple else _SYNC)

    def admit(self) -> None:
        """Relay the messages that were held back for a check, up to the end of their exchange."""
        self._is_admitted = True
        self.is_touched = self.is_touched or MENTION in self._pending.lower()

    def reject(self, error: bytes) -> None:
        """Let the source fail in place of the messages that were held back; the client gets this error for its own."""
        self._rejection, self._is_admitted = error, True
        data, kept = self._pending, 0
        kind, size = _header(data, 0)
        failing = messages.parse(_NO_STATEMENT, _NO_STATEMENT)
        if kind in _ALONE:
            failing, kept = messages.query(_NO_STATEMENT), min(1 + size, len(data))
            self._discard = 1 + size - kept
        self._pending = failing + data[kept:]
        self._scanned = len(failing) + max(self._scanned - kept, 0)

    def from_client(self, data: bytes) -> tuple[bytes, Candidate | None]:
        """Return what is to be relayed now, and the candidate that follows; what follows that is held."""
        if self._discard and data:
            dropped = min(self._discard, len(data))
            self._discard, data = self._discard - dropped, data[dropped:]
        if self._pending:
            data, self._pending = self._pending + data, b""
        at = begin = 0
        if self._skip:
            at = begin = min(self._skip, len(data))
            self._skip -= at
        end, scanned, shape, executes = len(data), at + self._scanned, HeldShape.PREFIX, False
        self._scanned, self.is_waiting, self._begins = 0, False, False
        passing = self._is_passing or self._is_admitted or not self.is_quiet
        while end - at >= HEADER_BYTES:
            kind, size = _header(data, at)
            if not 4 <= size <= _LIMITS.get(kind, 0):
                raise MalformedMessage(f"invalid message of type {chr(kind)!r} with length {size}", offset=at)
            if (
                passing
                and kind in _STARTING
                and self.is_guarded
                and not (self._is_admitted and not self._names_settings)
            ):
                if not self.is_quiet and self._can_wait:
                    self._pending, self.is_waiting = data[at:], True
                    return data[:at], None
                if kind in _EXECUTING and self.is_quiet:
                    return self._checked(data, at, at)
            after = at + 1 + size
            if after > end:
                if size > HELD_LIMIT:
                    if not passing and self.is_guarded and (executes or kind in _EXECUTING):
                        return self._checked(data, begin, at)
                    self._note_large(kind)
                    self._skip = after - end
                    return data, None
                break
            if at >= scanned and (kind in _TEXTS or kind == _BIND):
                data, after = self._note_text(kind, data, at, after)
                end = len(data)
            if passing:
                self._note_relayed(kind)
                begin = after
            elif kind in (_SYNC, _QUERY):
                found = self._candidate(kind, data, (begin, at, after), shape)
                if found is not None:
                    self._pending, self._names_settings = data[after:], False
                    return data[:begin], found
                if self.is_guarded and (executes if kind == _SYNC else self._is_considered(data[at + 5 : after - 1])):
                    return self._checked(data, begin, after)
                self._is_passing = kind == _QUERY and (self._is_open or begin < at)
                self._is_open = self._is_open and kind != _SYNC
                self._names_settings = False
                self._in_flight.append(kind)
                passing, begin = True, after
            elif kind == _FLUSH and shape is HeldShape.PREFIX:
                self._is_open, begin = True, after
            else:
                next_shape = self._next_shape(shape, kind, data, at, after)
                executes = executes or kind == _CALL or (next_shape is HeldShape.BOUND and self._executes(data))
                if next_shape is None and self.is_guarded and (executes or kind in _EXECUTING):
                    return self._checked(data, begin, after)
                if next_shape is None:
                    self._note_relayed(kind)
                    passing, begin = True, after
                    self._is_passing = True
                else:
                    shape = next_shape
            at = after
        if not passing and end - begin > HELD_LIMIT:
            if self.is_guarded and executes:
                return self._checked(data, begin, at)
            self._is_passing, begin = True, at
        self._pending, self._scanned = data[begin:], at - begin
        return data[:begin], None

    @property
    def _can_wait(self) -> bool:
        """Whether the source will owe no response without more of the client: it ignores messages after an error."""
        if self.is_lost:
            raise MalformedMessage("one response of the source too many: the session cannot be checked", offset=0)
        return not (self._is_copying or (self._is_broken and not self._in_flight))

    def _checked(self, data: bytes, begin: int, scanned: int) -> tuple[bytes, Candidate | None]:
        """Hold messages back for a check by the router; reject what would be executed after a change of settings."""
        self._pending, self._scanned = data[begin:], max(scanned - begin, 0)
        if self._names_settings:
            self._names_settings = False
            self.reject(messages.error("0A000", _IN_PIPELINE))
            out, candidate = self.from_client(b"")
            return data[:begin] + out, candidate
        is_open = self._is_open or self._is_passing
        self._is_open = self._is_passing = False
        return data[:begin], check(is_open=is_open)

    def _is_considered(self, text: bytes) -> bool:
        return self._considers(self._query if self._query is not None else ClientStatement(text), self)

    def _executes(self, data: bytes) -> bool:
        """Whether the Bind that is held is of a statement that must be checked."""
        statement = self._bound_statement(data)
        return statement is None or (statement.kind is None and self._considers(statement, self))

    def _next_shape(self, shape: HeldShape, kind: int, data: bytes, at: int, after: int) -> HeldShape | None:
        """Return the shape with one more message; None if the messages can no longer be a candidate.

        A whole BEGIN belongs to the messages before the candidate: drivers send it together with the first statement.
        """
        if shape is HeldShape.EXECUTED and self._executes_begin:
            self._begins, shape = True, HeldShape.PREFIX
        if shape is HeldShape.PREFIX:
            if kind in (_PARSE, _CLOSE) or (kind == _DESCRIBE and data[at + HEADER_BYTES] == _SYNC):  # S: a statement
                return HeldShape.PREFIX
            if kind == _BIND:
                self._bound = (at, after)
                return HeldShape.BOUND
        elif kind == _DESCRIBE and shape is HeldShape.BOUND:
            return HeldShape.DESCRIBED if data[at + HEADER_BYTES : after] == b"P" + self._portal(data) else None
        elif kind == _EXECUTE and shape is not HeldShape.EXECUTED:
            self._executed, statement = (at, after), self._bound_statement(data)
            self._executes_begin = statement is not None and statement.begins_block
            return HeldShape.EXECUTED if data[at + HEADER_BYTES : after - 4] == self._portal(data) else None
        return None

    def _portal(self, data: bytes) -> bytes:
        """Return the portal's name of the Bind that is held, with its zero byte."""
        begin = self._bound[0] + HEADER_BYTES
        return data[begin : data.find(0, begin, self._bound[1]) + 1]

    def _candidate(self, kind: int, data: bytes, span: tuple[int, int, int], shape: HeldShape) -> Candidate | None:
        """Return what is held with this Sync or Query as a candidate, if the router considers it."""
        begin, at, after = span
        if self.status == _FAILED:
            return None
        statement: ClientStatement | None
        if kind == _QUERY:
            if self._is_open or begin < at or data[after - 1]:
                return None
            text = data[at + HEADER_BYTES : after - 1]
            statement = self._query if self._query is not None else ClientStatement(text)
        else:
            statement = self._bound_statement(data) if shape is HeldShape.EXECUTED else None
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
            is_described, was_open, self._begins,
        )  # fmt: skip

    def _bound_statement(self, data: bytes) -> ClientStatement | None:
        begin, after = self._bound
        name_at = data.find(0, begin + HEADER_BYTES, after) + 1
        name_end = data.find(0, name_at, after)
        return self.statements.get(data[name_at:name_end]) if name_at and name_end >= 0 else None

    def _note_text(self, kind: int, data: bytes, at: int, after: int) -> tuple[bytes, int]:
        """Note a statement, and rewrite it for the source if the server answers it; return the data and the end."""
        body = data[at + HEADER_BYTES : after]
        lower = body.lower()
        mentions = MENTION in lower or (b"all" in lower and RESETS.search(lower) is not None)
        if mentions and kind != _QUERY and SETTING.search(body):
            self._names_settings = self._guards
        if kind == _BIND:
            self.is_touched = self.is_touched or mentions
            return data, after
        if kind == _QUERY:
            self._query = None
            self.statements.pop(UNNAMED, None)
            if not mentions:
                return data, after
            self._query = statement = ClientStatement(body[:-1])
            rewritten = rewritten_query(statement)
        else:
            name, text, _ = read_parse(body)
            statement = ClientStatement(text, self.styles)
            self._remember(name, statement)
            if statement.kind is None and not mentions:
                return data, after
            rewritten = rewritten_parse(body, statement)
        if statement.kind is None:
            self.is_touched = True
            return data, after
        return data[:at] + rewritten + data[after:], at + len(rewritten)

    def _remember(self, name: bytes, statement: ClientStatement) -> None:
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
        if kind == _SYNC or kind in _ALONE:
            self._is_admitted = self._names_settings = False
        if kind == _SYNC:
            self._is_passing = self._is_open = False
            if not self._is_copying:
                self._in_flight.append(_SYNC)
        elif kind in _EXTENDED:
            self._is_passing = True
        elif kind in _ALONE:
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
                if kind == _ERROR and self._rejection is not None and _NO_STATEMENT in data[at:after]:
                    data = data[:at] + self._rejection + data[after:]
                    after, end = at + len(self._rejection), end + len(self._rejection) - (after - at)
                    self._rejection = None
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
