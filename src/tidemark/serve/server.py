"""The listening server: connections, limits, cancel requests, and the end of all of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import ssl
from collections.abc import Coroutine
from typing import Any

from tidemark import logs
from tidemark.addresses import ListenAddress
from tidemark.errors import InvalidValue
from tidemark.serve.legs import Leg
from tidemark.serve.relay import ClientLimits, ClientRelay
from tidemark.serve.routing import Router
from tidemark.serve.tls import Tls, server_context
from tidemark.serve.upstream import Upstream
from tidemark.serve.wire import StartupPacket

_LOGGER = logging.getLogger(__name__)
_BACKLOG = 1024
_CANCEL_LIMIT_S = 10.0


class Server:
    """Relays clients to the source. Use as an asynchronous context."""

    def __init__(
        self, listen: ListenAddress, upstream: Upstream, router: Router, limits: ClientLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:  # fmt: skip
        self.upstream, self.router, self.tls = upstream, router, tls
        self.limits = limits or ClientLimits()
        self.listen = listen
        self.keys: dict[bytes, ClientRelay] = {}
        self._relays = set[ClientRelay]()
        self._admitted = set[ClientRelay]()
        self._tasks = set[asyncio.Task[None]]()
        self._listening: asyncio.Server | None = None

    async def __aenter__(self) -> Server:
        loop = asyncio.get_running_loop()
        try:
            self._listening = await loop.create_server(
                self._accepted, self.listen.host, self.listen.port, backlog=_BACKLOG, reuse_address=True
            )
        except OSError as error:
            raise InvalidValue(f"cannot listen on {self.listen}: {error.strerror or error}") from error
        bound = self._listening.sockets[0].getsockname()
        self.listen = ListenAddress(self.listen.host, bound[1])
        gc.collect()
        gc.freeze()
        _LOGGER.info("listening on %s", self.listen, extra=logs.fields(listen=str(self.listen)))
        if self.tls is None and not self.listen.is_loopback:
            _LOGGER.warning("clients of %s send statements and passwords without TLS: set --tls-cert", self.listen)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listening is not None:
            self._listening.close()
        for relay in list(self._relays):
            relay.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.sleep(0)  # transports close in the next turn of the loop

    @property
    def connections(self) -> int:
        """The number of clients that have sent a startup packet."""
        return len(self._admitted)

    def _accepted(self) -> Leg:
        return _ClientLeg(self)

    def opened(self, leg: Leg) -> None:
        """A client has connected."""
        if len(self._relays) >= 2 * self.limits.connections + 100:  # also those that have sent nothing yet
            leg.lost = _ignored
            leg.abort()
            return
        connected = leg.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._relays.add(ClientRelay(self, leg))

    def admit(self, relay: ClientRelay) -> bool:
        """Count a client that has sent its startup packet; return False if there are too many."""
        if len(self._admitted) >= self.limits.connections:
            return False
        self._admitted.add(relay)
        return True

    def forget(self, relay: ClientRelay) -> None:
        """A session has ended."""
        self._relays.discard(relay)
        self._admitted.discard(relay)
        if self.keys.get(relay.session.key) is relay:
            del self.keys[relay.session.key]

    def cancel(self, packet: StartupPacket) -> None:
        """Cancel the statement of a session, here or at the source; an unknown key is ignored, as PostgreSQL does."""
        relay = self.keys.get(packet.cancel_key)
        if relay is not None and relay.cancel():
            self.spawn(self._cancel_at_source(packet))

    async def _cancel_at_source(self, packet: StartupPacket) -> None:
        leg, closed = Leg(), asyncio.Event()
        leg.received = lambda _: None
        leg.lost = lambda _, __: closed.set()
        try:
            async with asyncio.timeout(_CANCEL_LIMIT_S):
                connected, context, name = await self.upstream.connect()
                await asyncio.get_running_loop().create_connection(lambda: leg, sock=connected)
                if context is not None:
                    await leg.begin_tls(Tls(context, server_side=False, server_name=name))
                leg.write(packet.raw)
                await closed.wait()
        except (OSError, ssl.SSLError, TimeoutError) as error:
            _LOGGER.warning("cannot relay a cancel request to the source: %s", error)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the background, up to the end of the server."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _ClientLeg(Leg):
    """A connection that was accepted."""

    __slots__ = ("_server",)

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.opened(self)


def _ignored(_: Leg, __: Exception | None) -> None:
    return


def listening_tls(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """Return the context of the listening side, if there is a certificate."""
    if certificate is None:
        if key is not None:
            raise InvalidValue("--tls-key without --tls-cert", "Add --tls-cert FILE.")
        return None
    try:
        return server_context(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidValue(f"cannot read the certificate or its key: {error}", "Give PEM files.") from error
