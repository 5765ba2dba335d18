"""The two connections of a session: reading, writing, TLS, and backpressure from one to the other.

All connections of the process share one buffer to read into, because a message is handled before the next is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from enum import IntFlag
from typing import cast

from tidemark.serve.tls import Tls

READ_BYTES = 64 << 10
WRITE_LIMIT = 256 << 10  # above it, the other side is no longer read
_BUFFER = bytearray(READ_BYTES)
_VIEW = memoryview(_BUFFER)


class Pause(IntFlag):
    """Why a connection is not read."""

    NONE = 0
    WRITING = 1
    HOLDING = 2
    CONNECTING = 4


class Leg(asyncio.BufferedProtocol):
    """One connection. `received` and `lost` are set by its owner; `other` is paused while this one cannot send."""

    __slots__ = ("_encrypted", "_pauses", "lost", "other", "received", "tls", "transport")

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.received: Callable[[bytes], None]
        self.lost: Callable[[Leg, Exception | None], None]
        self.other: Leg | None = None
        self.tls: Tls | None = None
        self._pauses = Pause.NONE
        self._encrypted: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=WRITE_LIMIT)

    def get_buffer(self, _: int) -> bytearray:
        """Return the shared buffer."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on what was received, decrypted."""
        data = bytes(_VIEW[:nbytes])
        if self.tls is not None:
            self._decrypt(data)
        else:
            self.received(data)

    def _decrypt(self, data: bytes) -> None:
        tls = self.tls
        if tls is None:
            return
        try:
            plain = tls.receive(data)
        except ssl.SSLError as error:
            self._send_outgoing()
            self._end_handshake(error)
            self.abort()
            return
        self._send_outgoing()
        if tls.is_established:
            self._end_handshake(None)
        if plain:
            self.received(plain)

    def write(self, data: bytes) -> None:
        """Send; nothing can be sent during a TLS handshake."""
        if self.tls is None:
            self.transport.write(data)
        elif self.tls.is_established:
            self.tls.send(data)
            self._send_outgoing()

    def begin_tls(self, tls: Tls, received: bytes = b"") -> asyncio.Future[None]:
        """Begin TLS, with what was received of it already; the future ends with the handshake."""
        self.tls = tls
        self._encrypted = asyncio.get_running_loop().create_future()
        future = self._encrypted
        if received:
            self._decrypt(received)
        else:
            tls.handshake()
            self._send_outgoing()
        return future

    def _end_handshake(self, error: Exception | None) -> None:
        if self._encrypted is not None and not self._encrypted.done():
            if error is None:
                self._encrypted.set_result(None)
            else:
                self._encrypted.set_exception(error)
        self._encrypted = None

    def _send_outgoing(self) -> None:
        if self.tls is not None and (outgoing := self.tls.take_outgoing()):
            self.transport.write(outgoing)

    def pause(self, reason: Pause) -> None:
        """Stop reading, for a reason."""
        if not self._pauses and not self.transport.is_closing():
            self.transport.pause_reading()
        self._pauses |= reason

    def resume(self, reason: Pause) -> None:
        """Read again, unless there is another reason."""
        before, self._pauses = self._pauses, self._pauses & ~reason
        if before and not self._pauses and not self.transport.is_closing():
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """The peer does not read: do not read for it."""
        if self.other is not None:
            self.other.pause(Pause.WRITING)

    def resume_writing(self) -> None:
        """The peer reads again."""
        if self.other is not None:
            self.other.resume(Pause.WRITING)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end."""
        self._end_handshake(exc or ConnectionError("the connection was closed during the TLS handshake"))
        self.lost(self, exc)

    def close(self) -> None:
        """Close after everything is sent."""
        if not self.transport.is_closing():
            with contextlib.suppress(RuntimeError):
                self.transport.resume_reading()
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()
