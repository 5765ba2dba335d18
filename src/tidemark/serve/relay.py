"""One client and its session at the source: startup, authentication, relayed messages and routed statements.

The source gets the client's own startup packet and its own answers to the source's challenges; the server stores no
passwords. A source that admits a session without a challenge trusts the server's address, so only local clients are
admitted then.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tidemark import logs
from tidemark.errors import MalformedMessage
from tidemark.serve import messages
from tidemark.serve.choreography import Routing
from tidemark.serve.legs import Leg, Pause
from tidemark.serve.routing import NOTHING_YET, SOURCE, Outcome, Router, RouteReport
from tidemark.serve.session import HELD_LIMIT, ClientSession
from tidemark.serve.statements import Candidate
from tidemark.serve.tls import Tls
from tidemark.serve.upstream import Upstream
from tidemark.serve.wire import (
    HEADER_BYTES,
    TLS_HANDSHAKE,
    TOKEN_LIMIT,
    Body,
    ClientKind,
    Opening,
    SourceKind,
    StartupPacket,
    frame,
    read_startup,
)

_LOGGER = logging.getLogger(__name__)
_OK, _CLEARTEXT, _SASL, _SASL_FINAL = 0, 3, 10, 12
_PLUS = b"SCRAM-SHA-256-PLUS"
_PIECE = 64 << 10


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """How much clients may use."""

    connections: int = 500
    authentication_s: float = 60.0


class Host(Protocol):
    """The server, as its relays use it."""

    router: Router
    upstream: Upstream
    limits: ClientLimits
    tls: ssl.SSLContext | None
    keys: dict[bytes, ClientRelay]

    def admit(self, relay: ClientRelay, /) -> bool:
        """Count a client that has sent its startup packet; return False if there are too many."""

    def forget(self, relay: ClientRelay, /) -> None:
        """Note that a session has ended."""

    def cancel(self, packet: StartupPacket, /) -> None:
        """Cancel the statement of the session that the packet names."""

    def spawn(self, work: Coroutine[Any, Any, None], /) -> None:
        """Run something in the background."""


class ClientRelay:
    """A client's connection and, once it has sent its startup packet, its connection to the source."""

    __slots__ = (
        "_buffer", "_considered", "_has_gss", "_has_tls", "_is_challenged", "_server", "_timer", "client", "is_ended",
        "is_started", "last", "packet", "routing", "session", "source",
    )  # fmt: skip

    def __init__(self, server: Host, client: Leg) -> None:
        self._server = server
        self.client = client
        self.source: Leg | None = None
        self.session = ClientSession(server.router.considers, guards=server.router.guards)
        self.routing: Routing | None = None
        self.last: RouteReport = NOTHING_YET
        self.packet: StartupPacket | None = None
        self.is_started = self.is_ended = False
        self._buffer = b""
        self._has_tls = self._has_gss = self._is_challenged = False
        self._considered: tuple[Candidate, float] | None = None
        client.received, client.lost = self._opening, self._client_lost
        loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = loop.call_later(server.limits.authentication_s, self._too_late)

    @property
    def startup(self) -> Mapping[str, str]:
        """The parameters of the startup packet."""
        return self.packet.parameters if self.packet is not None else {}

    @property
    def is_local_client(self) -> bool:
        """Whether the client is on this machine."""
        peer = self.client.transport.get_extra_info("peername")
        if not isinstance(peer, tuple):
            return True
        address = ipaddress.ip_address(peer[0].partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        return bool((mapped or address).is_loopback)

    # Startup

    def _opening(self, data: bytes) -> None:
        self._buffer += data
        if self._buffer[0] == TLS_HANDSHAKE and self.client.tls is None and not self._has_tls:
            self._begin_tls(self._take_buffer())
            return
        try:
            packet = read_startup(self._buffer)
        except MalformedMessage as error:
            self.refuse("08P01", error.message)
            return
        if packet is not None:
            self._opened(packet, self._buffer[len(packet.raw) :])

    def _opened(self, packet: StartupPacket, rest: bytes) -> None:
        self._buffer = b""
        if packet.opening in (Opening.TLS, Opening.GSS):
            self._encrypt(packet.opening, rest)
        elif packet.opening is Opening.CANCEL:
            self._stop_timer()
            self._server.cancel(packet)
            self.client.close()
        elif rest:
            self.refuse("08P01", "data after the startup packet")
        elif not self._server.admit(self):
            hint = f"The limit is {self._server.limits.connections}; see --max-connections of tidemark serve."
            self.refuse("53300", "sorry, too many clients already", hint)
        else:
            self.packet = packet
            self.client.pause(Pause.CONNECTING)
            self._server.spawn(self._connect(packet))

    def _encrypt(self, opening: Opening, rest: bytes) -> None:
        is_repeated = self._has_tls if opening is Opening.TLS else self._has_gss
        if rest or is_repeated:
            self.refuse("08P01", "unexpected data after a request for encryption")
        elif opening is Opening.GSS or self._server.tls is None:
            self._has_gss = self._has_gss or opening is Opening.GSS
            self._has_tls = self._has_tls or opening is Opening.TLS
            self.client.write(b"N")
        else:
            self.client.write(b"S")
            self._begin_tls(b"")

    def _begin_tls(self, received: bytes) -> None:
        self._has_tls = True
        if self._server.tls is None:
            self.client.abort()
            return
        handshake = self.client.begin_tls(Tls(self._server.tls, server_side=True), received)
        handshake.add_done_callback(_logged)

    def _take_buffer(self) -> bytes:
        data, self._buffer = self._buffer, b""
        return data

    async def _connect(self, packet: StartupPacket) -> None:
        """Connect to the source, and begin the client's session there."""
        try:
            connected, context, name = await self._server.upstream.connect()
            source = Leg()
            source.received, source.lost = self._challenging, self._source_lost
            source.other, self.client.other = self.client, source
            await asyncio.get_running_loop().create_connection(lambda: source, sock=connected)
            if context is not None:
                await source.begin_tls(Tls(context, server_side=False, server_name=name))
        except (OSError, ssl.SSLError) as error:
            reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else str(error)
            _LOGGER.warning("cannot connect to the source: %s", reason, extra=logs.fields(reason=reason))
            hint = "Check that the source runs, and --source of tidemark serve."
            self.refuse("57P03", f"tidemark cannot connect to the source: {reason}", hint)
            return
        if self.is_ended:
            source.abort()
            return
        self.source = source
        self.client.received = self._answering
        self.client.resume(Pause.CONNECTING)
        source.write(packet.raw)

    # Authentication

    def _answering(self, data: bytes) -> None:
        """Relay the client's answers to challenges: nothing else may come before it is authenticated."""
        self._buffer += data
        while len(self._buffer) >= HEADER_BYTES and self.source is not None:
            size = int.from_bytes(self._buffer[1:5], "big")
            if self._buffer[0] != ClientKind.PASSWORD or not 4 <= size <= TOKEN_LIMIT:
                self.refuse("08P01", "unexpected message during authentication")
                return
            if len(self._buffer) < 1 + size:
                return
            self.source.write(self._buffer[: 1 + size])
            self._buffer = self._buffer[1 + size :]

    def _challenging(self, data: bytes) -> None:
        """Relay the source's challenges, up to its ReadyForQuery."""
        out = list[bytes]()
        try:
            for kind, message in self.session.frames_from_source(data):
                passed = self._challenge(message) if kind == SourceKind.AUTHENTICATION else message
                if passed is None:
                    return
                out.append(passed)
                self.session.note_from_source(kind, message[HEADER_BYTES:])
                if kind == SourceKind.READY:
                    self._begin()
                    break
        except MalformedMessage as error:
            self.refuse("08P01", error.message)
            return
        if out:
            self.client.write(b"".join(out))
        if self.is_started:
            self._source_data(b"")

    def _challenge(self, message: bytes) -> bytes | None:
        """Return what the client gets of an Authentication message; None if the client was refused."""
        body = Body(message[HEADER_BYTES:])
        code = body.int32()
        if code == _OK and not self._is_challenged and not self.is_local_client:
            text = "the source admits this server without a password, so it admits only clients of this machine"
            hint = "Require scram-sha-256 for this server's address in pg_hba.conf of the source."
            self.refuse("28000", text, hint)
            return None
        if code == _CLEARTEXT and self.client.tls is None and not self.is_local_client:
            text = "the source requests the password as clear text, and the connection is not encrypted"
            self.refuse("28000", text, "Connect with sslmode=require, or use scram-sha-256 in pg_hba.conf.")
            return None
        self._is_challenged = self._is_challenged or code not in (_OK, _SASL_FINAL)
        if code == _OK:
            self.client.received = self._client_data
        if code == _SASL and self.client.tls is None:
            return _without_plus(body.rest())
        return message

    def _begin(self) -> None:
        """The session begins."""
        self._stop_timer()
        self.is_started = True
        assert self.source is not None  # noqa: S101
        if self.packet is not None and self.packet.is_replication:
            self.client.received, self.source.received = self.source.write, self.client.write
        else:
            self.client.received, self.source.received = self._client_data, self._source_data
        if self.session.key:
            self._server.keys[self.session.key] = self

    # Messages

    def _client_data(self, data: bytes) -> None:
        session, source = self.session, self.source
        if self.routing is not None:
            session.hold(data)
            if session.pending_bytes > HELD_LIMIT:
                self.client.pause(Pause.HOLDING)
            return
        try:
            out, candidate = session.from_client(data)
        except MalformedMessage as error:
            self.refuse("08P01", error.message)
            return
        if source is None:
            return
        if out:
            source.write(out)
        if candidate is not None:
            self._route(candidate)
        elif session.is_waiting and session.pending_bytes > HELD_LIMIT:
            self.client.pause(Pause.HOLDING)

    def _source_data(self, data: bytes) -> None:
        try:
            if self.routing is not None:
                self._routed_data(self.routing, data)
                return
            out = self.session.from_source(data)
        except MalformedMessage as error:
            self.refuse("08P01", error.message)
            return
        if out:
            self.client.write(out)
        if self._considered is not None and self.session.is_quiet:
            self._finish()
        if self.session.is_waiting and self.session.is_quiet:
            self.client.resume(Pause.HOLDING)
            self._client_data(b"")

    def _routed_data(self, routing: Routing, data: bytes) -> None:
        for kind, message in self.session.frames_from_source(data, lambda: routing.is_expecting):
            routing.take(kind, message)
        routing.flush()

    def _route(self, candidate: Candidate) -> None:
        self._considered = (candidate, time.monotonic())
        self.routing = Routing(self, self.session, candidate, self._server.router)
        self.routing.start(self._routed)

    def _routed(self, error: BaseException | None) -> None:
        """A candidate was answered or relayed: go on with what was received meanwhile."""
        self.routing = None
        if self.is_ended or error is not None:
            if not self.is_ended:
                _LOGGER.error("routing failed", exc_info=error)
                self.refuse("XX000", "an internal error of the server")
            return
        if self._considered is not None:  # if the source answers, its time begins now
            self._considered = None if self.session.is_quiet else (self._considered[0], time.monotonic())
        self._source_data(b"")
        self.client.resume(Pause.HOLDING)
        self._client_data(b"")

    def _finish(self) -> None:
        if self._considered is not None:
            candidate, begin = self._considered
            self._considered = None
            if candidate.statement.kind is None and not candidate.is_check:
                self._server.router.finished(candidate, Outcome(SOURCE, time.monotonic() - begin))

    def to_client(self, data: bytes) -> None:
        """Send to the client."""
        if not self.is_ended:
            self.client.write(data)

    def to_source(self, data: bytes) -> None:
        """Send to the source."""
        if self.source is not None and not self.is_ended:
            self.source.write(data)

    # Ends

    def cancel(self) -> bool:
        """Cancel what the client waits for; return whether the source must get the request."""
        return self.routing.cancel() if self.routing is not None else True

    def refuse(self, sqlstate: str, message: str, hint: str = "") -> None:
        """End the session with an error."""
        if not self.is_ended:
            self.client.write(messages.error(sqlstate, message, hint=hint, severity="FATAL"))
            self._end()

    def close(self) -> None:
        """End the session because the server stops."""
        self.refuse("57P01", "terminating connection because tidemark serve was stopped")

    def _too_late(self) -> None:
        self._timer = None
        self.client.abort()

    def _client_lost(self, _: Leg, __: Exception | None) -> None:
        self._end()

    def _source_lost(self, _: Leg, __: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if self.is_ended:
            return
        self.is_ended = True
        self._stop_timer()
        if self.routing is not None:
            self.routing.abandon()
        self._server.forget(self)
        self.client.close()
        if self.source is not None:
            self.source.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _without_plus(names: bytes) -> bytes:
    """Offer no channel binding to a client without TLS: libpq would take it for an attack."""
    kept = [name for name in names.split(b"\0") if name and name != _PLUS]
    return frame(SourceKind.AUTHENTICATION, _SASL.to_bytes(4, "big") + b"\0".join(kept) + b"\0\0")


def _logged(future: asyncio.Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        _LOGGER.info("a client's TLS handshake failed: %s", error)
