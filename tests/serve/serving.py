"""A server in a thread of the test, and a router that answers listed statements through arrays."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from harness.database import OWNER, PASSWORD, Database
from tidemark.addresses import ListenAddress
from tidemark.postgres.dsn import Dsn
from tidemark.serve.relay import ClientLimits
from tidemark.serve.routing import (
    MIRROR,
    SOURCE,
    Answer,
    Decision,
    Outcome,
    OwnStatement,
    Refuse,
    Relay,
    RoutedSession,
    Router,
    RouteReport,
    SourceOnly,
)
from tidemark.serve.server import Server
from tidemark.serve.session import ClientSession
from tidemark.serve.statements import Candidate, ClientStatement
from tidemark.serve.upstream import upstream_of

INT_ARRAY, TEXT_ARRAY = 1007, 1009


@dataclass(frozen=True)
class Rewrite:
    """How a statement is answered: `looks` computes the arrays, `answer` reads them."""

    looks: bytes
    answer: bytes
    types: tuple[int, ...]


@dataclass
class Rewriting:
    """Answers the statements that it has a rewrite for, and relays all others; `slow_s` is the time of its engine."""

    rewrites: dict[bytes, Rewrite] = field(default_factory=dict)
    outcomes: list[tuple[bytes, str]] = field(default_factory=list)
    reports: list[RouteReport] = field(default_factory=list)
    refused: dict[bytes, Refuse] = field(default_factory=dict)
    slow_s: float = 0.0
    notice: str = ""
    working: threading.Event = field(default_factory=threading.Event)
    guards: ClassVar[bool] = False

    def considers(self, statement: ClientStatement, _: ClientSession) -> bool:
        return statement.text in self.rewrites or statement.text in self.refused

    async def decide(self, candidate: Candidate, routed: RoutedSession) -> Decision:
        if candidate.text in self.refused:
            return self.refused[candidate.text]
        rewrite = self.rewrites[candidate.text]
        bound = candidate.bind
        look = await routed.look(OwnStatement(b"SELECT pg_catalog.pg_current_snapshot()"))
        assert len(look.results[0]) == 1
        self.working.set()
        await asyncio.sleep(self.slow_s)
        looks = OwnStatement(rewrite.looks, bound.parameters, look.parameter_types, bound.formats)
        (((arrays),),) = await routed.run(looks)
        return Answer(rewrite.answer, rewrite.types, arrays, RouteReport(MIRROR, "rewritten"), notice=self.notice)

    async def admit(self, _: RoutedSession) -> Relay:
        raise AssertionError("a router that does not guard is not asked")

    async def explain(self, candidate: Candidate, routed: RoutedSession) -> Sequence[str]:
        await routed.look(OwnStatement(candidate.text if candidate.text == b"fails" else b"SELECT 1"))
        return ["rewritten" if candidate.text in self.rewrites else "relayed", f'say "{candidate.text.decode()}"']

    def finished(self, candidate: Candidate, outcome: Outcome) -> None:
        assert outcome.seconds >= 0
        self.outcomes.append((candidate.text, outcome.route))

    @property
    def routes(self) -> list[str]:
        """Where the statements went since the last call."""
        routes = [route for _, route in self.outcomes]
        self.outcomes.clear()
        return routes


class Relaying(SourceOnly):
    """Considers every statement, and relays it after a look."""

    def considers(self, _: ClientStatement, __: ClientSession, /) -> bool:
        return True

    async def decide(self, candidate: Candidate, routed: RoutedSession, /) -> Decision:
        if candidate.text.lstrip()[:6].lower() == b"select":
            await routed.look(OwnStatement(b"SELECT 1"))
        return Relay(RouteReport(SOURCE, "test"))


@dataclass(frozen=True)
class Serving:
    """A server that runs."""

    server: Server
    database: Database
    loop: asyncio.AbstractEventLoop

    @property
    def port(self) -> int:
        return self.server.listen.port

    def dsn(self, user: str = OWNER, **options: object) -> str:
        """A connection string through the server."""
        dsn = self.database.server.dsn(user, self.database.name, password=PASSWORD, **options)
        return dsn.replace(f"port={self.database.server.port}", f"port={self.port}")


@contextmanager
def serving(
    database: Database,
    router: Router | None = None,
    limits: ClientLimits | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    source: str = "",
    host: str = "127.0.0.1",
) -> Iterator[Serving]:
    """Run a server until the end of the context."""
    upstream = upstream_of(Dsn(source or database.dsn().reveal()))
    server = Server(ListenAddress(host, 0), upstream, router or SourceOnly(), limits, tls)
    started, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        async with server:
            started.set()
            await stop.wait()

    def main() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(run())
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()

    thread = threading.Thread(target=main)
    thread.start()
    assert started.wait(30)
    try:
        yield Serving(server, database, loop)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
