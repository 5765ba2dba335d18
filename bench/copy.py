"""`make bench-copy`: the copy of a table into the lake against other ways to export a table from PostgreSQL.

Tidemark's copy is that of a running pipeline, from the request until the Delta commit: snapshot, parts, files on disk,
commit. Against it, alternately: `COPY … (FORMAT binary)` to /dev/null, with psql and with Tidemark's drain; DuckDB's
postgres extension and Spark's JDBC source, partitioned by the key, both into Parquet with zstd. The session is warm:
a table of one row was copied repeatedly before, and each way ran once. ROWS= makes it smaller.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import duckdb

from bench.backlog import SETTINGS
from bench.figures import report
from bench.lineitem import TABLE, VALUES, jdbc_session, read_by_jdbc
from bench.memory import forget_peak, jvm, peak_mb, workers
from harness.database import MIRROR, Database, add_roles, create_database
from harness.postgres import installs, start_server
from harness.syncing import Synced, syncing
from tidemark.pipeline.copy.drain import copied_bytes
from tidemark.postgres.session import Session

ROWS = int(os.environ.get("ROWS", "3000000"))
TURNS, WARMING, WARMING_JOBS = 12, 1, 20
SELDOM = {"spark_jdbc": 3}  # the slowest: every third turn
REST_S = 1.0  # before each run, so that garbage and dirty pages of one do not count for the next
COPY = "copy lineitem to stdout (format binary)"


def main() -> None:
    """Fill, mirror, and copy alternately."""
    spark = jdbc_session()
    server = start_server(installs()[18], SETTINGS)
    add_roles(server)
    database = create_database(server)
    begin = time.monotonic()
    database.run("create table few (id int primary key)", "insert into few values (1)")
    database.run(TABLE, f"insert into lineitem select {VALUES} from generate_series(1, {ROWS}) i", "vacuum analyze")
    database.admin("checkpoint")
    print(f"{ROWS} rows written in {time.monotonic() - begin:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder, syncing(database, Path(folder), spark, "few", "lineitem") as synced:
        synced.copy_all()
        for _ in range(WARMING_JOBS):
            _copied(synced, "few")
        ours = Ours(synced)
        seconds = _by_turns(
            {
                "ours": ours.copy,
                "psql": lambda: _psql(database),
                "drain": lambda: _drained(database),
                "duckdb": lambda: _duckdb(database),
                "spark_jdbc": lambda: read_by_jdbc(database, spark, ROWS),
            }
        )
        report("copy", _figures(seconds) | ours.figures())
    server.remove()
    spark.stop()


@dataclass(slots=True)
class Ours:
    """Repeated copies by Tidemark."""

    synced: Synced
    phases: list[tuple[float, float, float]] = field(default_factory=list)

    def copy(self) -> None:
        """Copy once, from the request to the commit."""
        self.phases.append(_copied(self.synced, "lineitem"))

    def figures(self) -> dict[str, float]:
        """The phases of a copy; and, with one more copy, the peak memory of a worker and the JVM."""
        until_planned, reading, taking = (statistics.median(each) for each in zip(*self.phases[WARMING:], strict=True))
        for pid in (jvm(), *workers()):
            forget_peak(pid)
        self.copy()
        return {
            "snapshot_and_plan_s": until_planned,
            "parts_s": reading,
            "commit_s": taking,
            "worker_peak_mb": max(map(peak_mb, workers())),
            "jvm_peak_mb": peak_mb(jvm()),
        }


def _copied(synced: Synced, table: str) -> tuple[float, float, float]:
    """Copy a table again as `tidemark sync` does; return the seconds of planning, of the parts and of the commit."""
    replication, lines = synced.replication, synced.said
    (oid,) = (oid for oid, each in replication.applier.tables.histories.items() if each.fingerprint.name == table)
    printed, planned, copied = len(lines), 0.0, 0.0
    begin = time.monotonic()
    replication.applier.tables.request_copy(oid)
    while not any(f".{table}: copied" in line for line in lines[printed:]):
        if replication.step() is None:
            replication.rest()
        (state,) = (each for each in replication.progress.tables() if each.name == f"public.{table}")
        planned = planned or (state.since if state.since > begin else 0.0)
        copied = copied or (time.monotonic() if planned and state.state == "copied" else 0.0)
    return planned - begin, copied - planned, time.monotonic() - copied


def _by_turns(ways: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The median seconds of each way; the first turn is a warm-up."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-WARMING, TURNS):
        chosen = [name for name in ways if turn < 0 or turn % SELDOM.get(name, 1) == 0]
        for name in chosen:
            time.sleep(REST_S)
            begin = time.monotonic()
            ways[name]()
            taken[name].append(time.monotonic() - begin)
        line = ", ".join(f"{name} {taken[name][-1]:.2f} s" for name in chosen)
        print(f"  {line}" + (" (warm-up)" if turn < 0 else ""), flush=True)
    return {name: statistics.median(seconds[WARMING:]) for name, seconds in taken.items()}


def _figures(seconds: Mapping[str, float]) -> dict[str, float]:
    ours = seconds["ours"]
    return {
        "rows": float(ROWS),
        "rows_per_s": ROWS / ours,
        "wall_over_copy_binary": ours / min(seconds["psql"], seconds["drain"]),
        "wall_over_duckdb": ours / seconds["duckdb"],
        "rate_over_spark_jdbc": seconds["spark_jdbc"] / ours,
        **{f"{name}_s": each for name, each in seconds.items()},
    }


def _psql(database: Database) -> None:
    program = database.server.install.program("psql")
    command = [str(program), database.dsn(MIRROR).reveal(), "--command", COPY]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def _drained(database: Database) -> None:
    with Session.open(database.dsn(MIRROR), "bench") as session:
        pgconn = session.connection.pgconn
        for _ in copied_bytes(pgconn, COPY.replace("lineitem", "public.lineitem").encode(), "copying"):
            pass


def _duckdb(database: Database) -> None:
    package = files("duckdb_extension_postgres_scanner")
    extension = package / "extensions" / f"v{duckdb.__version__}" / "postgres_scanner.duckdb_extension"
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as duck:
        duck.execute(f"load '{extension}'")
        duck.execute(f"attach '{database.dsn(MIRROR).reveal()}' as source (type postgres, read_only)")
        duck.execute(f"copy source.public.lineitem to '{folder}/all.parquet' (format parquet, codec zstd)")


if __name__ == "__main__":
    main()
