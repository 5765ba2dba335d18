"""A client that speaks the protocol byte by byte."""

from __future__ import annotations

import socket
from struct import Struct

from tidemark.serve.messages import read_report
from tidemark.serve.wire import HEADER_BYTES, Opening, SourceKind, request_packet, startup_packet

_header = Struct("!BI")


class Raw:
    """A connection; `user` must be admitted without a password."""

    def __init__(self, port: int, dbname: str, user: str = "postgres", **parameters: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._data = b""
        self.key = b""
        self.socket.sendall(startup_packet({"user": user, "database": dbname, **parameters}))
        for kind, body in self.until_ready():
            self.key = body if kind == SourceKind.KEY_DATA else self.key

    def send(self, *messages: bytes) -> None:
        self.socket.sendall(b"".join(messages))

    def until_ready(self, times: int = 1) -> list[tuple[int, bytes]]:
        """The messages up to this many ReadyForQuery, or to the end."""
        found = list[tuple[int, bytes]]()
        while times and (message := self.message()):
            found.append(message)
            times -= message[0] == SourceKind.READY
        return found

    def message(self) -> tuple[int, bytes] | None:
        """The next message; None at the end."""
        header = self._take(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return None
        kind, size = _header.unpack(header)
        return kind, self._take(size - 4)

    def _take(self, size: int) -> bytes:
        while len(self._data) < size:
            received = self.socket.recv(65536)
            if not received:
                break
            self._data += received
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def ask(self, *messages: bytes, readies: int = 1) -> list[tuple[int, bytes]]:
        """Send messages, and return what comes back."""
        self.send(*messages)
        return self.until_ready(readies)

    def cancel(self, port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as other:
            other.sendall(request_packet(Opening.CANCEL, self.key))
            assert other.recv(1) == b""

    def close(self) -> None:
        self.socket.close()


def kinds(messages: list[tuple[int, bytes]]) -> str:
    """The types of messages."""
    return "".join(chr(kind) for kind, _ in messages)


def error_of(messages: list[tuple[int, bytes]]) -> str:
    """The SQLSTATE of the first error among messages."""
    return next(read_report(body)["C"] for kind, body in messages if kind == SourceKind.ERROR)
