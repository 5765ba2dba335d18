"""The control socket: other processes request the receiver's position, or wait until it reaches an LSN.

The protocol is documented in docs/receive-protocol.md: one response line per request line, in order. A client cannot
delay the stream; an invalid request gets an error response, and the connection stays open.
"""

from __future__ import annotations

import math
import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue
from tidemark.receive.watch import Nudged
from tidemark.receive.writing import LogProgress

NAME = "receive.sock"
ASK_AFTER_S, NUDGE_AFTER_S, NUDGE_AGAIN_S = 0.005, 0.020, 1.0
MOST_LINE_BYTES = 1024
MOST_CLIENTS = 256
MOST_LINES, MOST_UNSENT_BYTES = 1000, 1 << 16  # at these limits, no further requests of a client are read


@dataclass(slots=True)
class Wishes:
    """Requests of clients that the receiver's main loop carries out."""

    reply: bool = False
    sync: bool = False
    applied: tuple[Lsn, Lsn] | None = None


@dataclass(slots=True)
class _Waiting:
    """A request that gets its response when the log has reached `target`; `nudge` is the number of its nudge request.

    At `ask_at`, a keepalive message is requested from the server. At `nudge_at`, a logical message is emitted, which
    advances the position of the server. A client that follows for long needs neither.
    """

    verb: str
    target: Lsn
    deadline: float | None = None
    ask_at: float | None = None
    nudge_at: float | None = None
    nudge: int | None = None


@dataclass(slots=True)
class _Client:
    connection: socket.socket
    unread: bytes = b""
    unsent: bytes = b""
    waiting: _Waiting | None = None
    asked_all: bool = False
    closing: bool = False
    lines: list[str] = field(default_factory=list)

    @property
    def wanted(self) -> int:
        """The events to poll for; POLLHUP, for a closed connection, is always reported."""
        full = len(self.lines) >= MOST_LINES or len(self.unsent) >= MOST_UNSENT_BYTES
        return (0 if full or self.asked_all else select.POLLIN) | (select.POLLOUT if self.unsent else 0)


def at_folder(folder: Path, name: str) -> tuple[str, int]:
    """The address of a socket in a directory, and a descriptor to close after use.

    The address is short even if the path of the directory exceeds the limit of a socket address.
    """
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"/proc/self/fd/{descriptor}/{name}", descriptor


