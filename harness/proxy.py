"""A TCP proxy in front of a server that simulates network faults: cut, stalled, slow, half-closed, fragmented."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from dataclasses import dataclass, field


@dataclass
class Proxy:
    """Listens on its own port; the attributes may be changed at any time, and apply to every connection."""

    target: int
    stalled: bool = False  # no data passes, and connections stay open
    bytes_per_s: float | None = None
    piece_bytes: int = 65536  # 1 forwards every byte separately
    port: int = 0
    received_bytes: int = 0  # by all clients so far
    _connections: list[tuple[socket.socket, socket.socket]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._changing = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Shut down every connection immediately, in both directions."""
        for pair in self._connections:
            for end in pair:
                _disconnect(end, socket.SHUT_RDWR)

    def half_close(self) -> None:
        """Send end-of-file to clients; the server is not notified until it sends more data."""
        for client, _ in self._connections:
            _disconnect(client, socket.SHUT_WR)

    def close(self) -> None:
        """Close the port and every connection."""
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:  # the port is closed
                return
            self._join(client)

    def _join(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            client.close()
            return
        pairs = ((client, server), (server, client))
        for source, _ in pairs:  # before a thread can close one of them
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._changing:
            self._connections = [*self._connections, (client, server)]
        for source, sink in pairs:
            threading.Thread(target=self._pass, args=[source, sink, sink is client], daemon=True).start()

    def _wait_while_stalled(self) -> None:
        while self.stalled:
            time.sleep(0.01)

    def _pass(self, source: socket.socket, sink: socket.socket, to_client: bool) -> None:
        try:
            while True:
                if not select.select([source], [], [], 0.1)[0]:
                    continue
                data = source.recv(self.piece_bytes)
                self._wait_while_stalled()
                if not data:
                    break
                sink.sendall(data)
                self.received_bytes += len(data) * to_client
                if self.bytes_per_s:
                    time.sleep(len(data) / self.bytes_per_s)
        except (OSError, ValueError):
            pass
        for end in (source, sink):
            _disconnect(end, socket.SHUT_RDWR)
            end.close()
        with self._changing:
            self._connections = [pair for pair in self._connections if source not in pair]


def _disconnect(end: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(how)
