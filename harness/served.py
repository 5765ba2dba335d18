"""`tidemark serve` as a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import make_conninfo

from harness.mirrored import eventually
from harness.postgres.server import free_port
from tidemark.postgres.dsn import Dsn

STARTING_S = 120
PROGRAM = [sys.executable, "-c", "from tidemark.cli.main import main; main()"]


@dataclass(frozen=True, slots=True)
class Served:
    """A running server: its port and its process."""

    port: int
    pid: int

    def dsn(self, source: Dsn) -> str:
        """The connection string of the source with the server's address instead."""
        return make_conninfo(source.reveal(), host="127.0.0.1", port=self.port)


@contextmanager
def served(source: Dsn, lake: Path, *options: str) -> Iterator[Served]:
    """Run `tidemark serve` until the context ends."""
    port = free_port()
    command = [*PROGRAM, "--log-level", "warning", "serve", str(lake), "--source", source.reveal(), *options]
    with subprocess.Popen([*command, "--listen", f"127.0.0.1:{port}"]) as process:

        def accepts() -> bool:
            assert process.poll() is None, "tidemark serve has ended"
            with socket.socket() as tried:
                return tried.connect_ex(("127.0.0.1", port)) == 0

        try:
            eventually(accepts, STARTING_S)
            yield Served(port, process.pid)
        finally:
            process.terminate()