class Control:
    """The listening socket and the connected clients."""

    def __init__(self, folder: Path, nudge: Callable[[], int], wal_segment_bytes: int = 1) -> None:
        self._path = folder / NAME
        self._path.unlink(missing_ok=True)
        self._nudge = nudge
        self.wal_segment_bytes = wal_segment_bytes  # 1 until it is read: `page_start` is correct for any size then
        self.wishes = Wishes()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        address, descriptor = at_folder(folder, NAME)
        try:
            self._listening.bind(address)
        finally:
            os.close(descriptor)
        self._path.chmod(0o600)
        self._listening.listen(64)
        self._clients: dict[int, _Client] = {}

    def watched(self) -> dict[int, int]:
        """The descriptors to poll, each with its events."""
        wanted = {self._listening.fileno(): select.POLLIN} if len(self._clients) < MOST_CLIENTS else {}
        for descriptor, client in self._clients.items():
            wanted[descriptor] = client.wanted
        return wanted

    def serve(self, descriptor: int) -> None:
        """Handle an event on a descriptor: accept a client, or read its requests."""
        if descriptor == self._listening.fileno():
            with suppress(OSError):
                connection, _ = self._listening.accept()
                connection.setblocking(False)
                self._clients[connection.fileno()] = _Client(connection)
        elif descriptor in self._clients:
            self._read(self._clients[descriptor])

    def settle(self, progress: LogProgress, state: str, nudged: Nudged) -> float | None:
        """Send the responses that are due after progress.

        Returns the seconds until the next call is required, or None if no client is waiting.
        """
        now, next_s = time.monotonic(), None
        for client in list(self._clients.values()):
            self._advance(client, progress, state, nudged, now)
            self._send(client)
            if client.waiting is not None:
                due = [
                    at
                    for at in (client.waiting.deadline, client.waiting.ask_at, client.waiting.nudge_at)
                    if at is not None
                ]
                next_s = min([max(0.0, at - now) for at in due] + ([next_s] if next_s is not None else []), default=1.0)
        return next_s

    def close(self) -> None:
        """Close all connections and remove the socket."""
        for client in self._clients.values():
            client.connection.close()
        self._clients.clear()
        self._listening.close()
        self._path.unlink(missing_ok=True)

    def _read(self, client: _Client) -> None:
        try:
            data = client.connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            client.closing = True
            return
        if not data:  # first time: end of the requests; second time, only after POLLHUP: the client is gone
            client.closing, client.asked_all = client.asked_all, True
            return
        *lines, client.unread = (client.unread + data).split(b"\n")
        client.lines += [line.decode(errors="replace") for line in lines]
        if len(client.unread) > MOST_LINE_BYTES:
            client.closing = True

    def _advance(self, client: _Client, progress: LogProgress, state: str, nudged: Nudged, now: float) -> None:
        while not client.closing:
            if client.waiting is not None:
                answer = self._waited(client.waiting, progress, nudged, now)
                if answer is None:
                    return
                client.unsent += f"{answer}\n".encode()
                client.waiting = None
            if not client.lines:
                return
            answer = self._answer(client, client.lines.pop(0), progress, state, now)
            if answer is not None:
                client.unsent += f"{answer}\n".encode()

    def _answer(self, client: _Client, line: str, progress: LogProgress, state: str, now: float) -> str | None:
        verb, *words = line.split() or [""]
        try:
            match verb, words:
                case "position", []:
                    return f"position received {progress.received} flushed {progress.durable} state {state}"
                case "wait", [lsn, *limit] if len(limit) <= 1:
                    deadline = now + _seconds(limit[0]) if limit else None
                    target = page_start(Lsn.parse(lsn), self.wal_segment_bytes)
                    client.waiting = _Waiting("received", target, deadline, now + ASK_AFTER_S, now + NUDGE_AFTER_S)
                case "follow", [lsn, *limit] if len(limit) <= 1:
                    deadline = now + _seconds(limit[0]) if limit else None
                    client.waiting = _Waiting("received", Lsn.parse(lsn), deadline)
                case "sync", []:
                    self.wishes.sync = True
                    client.waiting = _Waiting("flushed", progress.received)
                case "nudge", []:
                    client.waiting = _Waiting("nudged", Lsn.ZERO, nudge=self._nudge())
                case "reply", []:
                    self.wishes.reply = True
                    return "ok"
                case "applied", [lsn, *needed] if len(needed) <= 1:
                    self.wishes.applied = Lsn.parse(lsn), Lsn.parse(needed[0] if needed else lsn)
                    return "ok"
                case _:
                    return f"error unknown request: {line[:80]!r}"
        except InvalidValue as error:
            return f"error {' '.join(str(error).split())}"
        return None

    def _waited(self, waiting: _Waiting, progress: LogProgress, nudged: Nudged, now: float) -> str | None:
        if waiting.verb == "flushed":
            return f"flushed {progress.durable}" if progress.durable >= waiting.target else None
        if waiting.verb == "nudged":
            return self._nudged(waiting, progress, nudged)
        if progress.received >= waiting.target:
            return f"received {progress.received}"
        if waiting.deadline is not None and now >= waiting.deadline:
            return f"timeout {progress.received}"
        if waiting.ask_at is not None and now >= waiting.ask_at:
            self.wishes.reply, waiting.ask_at = True, None
        if waiting.nudge_at is not None and now >= waiting.nudge_at:
            self._nudge()
            waiting.nudge_at = now + NUDGE_AGAIN_S
        return None

    def _nudged(self, waiting: _Waiting, progress: LogProgress, nudged: Nudged) -> str | None:
        if nudged.number < (waiting.nudge or 0):
            return None
        if nudged.failure is not None:
            return f"error {' '.join(str(nudged.failure).split())}"
        return f"nudged {progress.received}" if progress.received >= nudged.lsn else None

    def _send(self, client: _Client) -> None:
        try:
            while client.unsent:
                client.unsent = client.unsent[client.connection.send(client.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            client.closing = True
        if client.closing or (client.asked_all and not (client.waiting or client.lines or client.unsent)):
            del self._clients[client.connection.fileno()]
            client.connection.close()


def _seconds(milliseconds: str) -> float:
    try:
        seconds = float(milliseconds) / 1000
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):
        raise InvalidValue(f"invalid number of milliseconds: {milliseconds!r}")
    return seconds


def page_start(lsn: Lsn, wal_segment_bytes: int) -> Lsn:
    """The start of the page if the position is just after a page header, else the position itself.

    The two are equivalent, since no commit can end between them.
    """
    header = 40 if lsn.value % wal_segment_bytes == 40 else 24
    return Lsn(lsn.value - header) if lsn.value % 8192 == header else lsn
