"""`make bench-serve`: the cost of the SQL server for what it relays.

`relay_over_direct_latency` is the latency of `pgbench -S -M prepared` with one client through the server,
divided by that of the source; both run alternately, and the ratio is the median of the ratios of neighbours.
`idle_500_connections_mb` is the memory of the server's process with 500 idle connections.
SECONDS= and TURNS= make it smaller.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from bench.figures import report
from harness.database import OWNER, PASSWORD, Database, add_roles, create_database
from harness.postgres import Server, installs, start_server
from harness.postgres.server import free_port

SECONDS, TURNS = int(os.environ.get("SECONDS", "5")), int(os.environ.get("TURNS", "5"))
CONNECTIONS = 500
MODES = ("simple", "extended", "prepared")
_LATENCY = re.compile(r"latency average = ([0-9.]+) ms")
_COUNT = re.compile(r"transactions actually processed: ([0-9]+)")
_PROGRAM = "from tidemark.cli.main import main; main()"


def main() -> None:
    """Measure latency and memory."""
    server = start_server(installs()[18], {"max_connections": CONNECTIONS + 50})
    add_roles(server)
    database = create_database(server)
    server.program("pgbench", "--initialize", "--scale=1", "--quiet", database.dsn(OWNER).reveal())
    with running(database) as (port, process):
        figures = latencies(server, database, port, process.pid) | idle(database, port, process)
    report("serve", figures)
    server.remove()


@contextmanager
def running(database: Database) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run `tidemark serve`; yield its port and its process."""
    port = free_port()
    with tempfile.TemporaryDirectory() as lake:
        (Path(lake) / "_tidemark.json").write_text("{}")
        options = ["--source", database.dsn().reveal(), "--listen", f"127.0.0.1:{port}"]
        command = [sys.executable, "-c", _PROGRAM, "--log-level", "warning", "serve", lake, *options]
        process = subprocess.Popen([*command, "--max-connections", str(CONNECTIONS + 10)])
        try:
            wait_for(port)
            yield port, process
        finally:
            process.terminate()
            process.wait()


def wait_for(port: int) -> None:
    """Wait until the server accepts connections."""
    while True:
        try:
            psycopg.connect(f"host=127.0.0.1 port={port} user=none dbname=none password=none").close()
        except psycopg.OperationalError as error:
            if "refused" in str(error):
                time.sleep(0.1)
                continue
        return


def latencies(server: Server, database: Database, port: int, pid: int) -> dict[str, float]:
    """The latency through the server over that of the source, and its CPU time, in each mode of the protocol."""
    figures = dict[str, float]()
    for mode in MODES:
        ratios, directs, cpus = list[float](), list[float](), list[float]()
        for _ in range(TURNS if mode == "prepared" else max(1, TURNS // 3)):
            direct, _ = pgbench(server, database, server.port, mode)
            begin = cpu_s(pid)
            relayed, count = pgbench(server, database, port, mode)
            cpus.append((cpu_s(pid) - begin) / count)
            ratios.append(relayed / direct)
            directs.append(direct)
        suffix = "" if mode == "prepared" else f"_{mode}"
        figures[f"relay_over_direct_latency{suffix}"] = statistics.median(ratios)
        figures[f"direct_latency_us{suffix}"] = 1000 * statistics.median(directs)
        figures[f"relay_cpu_us{suffix}"] = 1e6 * statistics.median(cpus)
    return figures


def pgbench(server: Server, database: Database, port: int, mode: str) -> tuple[float, int]:
    """The average latency in milliseconds, and the number of transactions."""
    dsn = database.dsn(OWNER).reveal().replace(f"port={server.port}", f"port={port}")
    done = server.program("pgbench", "-S", "-n", "-M", mode, "-c", "1", "-T", str(SECONDS), dsn)
    latency, count = _LATENCY.search(done.stdout), _COUNT.search(done.stdout)
    if latency is None or count is None:
        raise SystemExit(done.stdout)
    return float(latency[1]), int(count[1])


def idle(database: Database, port: int, process: subprocess.Popen[bytes]) -> dict[str, float]:
    """The resident memory of the server's process, without clients and with idle ones."""
    before = resident_mb(process.pid)
    dsn = database.server.dsn(OWNER, database.name, password=PASSWORD, application_name="idle")
    dsn = dsn.replace(f"port={database.server.port}", f"port={port}")
    clients = [psycopg.connect(dsn, autocommit=True) for _ in range(CONNECTIONS)]
    for client in clients:
        client.execute("select 1")
    after = resident_mb(process.pid)
    for client in clients:
        client.close()
    return {f"idle_{CONNECTIONS}_connections_mb": after, "without_connections_mb": before}


def cpu_s(pid: int) -> float:
    """The CPU seconds of a process so far."""
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """The resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
