"""`make bench-fresh`: the time that a read at now waits until everything up to its snapshot is received.

A mirror follows pgbench at 500 transactions per second, and then an idle server. `gate_wait_ms` is the wait alone;
`now_ms` is the time until the handle is ready, including the catalog query; `now_over_latest` is the time of a warm
query at now divided by that of the same query at latest, run alternately.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import tidemark
from bench.backlog import SETTINGS
from bench.figures import report
from harness.database import MIRROR, Database, add_roles, create_database
from harness.postgres import installs, start_server
from harness.syncing import Synced, syncing
from tidemark.mirror.mirror import Mirror
from tidemark.mirror.positions import LATEST, NOW
from tidemark.spark import SparkOptions, spark_session

READS, TURNS = int(os.environ.get("READS", "500")), 15
TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
PAUSE_S = 0.02
QUERY = "select count(*), sum(abalance) from pgbench_accounts"


def main() -> None:
    """Follow and read under load, then on an idle server."""
    spark = spark_session(SparkOptions(conf={"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}))
    spark.sparkContext.setLogLevel("ERROR")
    server = start_server(installs()[18], SETTINGS)
    add_roles(server)
    database = create_database(server)
    server.program("pgbench", "--initialize", "--scale=5", "--quiet", database.dsn("app").reveal())
    database.run("alter table pgbench_history replica identity full")
    with tempfile.TemporaryDirectory() as folder, syncing(database, Path(folder), spark, *TABLES) as synced:
        synced.copy_all()
        mirror = tidemark.open(synced.options.lake, spark, source=database.dsn(MIRROR))
        with _stepped(synced):
            with _load(database):
                figures = _waits(mirror, "") | {"now_over_latest": _over_latest(mirror)}
            time.sleep(3)
            figures |= _waits(mirror, "idle_")
        mirror.close()
    report("fresh", figures)
    server.remove()
    spark.stop()


@contextmanager
def _stepped(synced: Synced) -> Iterator[None]:
    """Run the mirror in a thread, as `tidemark sync` does."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            if synced.replication.step() is None:
                synced.replication.rest()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def _load(database: Database) -> Iterator[None]:
    options = ["--no-vacuum", "--client=4", "--rate=500", "--time=3600"]
    process = database.server.start_program("pgbench", *options, database.dsn("app").reveal())
    time.sleep(3)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _waits(mirror: Mirror, kind: str) -> dict[str, float]:
    gate, whole = [], []
    for _ in range(READS):
        begin = time.monotonic()
        with mirror.at(NOW) as moment:
            whole.append(1000 * (time.monotonic() - begin))
            assert moment._passed is not None  # noqa: S101
            gate.append(1000 * moment._passed.seconds)
        time.sleep(PAUSE_S)
    return {
        f"{kind}gate_wait_ms_p50": statistics.median(gate),
        f"{kind}gate_wait_ms_p99": statistics.quantiles(gate, n=100)[98],
        f"{kind}now_ms_p50": statistics.median(whole),
    }


def _over_latest(mirror: Mirror) -> float:
    def read(when: str) -> None:
        with mirror.at(when) as moment:
            moment.sql(QUERY).collect()

    taken: dict[str, list[float]] = {NOW: [], LATEST: []}
    for _ in range(TURNS):
        for when in taken:
            taken[when].append(_seconds(partial(read, when)))
    medians = {when: statistics.median(seconds[TURNS // 3 :]) for when, seconds in taken.items()}
    print(f"  {QUERY}: now {medians[NOW]:.2f} s, latest {medians[LATEST]:.2f} s", flush=True)
    return medians[NOW] / medians[LATEST]


def _seconds(act: Callable[[], object]) -> float:
    begin = time.monotonic()
    act()
    return time.monotonic() - begin


if __name__ == "__main__":
    main()
