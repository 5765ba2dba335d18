"""The seam between the relay and the router: what a router is given, and what it may decide.

    class Router:
        def considers(statement, session) -> bool            # cheap, for every statement; False relays it at once
        async def decide(candidate, routed) -> Decision      # Relay, Answer or Refuse
        async def explain(candidate, routed) -> [line]       # EXPLAIN (TIDEMARK)
        async def admit(routed) -> Relay | Refuse            # may the source execute what is no candidate?
        def finished(candidate, outcome) -> None             # how long it took

The router runs statements of its own in the client's session by `routed.look` and `routed.run`. If it raises an error,
or one of its statements does, the client's statement is relayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from tidemark.serve.messages import FieldDescription
from tidemark.serve.session import ClientSession
from tidemark.serve.statements import Candidate, ClientStatement

Rows: TypeAlias = list[tuple[bytes | None, ...]]

MIRROR, SOURCE, REFUSED = "mirror", "source", "refused"


@dataclass(frozen=True, slots=True)
class OwnStatement:
    """A statement of the server, whose results are in text format. Names in it must be qualified fully."""

    text: bytes
    parameters: tuple[bytes | None, ...] = ()
    types: tuple[int, ...] = ()
    formats: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """What the first statements of the server returned, and how the source describes the client's statement.

    Settings that were read outside of a block (`is_outside`) last until the client changes them.
    """

    results: list[Rows]
    parameter_types: tuple[int, ...]
    fields: tuple[FieldDescription, ...]
    is_outside: bool


@dataclass(frozen=True)
class RouteReport:
    """Where a statement was answered and why, for SHOW tidemark.last and EXPLAIN (TIDEMARK)."""

    route: str
    reason: str
    details: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return "; ".join([f"{self.route}: {self.reason}", *(f"{key} {value}" for key, value in self.details.items())])


NOTHING_YET = RouteReport(SOURCE, "no statement was considered in this session yet")


@dataclass(frozen=True)
class Relay:
    """The source answers."""

    report: RouteReport
    notice: str = ""


@dataclass(frozen=True)
class Answer:
    """The source runs this statement instead, with these parameters, and its rows are the answer.

    The router must have called `look`, which also requires that the source has the prepared statement of this text.
    The types of its columns must be those of the client's statement. If they are not, or the statement fails before its
    first row, the client's statement is relayed, unless `is_required`: then the client gets an error.
    """

    text: bytes
    types: tuple[int, ...]
    parameters: tuple[bytes | None, ...]
    report: RouteReport
    formats: tuple[int, ...] = ()
    notice: str = ""
    is_required: bool = False


@dataclass(frozen=True)
class Refuse:
    """The client gets this error."""

    sqlstate: str
    message: str
    report: RouteReport
    hint: str = ""


Decision: TypeAlias = Relay | Answer | Refuse


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a candidate ended: `seconds` from its last message to its ReadyForQuery."""

    route: str
    seconds: float


class RoutedSession(Protocol):
    """The client's session while one candidate is routed."""

    @property
    def state(self) -> ClientSession:
        """The transaction status, the parameters and whether settings of the server may have changed."""

    @property
    def startup(self) -> Mapping[str, str]:
        """The parameters with which the client started the session, such as `user` and `database`."""

    async def look(self, *statements: OwnStatement, describes: bool = True) -> Look:
        """Open a read-only block, or a savepoint in the client's block, and run statements, in one round trip.

        The client's statement is described too, which fails for a string of several statements.

        In autocommit the block is REPEATABLE READ, so the answer is at the snapshot of these statements.
        """

    async def run(self, *statements: OwnStatement) -> list[Rows]:
        """Run more statements in that block, in one round trip."""


class Router(Protocol):
    """Decides which statements the mirror answers."""

    @property
    def guards(self) -> bool:
        """Whether sessions may have settings with which the source must not answer; see `ClientSession.is_guarded`."""

    def considers(self, statement: ClientStatement, session: ClientSession, /) -> bool:
        """Return whether `decide` must be called; cheap, because every statement passes here."""

    async def decide(self, candidate: Candidate, routed: RoutedSession, /) -> Decision:
        """Decide; may take as long as the answer of the mirror takes. Cancelled by the client's cancel request."""

    async def admit(self, routed: RoutedSession, /) -> Relay | Refuse:
        """Decide whether the source may execute messages that are no candidate, such as a pipeline."""

    async def explain(self, candidate: Candidate, routed: RoutedSession, /) -> Sequence[str]:
        """Return the lines of EXPLAIN (TIDEMARK) for a statement, without its answer."""

    def finished(self, candidate: Candidate, outcome: Outcome, /) -> None:
        """Note how long a candidate took."""


class Observer(Protocol):
    """Receives how long statements took, for metrics."""

    def finished(self, route: str, seconds: float) -> None:
        """A candidate has its answer."""

    def waited(self, seconds: float) -> None:
        """A candidate has waited for the mirror, which has its snapshot now."""

    def computed(self, seconds: float) -> None:
        """The engine has computed an answer."""


class SourceOnly:
    """The router of `--route source`: every statement is relayed, and the reason can be read."""

    report = RouteReport(SOURCE, "the server was started with --route source")
    guards = False

    def considers(self, _: ClientStatement, __: ClientSession, /) -> bool:
        """Return False."""
        return False

    async def decide(self, _: Candidate, __: RoutedSession, /) -> Decision:
        """Relay."""
        return Relay(self.report)

    async def admit(self, _: RoutedSession, /) -> Relay | Refuse:
        """Relay."""
        return Relay(self.report)

    async def explain(self, _: Candidate, __: RoutedSession, /) -> Sequence[str]:
        """Return the reason."""
        return [str(self.report)]

    def finished(self, _: Candidate, __: Outcome, /) -> None:
        """Note nothing."""
