"""One candidate on its way: own statements in the client's session, the answer, or the client's statement after all.

The client's messages before Bind run first, with a Sync of their own. `look` opens a block: in autocommit a read-only
one, in the client's block a savepoint. Until the first byte of an answer, every failure ends the block and relays the
client's statement, which is then as if nothing had been before it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from tidemark.errors import ConnectionLost, NotAnswerable, TidemarkError
from tidemark.serve import messages, own
from tidemark.serve.messages import PORTAL, STATEMENT, SYNC, BindMessage
from tidemark.serve.routing import (
    MIRROR,
    REFUSED,
    SOURCE,
    Answer,
    Decision,
    Look,
    Outcome,
    OwnStatement,
    Refuse,
    Relay,
    Router,
    RouteReport,
    Rows,
)
from tidemark.serve.session import UNNAMED, ClientSession
from tidemark.serve.statements import Candidate, OwnKind
from tidemark.serve.wire import HEADER_BYTES, SourceKind

_LOGGER = logging.getLogger(__name__)
_IDLE = ord("I")
_TEXT_ARRAY = 1009
_CANCELLED, _CANNOT, _INTERNAL = "57014", "0A000", "XX000"

Taker = Callable[[int, bytes], bytes]


class Port(Protocol):
    """The two connections of a session."""

    last: RouteReport

    @property
    def startup(self) -> Mapping[str, str]:
        """The parameters of the startup packet."""

    def to_client(self, data: bytes) -> None:
        """Send to the client."""

    def to_source(self, data: bytes) -> None:
        """Send to the source."""


class Routing:
    """Routes one candidate; the relay passes it every message of the source while it `is_expecting`."""

    def __init__(self, port: Port, session: ClientSession, candidate: Candidate, router: Router) -> None:
        self._port, self.state, self._candidate, self._router = port, session, candidate, router
        self._takers = list[Taker]()
        self._out = list[bytes]()
        self._done: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._began_in = session.status
        self._has_prefix = self._has_savepoint = self._prefix_failed = self._is_cancelled = False
        self._look: own.Results | None = None
        self._begin = time.monotonic()

    # What the relay calls

    @property
    def is_expecting(self) -> bool:
        """Whether messages of the source belong to statements of the server."""
        return bool(self._takers)

    @property
    def startup(self) -> Mapping[str, str]:
        """The parameters of the startup packet."""
        return self._port.startup

    def start(self, ended: Callable[[BaseException | None], None]) -> None:
        """Begin, and report the end."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(
            lambda task: ended(asyncio.CancelledError() if task.cancelled() else task.exception())
        )

    def take(self, kind: int, frame: bytes) -> None:
        """Take one message of the source."""
        if kind == SourceKind.READY:
            self.state.status = frame[HEADER_BYTES]
            self._takers.pop(0)
            if not self._takers and self._done is not None and not self._done.done():
                self._done.set_result(None)
            return
        if kind in (SourceKind.NOTIFICATION, SourceKind.PARAMETER_STATUS):
            if kind == SourceKind.PARAMETER_STATUS:
                self.state.note_from_source(kind, frame[HEADER_BYTES:])
            self._out.append(frame)
        elif kind == SourceKind.ERROR and _is_fatal(frame):
            self._out.append(frame)
        elif passed := self._takers[0](kind, frame):
            self._out.append(passed)

    def flush(self) -> None:
        """Send to the client what `take` has kept for it."""
        if self._out:
            self._port.to_client(b"".join(self._out))
            self._out.clear()

    def cancel(self) -> bool:
        """Cancel for the client; return whether the source runs a statement that is to be cancelled there."""
        self._is_cancelled = True
        if self.is_expecting:
            return True
        if self._task is not None:
            self._task.cancel()
        return False

    def abandon(self) -> None:
        """End without an answer: a connection was lost."""
        self._is_cancelled = False
        if self._task is not None:
            self._task.cancel()

    # What the router calls

    async def look(self, *statements: OwnStatement, describes: bool = True) -> Look:
        """Open the block, and run statements in it; see `RoutedSession`."""
        if self._look is not None:
            raise NotAnswerable("the block of this statement is open already: use run")
        if self._changes_status and not self._has_prefix:
            await self._described(b"")
        begin = own.BEGIN_ON_STANDBY if self.state.parameters.get("in_hot_standby") == "on" else own.BEGIN
        first = (begin if self._began_in == _IDLE else own.SAVEPOINT, own.STAY)
        name = b"" if self._candidate.is_simple else self._candidate.bind.statement
        check = (own.text_of(name),) if name else ()
        found = await self._described(own.run(*first, *statements, *check), describes=describes)
        self._has_savepoint = self._began_in != _IDLE and len(found.results) > 0
        found.require()
        results = found.results[len(first) :]
        if check and results.pop() != [(self._candidate.statement.source_text,)]:
            raise NotAnswerable("the prepared statement was replaced")
        return Look(results, found.parameter_types, found.fields or (), self._began_in == _IDLE)

    async def run(self, *statements: OwnStatement) -> list[Rows]:
        """Run statements in the block."""
        found = own.Results()
        await self._exchange(own.run(*statements) + SYNC, found.take)
        found.require()
        return found.results

    # The way of a candidate

    async def _run(self) -> None:
        try:
            decision = await self._decide()
        except asyncio.CancelledError:
            if not self._is_cancelled:
                raise
            decision = self._cancelled()
        except Exception as error:
            _LOGGER.debug("routing failed: %s", error, exc_info=True)
            reason = _reason(error)
            decision = Relay(RouteReport(SOURCE, reason))
            if self._candidate.is_check:
                decision = Refuse(_INTERNAL, reason, RouteReport(REFUSED, reason))
        if self._is_cancelled:
            decision = self._cancelled()
        await self._perform(decision)

    async def _decide(self) -> Decision:
        candidate = self._candidate
        if candidate.is_check:
            return await self._router.admit(self)
        if candidate.statement.kind is None:
            return await self._router.decide(candidate, self)
        if candidate.statement.kind is OwnKind.SHOW:
            lines, report = [str(self._port.last)], self._port.last
        else:
            lines, report = await self._explained(), self._port.last
        text = b"SELECT line FROM ROWS FROM (pg_catalog.unnest($1)) AS lines(line)"
        return Answer(text, (_TEXT_ARRAY,), (messages.text_array(lines),), report)

    async def _explained(self) -> list[str]:
        """Return the lines of EXPLAIN (TIDEMARK); an error is the reason why the source would answer."""
        try:
            return [*await self._router.explain(self._candidate, self)]
        except TidemarkError as error:
            await self._end_block()
            self._look = None
            return [str(RouteReport(SOURCE, error.message))]

    def _cancelled(self) -> Refuse:
        text = "canceling statement due to user request"
        return Refuse(_CANCELLED, text, RouteReport(REFUSED, "cancelled by the client"))

    async def _perform(self, decision: Decision) -> None:
        if self._candidate.is_check:
            await self._check(decision)
        elif self._prefix_failed:
            await self._end_block()
            self._end(RouteReport(SOURCE, "the source reported an error"), SOURCE)
            self._port.to_client(messages.ready(self.state.status))
        elif isinstance(decision, Answer):
            await self._answer(decision)
        elif isinstance(decision, Refuse):
            await self._refuse(decision)
        else:
            await self._relay(decision.report, decision.notice)

    async def _check(self, decision: Decision) -> None:
        """Let the session relay what it holds, or reject it: without an error, if the exchange has failed already."""
        await self._end_block()
        if isinstance(decision, Refuse):
            self._port.last = decision.report
            error = messages.error(decision.sqlstate, decision.message, hint=decision.hint)
            self.state.reject(b"" if self._prefix_failed else error)
        else:
            self.state.admit()

    async def _answer(self, answer: Answer) -> None:
        candidate = self._candidate
        if self._look is None:
            await self._described(b"")
        if self._prefix_failed:
            await self._perform(answer)
            return
        fields = self._look.fields if self._look is not None and not self._look.error else None
        if fields is None:
            await self._without(answer, "the statement returns no rows")
            return
        sent, swallowed = self._answer_messages(answer)
        answering = own.Answering(candidate, fields, swallowed, answer.notice)
        await self._exchange(sent, answering.take)
        last = answering.end()
        self._has_savepoint = self._has_savepoint and bool(answering.error)  # released with the answer
        if answering.has_failed:
            await self._failed(answer, answering)
            return
        if self._began_in == _IDLE != self.state.status:
            await self._end_block()
        self._end(answer.report, MIRROR)
        self._port.to_client(last + messages.ready(self.state.status))

    def _answer_messages(self, answer: Answer) -> tuple[bytes, int]:
        """Return the messages of an answer, and how many responses come before that of its Bind."""
        candidate = self._candidate
        portal = own.ANSWER if candidate.is_simple else candidate.bind.portal
        bound = BindMessage(portal, own.ANSWER, answer.formats, answer.parameters, candidate.bind.result_formats)
        before = [own.run(own.ROLLBACK_TO)] if self._has_savepoint else []
        before += [messages.close(STATEMENT, own.ANSWER), messages.parse(own.ANSWER, answer.text, answer.types)]
        sent = [messages.bind(bound), messages.describe(PORTAL, portal), messages.execute(portal, candidate.row_limit)]
        if candidate.is_simple:
            sent += [messages.close(STATEMENT, UNNAMED)]
        if self._has_savepoint:
            sent += [own.run(own.RELEASE)]
        elif self._look is not None and self.state.status != self._began_in:
            sent += [own.run(own.COMMIT)]
        return b"".join([*before, *sent, own.clean(), SYNC]), own.OWN_FRAMES * self._has_savepoint + 2

    async def _failed(self, answer: Answer, answering: own.Answering) -> None:
        """No byte of the answer was sent: the source answers, unless the client cancelled or requires the mirror."""
        if self._is_cancelled:
            await self._refuse(self._cancelled())
            return
        report = messages.read_report(answering.error[HEADER_BYTES:]) if answering.error else {}
        reason = report.get("M", "its columns have other types")
        await self._without(answer, reason, report.get("C", _CANNOT))

    async def _without(self, answer: Answer, reason: str, sqlstate: str = _CANNOT) -> None:
        """Relay the statement, or refuse it if only the mirror may answer: the source would answer another question."""
        text = f"the answer of the mirror could not be used: {reason}"
        if answer.is_required:
            await self._refuse(Refuse(sqlstate, text, RouteReport(REFUSED, text)))
        else:
            await self._relay(RouteReport(SOURCE, text))

    async def _refuse(self, refuse: Refuse) -> None:
        if not self._has_prefix:
            await self._described(b"")
            if self._prefix_failed:
                await self._perform(refuse)
                return
        await self._end_block()
        if self._began_in != _IDLE:
            await self._exchange(own.run(own.FAIL) + SYNC, own.Results().take)
        self._end(refuse.report, REFUSED)
        report = messages.error(refuse.sqlstate, refuse.message, hint=refuse.hint)
        self._port.to_client(report + messages.ready(self.state.status))

    async def _relay(self, report: RouteReport, notice: str = "") -> None:
        """Relay the client's messages; what is not needed of them any longer was relayed before."""
        candidate = self._candidate
        if notice:
            self._port.to_client(messages.notice(notice))
        self._port.last = report
        ending = self._ending()
        rest = candidate.rest if self._has_prefix else candidate.prefix + candidate.rest
        self.state.expect(candidate)
        if ending:
            await self._exchange(ending, own.Results().take, then=rest)
        else:
            self._port.to_source(rest)

    # Blocks and exchanges

    @property
    def _changes_status(self) -> bool:
        """Whether what runs before the candidate may begin or end a block, so that it must run alone first."""
        return self._candidate.begins_block or (self._candidate.is_check and self._candidate.is_open)

    async def _described(self, statements: bytes, *, describes: bool = True) -> own.Results:
        """Run the client's messages before Bind, then statements of the server, then describe the client's."""
        candidate, takers, sent = self._candidate, list[Taker](), b""
        if not self._has_prefix and (candidate.prefix or candidate.is_open):
            sent, takers = candidate.prefix + SYNC, [self._take_prefix]
        self._has_prefix = True
        self._look = found = own.Results()
        described = own.describe(candidate) if describes and not candidate.is_check else b""
        await self._exchange(sent + statements + described + SYNC, *takers, found.take)
        if self._changes_status and not statements:
            self._began_in = self.state.status
        return found

    def _take_prefix(self, kind: int, frame: bytes) -> bytes:
        self._prefix_failed = self._prefix_failed or kind == SourceKind.ERROR
        return frame

    async def _end_block(self) -> None:
        if ending := self._ending():
            await self._exchange(ending, own.Results().take)

    def _ending(self) -> bytes:
        """Return the messages that end the block and remove what the server prepared; nothing if there is nothing."""
        if self._look is None:
            return b""
        block = b""
        if self._has_savepoint:
            block = own.run(own.ROLLBACK_TO, own.RELEASE)
            self._has_savepoint = False
        elif self._began_in == _IDLE and self.state.status != _IDLE:
            block = own.run(own.ROLLBACK)
        return block + own.clean() + SYNC

    async def _exchange(self, sent: bytes, *takers: Taker, then: bytes = b"") -> None:
        """Send messages, and wait until each of their Syncs has its ReadyForQuery; `then` is relayed after them."""
        self._takers = list(takers)
        self._done = asyncio.get_running_loop().create_future()
        self._port.to_source(sent + then)
        try:
            await self._done
        finally:
            self._done = None
        if self._takers:
            raise ConnectionLost("the connection to the source was lost")

    def _end(self, report: RouteReport, route: str) -> None:
        self._port.last = report
        if self._candidate.statement.kind is None:
            self._router.finished(self._candidate, Outcome(route, time.monotonic() - self._begin))


def _is_fatal(frame: bytes) -> bool:
    """Whether the source ends the session with this error, which must then reach the client."""
    return messages.read_report(frame[HEADER_BYTES:]).get("V") in ("FATAL", "PANIC")


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, TidemarkError) else f"{type(error).__name__}: {error}"
