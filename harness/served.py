"""`tidemark serve` as a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from psycopg.conninfo import make_conninfo

from harness.mirrored import eventually
from harness.postgres.server import free_port
from tidemark.monitoring.server_metrics import STATEMENTS
from tidemark.postgres.dsn import Dsn

STARTING_S = 120
PROGRAM = [sys.executable, "-c", "from tidemark.cli.main import main; main()"]


@dataclass(frozen=True, slots=True)
class Served:
    """A running server: its port, that of its metrics, and its process."""

    port: int
    monitored: int
    pid: int

    def dsn(self, source: Dsn) -> str:
        """The connection string of the source with the server's address instead."""
        return make_conninfo(source.reveal(), host="127.0.0.1", port=self.port)

    def is_ready(self) -> bool:
        """Whether clients can connect, and the engine of the server, if it has one, can answer."""
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0 and self._get("/ready")[0] == 200

    def answered(self, route: str = "mirror") -> int:
        """How many statements have been answered by a route."""
        samples = (
            sample
            for family in text_string_to_metric_families(self._get("/metrics")[1])
            for sample in family.samples
            if sample.name == f"tidemark_{STATEMENTS[0]}_count" and sample.labels == {"route": route}
        )
        return sum(int(sample.value) for sample in samples)

    def _get(self, path: str) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.monitored, timeout=20)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


@contextmanager
def served(source: Dsn, lake: Path, *options: str) -> Iterator[Served]:
    """Run `tidemark serve` until the context ends; it is ready when the context begins."""
    listen, metrics = free_port(), free_port()
    command = [*PROGRAM, "--log-level", "warning", "serve", str(lake), "--source", source.reveal(), *options]
    addresses = ["--listen", f"127.0.0.1:{listen}", "--metrics", f"127.0.0.1:{metrics}"]
    with subprocess.Popen([*command, *addresses]) as process:
        running = Served(listen, metrics, process.pid)

        def is_ready() -> bool:
            assert process.poll() is None, "tidemark serve has ended"
            return running.is_ready()

        try:
            eventually(is_ready, STARTING_S)
            yield running
        finally:
            process.terminate()
