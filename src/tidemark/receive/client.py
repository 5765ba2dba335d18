"""The client of the receiver's control socket, for other processes on the same machine."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tidemark.clock import Lsn
from tidemark.errors import LogBehind, ReceiveFailed
from tidemark.receive.control import NAME, at_folder

_GONE = "Start `tidemark sync` or `tidemark receive`, and retry the command."


@dataclass(frozen=True, slots=True)
class Position:
    """The received LSN, flushed LSN and state of a receiver."""

    received: Lsn
    durable: Lsn
    state: str


class ReceiveClient:
    """One connection to a receiver, which responds to requests in order; not safe for use by several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            address, descriptor = at_folder(folder, NAME)
            try:
                self._socket.connect(address)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._socket.close()
            raise ReceiveFailed(f"no receiver is running for the log in {folder}", _GONE) from error
        self._lines = self._socket.makefile("r")

    def position(self) -> Position:
        """The current position of the receiver."""
        _, _, received, _, durable, _, state = self._ask("position").split(maxsplit=6)
        return Position(Lsn.parse(received), Lsn.parse(durable), state)

    def wait(self, lsn: Lsn, limit_s: float) -> Lsn:
        """Wait until everything up to `lsn` is in the log; returns the received LSN."""
        return self._wait("wait", lsn, limit_s)

    def follow(self, lsn: Lsn, limit_s: float) -> Lsn:
        """Like `wait`, but nothing is requested from the source: on an idle one, this may not end before the limit."""
        return self._wait("follow", lsn, limit_s)

    def _wait(self, request: str, lsn: Lsn, limit_s: float) -> Lsn:
        verb, reached = self._ask(f"{request} {lsn} {limit_s * 1000:.0f}").split()
        if verb == "timeout":
            raise LogBehind(
                f"{lsn} was not received within {limit_s:g} s: the received LSN is {reached}",
                "Retry the command later.",
            )
        return Lsn.parse(reached)

    def nudge(self) -> Lsn:
        """Wait until everything committed before this call is received; returns the received LSN."""
        return Lsn.parse(self._ask("nudge").split()[1])

    def sync(self) -> Lsn:
        """Wait until everything received before this call is flushed; returns the flushed LSN."""
        return Lsn.parse(self._ask("sync").split()[1])

    def reply(self) -> None:
        """Make the receiver request a keepalive message from the source."""
        self._ask("reply")

    def applied(self, lsn: Lsn, needed: Lsn | None = None) -> None:
        """Report that everything up to `lsn` is in the lake, and that readers, if any, use the log above `needed`.

        The receiver removes the segments that are not required. Those that only readers use are removed when the log
        has reached its budget.
        """
        self._ask(f"applied {lsn} {needed or lsn}")

    def _ask(self, line: str) -> str:
        try:
            self._socket.sendall(f"{line}\n".encode())
            answer = self._lines.readline()
        except OSError:
            answer = ""
        if not answer:
            raise ReceiveFailed(f"the receiver of the log in {self._folder} has ended", _GONE)
        if answer.startswith("error "):
            raise ReceiveFailed(f"request {line!r} to the receiver failed: {answer[6:].strip()}")
        return answer.strip()

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()
