"""`make bench-serve`: the cost of the SQL server for what it relays, and what the mirror answers in its place.

`relay_over_direct_latency` is the latency of `pgbench -S -M prepared` with one client through the server,
divided by that of the source; both run alternately, and the ratio is the median of the ratios of neighbours.
`idle_500_connections_mb` is the memory of the server's process with 500 idle connections. SECONDS= and TURNS= make this
part smaller, RELAY=0 leaves it out; `bench.offload` describes the other part, which OFFLOAD=0 leaves out.
"""

from __future__ import annotations

import os
import re
import statistics
import tempfile
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from bench.figures import report
from bench.memory import resident_mb, tree_cpu_s
from bench.offload import offloaded
from harness.database import OWNER, add_roles, create_database
from harness.postgres import Server, installs, start_server
from harness.served import Served, served

SECONDS, TURNS = int(os.environ.get("SECONDS", "5")), int(os.environ.get("TURNS", "5"))
RELAY, OFFLOAD = (os.environ.get(name, "1") != "0" for name in ("RELAY", "OFFLOAD"))
CONNECTIONS = 500
MODES = ("simple", "extended", "prepared")
_LATENCY = re.compile(r"latency average = ([0-9.]+) ms")
_COUNT = re.compile(r"transactions actually processed: ([0-9]+)")


def main() -> None:
    """Measure the relay, and then the mirror."""
    figures = dict[str, float]()
    if RELAY:
        figures |= relayed()
    if OFFLOAD:
        figures |= offloaded()
    report("serve", figures)


def relayed() -> dict[str, float]:
    """Latency, CPU time and memory of a server that only relays."""
    server = start_server(installs()[18], {"max_connections": CONNECTIONS + 50})
    add_roles(server)
    dsn = create_database(server).dsn(OWNER)
    server.program("pgbench", "--initialize", "--scale=1", "--quiet", dsn.reveal())
    with tempfile.TemporaryDirectory() as lake:
        (Path(lake) / "_tidemark.json").write_text("{}")  # all that a relay needs of a lake
        with served(dsn, Path(lake), "--max-connections", str(CONNECTIONS + 10)) as running:
            figures = latencies(server, dsn.reveal(), running.dsn(dsn), running) | idle(running.dsn(dsn), running)
    server.remove()
    return figures


def latencies(server: Server, source: str, through: str, running: Served) -> dict[str, float]:
    """The latency through the server over that of the source, and its CPU time, in each mode of the protocol."""
    figures = dict[str, float]()
    for mode in MODES:
        ratios, directs, cpus = list[float](), list[float](), list[float]()
        for _ in range(TURNS if mode == "prepared" else max(1, TURNS // 3)):
            direct, _ = pgbench(server, source, mode)
            begin = tree_cpu_s(running.pid)
            latency, count = pgbench(server, through, mode)
            cpus.append((tree_cpu_s(running.pid) - begin) / count)
            ratios.append(latency / direct)
            directs.append(direct)
        suffix = "" if mode == "prepared" else f"_{mode}"
        figures[f"relay_over_direct_latency{suffix}"] = statistics.median(ratios)
        figures[f"direct_latency_us{suffix}"] = 1000 * statistics.median(directs)
        figures[f"relay_cpu_us{suffix}"] = 1e6 * statistics.median(cpus)
    return figures


def pgbench(server: Server, dsn: str, mode: str) -> tuple[float, int]:
    """The average latency in milliseconds, and the number of transactions."""
    done = server.program("pgbench", "-S", "-n", "-M", mode, "-c", "1", "-T", str(SECONDS), dsn)
    latency, count = _LATENCY.search(done.stdout), _COUNT.search(done.stdout)
    if latency is None or count is None:
        raise SystemExit(done.stdout)
    return float(latency[1]), int(count[1])


def idle(dsn: str, running: Served) -> dict[str, float]:
    """The resident memory of the server's process, without clients and with idle ones."""
    before = resident_mb(running.pid)
    named = make_conninfo(dsn, application_name="idle")
    clients = [psycopg.connect(named, autocommit=True) for _ in range(CONNECTIONS)]
    for client in clients:
        client.execute("select 1")
    after = resident_mb(running.pid)
    for client in clients:
        client.close()
    return {f"idle_{CONNECTIONS}_connections_mb": after, "without_connections_mb": before}


if __name__ == "__main__":
    main()
