"""The router: decides for each SELECT whether the mirror answers it, and drives its steps in the client's session.

Nothing is sent to the client before the answer is complete; until then every failure means that the source answers, or,
with `tidemark.at` or `tidemark.route = mirror`, that the statement is refused with the reason.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import postgast

from tidemark.errors import EngineRefused, InvalidValue, TidemarkError, UnexpectedSourceError
from tidemark.serve.conversation import Arrays, Ask, Finished, Proven, Refused, RefusedBy, Running
from tidemark.serve.engine_client import Conversation, EngineClient
from tidemark.serve.learning import Destination, Memory, Record
from tidemark.serve.passing import is_harmless, keyword_of, reads_only_catalogs
from tidemark.serve.routing import (
    MIRROR,
    REFUSED,
    SOURCE,
    Answer,
    Decision,
    Look,
    Observer,
    Outcome,
    OwnStatement,
    Refuse,
    Relay,
    RoutedSession,
    RouteReport,
)
from tidemark.serve.session import ClientSession
from tidemark.serve.session_settings import NAMES, Prefer, Route, ServeSettings
from tidemark.serve.statements import Candidate, ClientStatement, check

_SETTINGS = OwnStatement(
    b"SELECT pg_catalog.json_object_agg(n.s, pg_catalog.current_setting(n.s, true)) "
    b"FROM pg_catalog.unnest($1::pg_catalog.text[]) AS n(s)",
    (f"{{{','.join(NAMES)}}}".encode(),),
)
_LIMITS = OwnStatement(
    b"SELECT pg_catalog.json_object_agg(s.name, s.setting) FROM pg_catalog.pg_settings s "
    b"WHERE s.name OPERATOR(pg_catalog.=) ANY (ARRAY['statement_timeout', 'default_transaction_isolation'])"
)
_SELECTS = frozenset(("select", "with", "(", "table", "values"))
_SUPPORTED = re.compile(r"utf-?8", re.IGNORECASE)
_CANNOT, _INVALID, _READ_ONLY, _TOO_LATE, _INTERNAL = "0A000", "22023", "25006", "57014", "XX000"
_CHECK_S = 0.01  # what the round trips of an answer add to the time of the engine
_FIRST_S = 5.0  # within which the engine process parses a statement
_MEASURED_S = 600.0  # for an engine that is measured; no client waits for it
_FAILED = ord("E")
_FAILED_BLOCK = "current transaction is aborted, commands ignored until end of transaction block"
_ALONE = "send it alone, without other statements"


class _NotAnswered(Exception):
    """The mirror does not answer; `sqlstate` is that of the error, if the source must not answer either.

    A reason `by_split` lasts; one that `passes` is that of a mirror that lags, or of an engine that fails or is late.
    """

    def __init__(self, reason: str, sqlstate: str = _CANNOT, *, by_split: bool = False, passes: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.sqlstate, self.by_split, self.passes = reason, sqlstate, by_split, passes


@dataclass(slots=True)
class _Measured:
    """A statement that the source answers while the engine computes it too."""

    report: RouteReport


class MirrorRouter:
    """Routes statements to the engine process of `engine`. `defaults` are the settings of sessions that set nothing."""

    guards = True

    def __init__(self, engine: EngineClient, defaults: ServeSettings, observer: Observer | None = None) -> None:
        self._engine, self._defaults, self._observer = engine, defaults, observer
        self._memory = Memory(postgast.fingerprint)
        self._tasks: set[asyncio.Task[None]] = set()

    # The interface of a router

    def considers(self, statement: ClientStatement, session: ClientSession) -> bool:
        """Return whether the statement must be checked: not if it is known to be cheap, or not a SELECT."""
        if not session.has_default_settings or session.is_touched:
            return not is_harmless(statement.text)
        if keyword_of(statement.text) not in _SELECTS:
            return False
        if not isinstance(statement.verdict, Record):
            statement.verdict = self._memory.of(statement.text.decode(errors="replace"))
        return not statement.verdict.is_settled(self._defaults.cost, time.monotonic())

    async def decide(self, candidate: Candidate, routed: RoutedSession) -> Decision:
        """Decide about a statement."""
        return await _Deciding(self, candidate, routed).decision()

    async def admit(self, routed: RoutedSession) -> Relay | Refuse:
        """Let the source execute messages that are no candidate, unless it would have to answer with the past."""
        if routed.state.status == _FAILED:
            return _refusal(_FAILED_BLOCK, "25P02")
        try:
            look = await routed.look(_SETTINGS)
            settings = _read_settings(json.loads(_text(look.results[0])), look, routed.state, self._defaults, check())
        except InvalidValue as error:
            return _refusal(error.message, _INVALID, error.hint)
        except Exception as error:  # noqa: BLE001 - the settings are not known: the source must not answer
            return _failed(error)
        if settings.must_answer:
            return _refusal(f"{settings.why_must}, and the mirror answers one SELECT at a time: {_ALONE}")
        return Relay(RouteReport(SOURCE, "not one SELECT alone"))

    async def explain(self, candidate: Candidate, routed: RoutedSession) -> Sequence[str]:
        """Return where a statement would be answered, and why; the engine does not compute it."""
        report = await _Deciding(self, candidate, routed, explains=True).report()
        return [f"Route: {report.route}", f"Reason: {report.reason}", *(f"{k}: {v}" for k, v in report.details.items())]

    def finished(self, candidate: Candidate, outcome: Outcome) -> None:
        """Note how long a statement took."""
        if self._observer is not None:
            self._observer.finished(outcome.route, outcome.seconds)
        record = candidate.statement.verdict
        if isinstance(record, Record):
            (record.add_mirror if outcome.route == MIRROR else record.add_source)(outcome.seconds)

    # What one decision uses

    def record_of(self, statement: ClientStatement) -> Record:
        """Return what is known of a statement."""
        if not isinstance(statement.verdict, Record):
            statement.verdict = self._memory.of(statement.text.decode(errors="replace"))
        return statement.verdict

    @property
    def defaults(self) -> ServeSettings:
        """The settings of sessions that set nothing."""
        return self._defaults

    def begin(self, text: str, wait_s: float) -> Conversation:
        """Begin with a statement in the engine process."""
        return self._engine.begin(text, wait_s)

    def waited(self, seconds: float) -> None:
        """Note how long a statement waited for the mirror."""
        if self._observer is not None:
            self._observer.waited(seconds)

    def computed(self, seconds: float) -> None:
        """Note how long the engine computed for an answer."""
        if self._observer is not None:
            self._observer.computed(seconds)

    def measure(self, conversation: Conversation, record: Record) -> None:
        """Let the engine finish in the background, for its time alone."""

        async def measured() -> None:
            waited_s = 0.0
            try:
                async with asyncio.timeout(_MEASURED_S):
                    while not isinstance(message := await conversation.next(), Finished):
                        if isinstance(message, Ask):
                            record.needs_session = True
                            return
                        if not isinstance(message, Running):
                            record.add_failure(time.monotonic())
                            return
                        waited_s = message.waited_s
                        self.waited(waited_s)
                record.add_mirror(waited_s + message.engine_s + _CHECK_S)
            except TimeoutError:
                record.add_failure(time.monotonic())
            finally:
                conversation.end()

        task = asyncio.get_running_loop().create_task(measured())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Deciding:
    """One statement."""

    def __init__(
        self, router: MirrorRouter, candidate: Candidate, routed: RoutedSession, *, explains: bool = False
    ) -> None:
        self._router, self._candidate, self._routed, self._explains = router, candidate, routed, explains
        self._settings = router.defaults
        self._record = router.record_of(candidate.statement)
        self._look: Look | None = None
        self._statement_timeout_s: float | None = None
        self._is_serializable = False
        self._begin = time.monotonic()
        self._details: dict[str, str] = {}

    async def report(self) -> RouteReport:
        """Return where the statement would be answered."""
        decision = await self.decision()
        return decision.report

    async def decision(self) -> Decision:
        """Return the decision."""
        try:
            return await self._decided()
        except _NotAnswered as error:
            reason = error
        except InvalidValue as error:
            return self._refusal(error.message, _INVALID, error.hint)
        except Exception as error:
            if self._knows_settings and not self._settings.must_answer:
                raise  # the source answers
            return _failed(error, self._details)
        try:
            return await self._without_mirror(reason)
        except InvalidValue as error:
            return self._refusal(error.message, _INVALID, error.hint)
        except Exception as error:  # noqa: BLE001 - the settings are not known: the source must not answer
            return _failed(error, self._details)

    async def _decided(self) -> Decision:
        if not _SUPPORTED.fullmatch(self._routed.state.parameters.get("client_encoding", "")):
            raise _NotAnswered("the encoding of the client is not UTF-8")
        text = self._candidate.text.decode()
        if keyword_of(self._candidate.text) not in _SELECTS:
            raise _NotAnswered("not a SELECT", _READ_ONLY)
        if self._candidate.statement.styles not in (None, self._routed.state.styles):
            raise _NotAnswered("TimeZone, DateStyle or IntervalStyle was changed after the statement was prepared")
        if self._record.unproven and self._knows_settings:
            raise _NotAnswered(self._record.unproven, by_split=True)
        try:
            conversation = self._router.begin(text, self._record.wait_s)
        except EngineRefused as error:
            raise _NotAnswered(error.message, "57P03") from error
        measured = False
        try:
            decision = await self._conversed(conversation)
            measured = isinstance(decision, _Measured)
            return Relay(decision.report) if isinstance(decision, _Measured) else decision
        finally:
            if not measured:
                conversation.end()

    @property
    def _knows_settings(self) -> bool:
        state = self._routed.state
        return state.has_default_settings and not state.is_touched

    async def _conversed(self, conversation: Conversation) -> Decision | _Measured:
        try:
            async with asyncio.timeout(_FIRST_S):
                facts_query = await conversation.next()
        except TimeoutError:
            raise _NotAnswered("the engine does not respond", "57P03", passes=True) from None
        if not isinstance(facts_query, Ask):
            raise self._failure(facts_query)
        facts = await self._looked(facts_query)
        choice = self._choice()
        if choice is Destination.SOURCE:
            return Relay(self._report(SOURCE, "the source is expected to be faster"))
        self._require_usable(facts)
        conversation.tell(facts)
        late_s = None if self._settings.must_answer else self._late_s
        limits_s = [seconds for seconds in (self._statement_timeout_s, late_s) if seconds is not None]
        try:
            async with asyncio.timeout(min(limits_s, default=None)):
                return await self._stepped(conversation, choice)
        except TimeoutError:
            if late_s is not None and late_s == min(limits_s):
                raise _NotAnswered(f"the engine was not ready after {late_s:.1f} s", passes=True) from None
            text = "canceling statement due to statement timeout"
            return Refuse(_TOO_LATE, text, self._report(REFUSED, "the engine was too late"))

    @property
    def _late_s(self) -> float:
        return self._record.late_s(self._settings.cost, offloads=self._settings.prefer is Prefer.OFFLOAD)

    async def _looked(self, facts_query: Ask) -> str:
        """Open the block; return the facts. The cost, the rights and the settings of the session are read with them."""
        bind, explain = self._candidate.bind, b"EXPLAIN (FORMAT JSON) " + self._candidate.text
        statements = [OwnStatement(facts_query.sql.encode()), _LIMITS]
        if not bind.parameters:
            statements.append(OwnStatement(explain))
        self._look = await self._routed.look(*statements)
        facts, limits, *plan = self._look.results
        if bind.parameters:
            plan = await self._routed.run(self._with_parameters(explain))
        found = json.loads(_text(limits))
        self._statement_timeout_s = int(found["statement_timeout"]) / 1000 or None
        self._is_serializable = found["default_transaction_isolation"] == "serializable"
        document = json.loads(_text(facts))
        self._read_settings(document["settings"])
        self._record.cost = float(json.loads(_text(plan[0]))[0]["Plan"]["Total Cost"])
        self._record.checked_at = time.monotonic()
        self._details["cost"] = f"{self._record.cost:.0f}"
        return _text(facts)

    def _read_settings(self, found: Mapping[str, str | None]) -> None:
        assert self._look is not None  # noqa: S101
        state, defaults = self._routed.state, self._router.defaults
        self._settings = _read_settings(found, self._look, state, defaults, self._candidate)

    def _choice(self) -> Destination:
        settings = self._settings
        if settings.must_answer:
            return Destination.MIRROR
        if settings.route is Route.SOURCE:
            raise _NotAnswered("tidemark.route is source")
        now, offloads = time.monotonic(), settings.prefer is Prefer.OFFLOAD
        choice = self._record.choice(settings.cost, now, offloads=offloads)
        if now < self._record.paused_until and choice is Destination.SOURCE:
            raise _NotAnswered("the mirror could not answer it a short time ago")
        if choice is Destination.SOURCE and self._record.cost is not None and self._record.cost < settings.cost:
            raise _NotAnswered(f"its cost of {self._record.cost:.0f} is below {settings.cost:.0f}")
        return choice

    def _require_usable(self, facts: str) -> None:
        """Require a session whose statements see nothing but what its snapshot has."""
        document = json.loads(facts)
        if document["xid"] is not None and not self._settings.at:
            raise _NotAnswered("the transaction has written")
        if self._is_serializable or document["settings"]["transaction_isolation"] == "serializable":
            raise _NotAnswered("the transaction is serializable")

    async def _stepped(self, conversation: Conversation, choice: Destination) -> Decision | _Measured:
        while True:
            message = await conversation.next()
            if isinstance(message, Ask):
                ((rows),) = await self._routed.run(self._asked(message))
                conversation.tell(_text(rows) if rows else None)
            elif isinstance(message, Proven):
                if choice is Destination.MEASURE and not self._explains:
                    self._router.measure(conversation, self._record)
                    return _Measured(self._report(SOURCE, "the engine is measured meanwhile"))
            elif isinstance(message, Running):
                self._router.waited(message.waited_s)
                self._details |= {"boundary": message.boundary, "waited": f"{1000 * message.waited_s:.0f} ms"}
                if self._explains:
                    return Relay(self._report(MIRROR, "the mirror can answer it"))
            elif isinstance(message, Finished):
                return self._answer(message)
            else:
                raise self._failure(message)

    def _answer(self, finished: Finished) -> Answer:
        assert self._look is not None  # noqa: S101
        self._router.computed(finished.engine_s)
        self._details |= {
            "engine": f"{1000 * finished.engine_s:.0f} ms",
            "rows": f"{finished.rows}",
            "total": f"{1000 * (time.monotonic() - self._begin):.0f} ms",
        }
        statement = self._with_arrays(finished.sql.encode(), finished.arrays)
        report = self._report(MIRROR, "computed at the snapshot of the statement" if not self._settings.at else "at")
        notice = f"tidemark: {report}" if self._settings.notices else ""
        must = self._settings.must_answer
        return Answer(statement.text, statement.types, statement.parameters, report, statement.formats, notice, must)

    def _asked(self, ask: Ask) -> OwnStatement:
        return self._with_arrays(ask.sql.encode(), ask.arrays) if ask.has_parameters else OwnStatement(ask.sql.encode())

    def _with_parameters(self, text: bytes) -> OwnStatement:
        return self._with_arrays(text, Arrays())

    def _with_arrays(self, text: bytes, arrays: Arrays) -> OwnStatement:
        """Return a statement with the client's parameters, and the arrays after them."""
        assert self._look is not None  # noqa: S101
        bind = self._candidate.bind
        formats = [bind.parameter_format(number) for number in range(len(bind.parameters))]
        return OwnStatement(
            text,
            (*bind.parameters, *arrays.values),
            (*self._look.parameter_types[: len(bind.parameters)], *arrays.types),
            (*formats, *[0] * len(arrays.values)),
        )

    def _failure(self, message: Refused | Ask | Proven | Running | Finished) -> _NotAnswered:
        if not isinstance(message, Refused):
            raise UnexpectedSourceError(f"unexpected message of the engine: {type(message).__name__}")
        if message.by is RefusedBy.SETTING:
            raise InvalidValue(message.reason, "Correct the setting.")
        by_split = message.by is RefusedBy.SPLIT
        return _NotAnswered(message.reason, by_split=by_split, passes=not by_split)

    # Without an answer of the mirror

    async def _without_mirror(self, error: _NotAnswered) -> Decision:
        if error.by_split:
            self._record.unproven, self._record.checked_at = error.reason, time.monotonic()
        if error.passes:
            self._record.add_failure(time.monotonic())
        if self._look is None and not self._knows_settings:
            await self._read_settings_alone()
        if not self._settings.must_answer:
            return Relay(self._report(SOURCE, error.reason), self._notice(error.reason))
        if error.sqlstate != _READ_ONLY and reads_only_catalogs(self._candidate.text):
            return Relay(self._report(SOURCE, "it reads catalogs only"))
        if error.sqlstate == _READ_ONLY and not self._settings.at:
            return Relay(self._report(SOURCE, error.reason))
        return self._refusal(f"{self._settings.why_must}, and the mirror cannot answer: {error.reason}", error.sqlstate)

    async def _read_settings_alone(self) -> None:
        self._look = await self._routed.look(_SETTINGS, describes=False)
        self._read_settings(json.loads(_text(self._look.results[0])))

    def _refusal(self, message: str, sqlstate: str, hint: str = "") -> Refuse:
        return _refusal(message, sqlstate, hint, self._details)

    def _notice(self, reason: str) -> str:
        return f"tidemark: source: {reason}" if self._settings.notices else ""

    def _report(self, route: str, reason: str) -> RouteReport:
        return RouteReport(route, reason, dict(self._details))


def _read_settings(
    found: Mapping[str, str | None], look: Look, state: ClientSession, defaults: ServeSettings, candidate: Candidate
) -> ServeSettings:
    """Return the settings of the session, and note in its state what the next statements need not read again.

    Outside of a block they last until the client mentions one of them, unless this statement does.
    """
    state.has_default_settings = not any(found.get(name) for name in NAMES)
    state.is_answered_by_source = False
    settings = ServeSettings.read(found, defaults)
    state.is_answered_by_source = not settings.must_answer
    if look.is_outside and not candidate.mentions:
        state.is_touched = False
    return settings


def _refusal(message: str, sqlstate: str = _CANNOT, hint: str = "", details: Mapping[str, str] | None = None) -> Refuse:
    reset = "Use RESET tidemark.at and RESET tidemark.route to let the source answer."
    return Refuse(sqlstate, message, RouteReport(REFUSED, message, dict(details or {})), hint or reset)


def _failed(error: Exception, details: Mapping[str, str] | None = None) -> Refuse:
    """Refuse after an error in a session that reads the past, or may: the source would answer with the present."""
    message = error.message if isinstance(error, TidemarkError) else f"routing failed: {type(error).__name__}"
    sqlstate = (error.sqlstate if isinstance(error, UnexpectedSourceError) else None) or _INTERNAL
    return Refuse(sqlstate, message, RouteReport(REFUSED, message, dict(details or {})))


def _text(rows: list[tuple[bytes | None, ...]]) -> str:
    """Return the one value of a result."""
    if len(rows) == 1 and len(rows[0]) == 1 and rows[0][0] is not None:
        return rows[0][0].decode()
    lines = [row[0].decode() for row in rows if row[0] is not None]  # EXPLAIN in text has a row for each line
    if not lines:
        raise UnexpectedSourceError("a statement of the server returned no value")
    return "\n".join(lines)
