"""`make bench-apply`: receive and apply against pg_recvlogical, which only writes a file; and the cost of a cycle.

Receive and apply run together on a backlog, with a warm Spark session, until the lake has all of it; pg_recvlogical
reads the same WAL through a slot of its own with the same plugin options. They alternate. Then: the same batch with a
small and a large table, the parts of an almost idle cycle, and the cost of 10,000 unapplied changes for a query.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

import tidemark
from bench.backlog import SETTINGS, changes, fill, prepare, tables, theirs
from bench.figures import report
from harness.database import MIRROR, Database, add_roles, create_database
from harness.lake import Lakeside, following, lakeside
from harness.mirrored import take_over_slot
from harness.postgres import installs, start_server
from tidemark.clock import Lsn
from tidemark.pipeline.apply.applier import StreamApplier
from tidemark.pipeline.apply.lake_applier import lake_applier
from tidemark.pipeline.apply.options import ApplyOptions
from tidemark.postgres.names import MirrorNames
from tidemark.receive.options import ReceiveOptions
from tidemark.receive.process import ReceiveProcess
from tidemark.spark import SparkOptions, spark_session

TRANSACTIONS, BIG = 10_000, 700_000
REPEATS = 2
SMALL, LARGE, BATCH, BATCHES = 200_000, 2_000_000, 200_000, 9


def main() -> None:
    """Write backlogs and apply them alternately; then run the smaller measurements."""
    begin = time.monotonic()
    spark = spark_session(SparkOptions(conf={"spark.ui.enabled": "false"}))
    spark.sparkContext.setLogLevel("ERROR")
    print(f"Spark started in {time.monotonic() - begin:.1f} s", flush=True)
    figures: dict[str, float] = {}
    walls = [wall for big_first in (True, False) for wall in _backlog(spark, big_first, figures)]
    figures["applied_over_pg_recvlogical"] = sum(other for _, other in walls) / sum(ours for ours, _ in walls)
    figures["changes"] = changes(TRANSACTIONS, BIG)
    figures["changes_applied_per_s"] = figures["changes"] * len(walls) / sum(ours for ours, _ in walls)
    report("apply", figures | _cycles(spark))
    spark.stop()


def _backlog(spark: SparkSession, big_first: bool, figures: dict[str, float]) -> list[tuple[float, float]]:
    """One server with one backlog, read once per slot; the first run is a warm-up."""
    server = start_server(installs()[18], SETTINGS)
    add_roles(server)
    database = create_database(server)
    tables(server, database)
    runs = [(True, -1), *((streaming, turn) for turn in range(REPEATS) for streaming in (True, False))]
    names = {run: (prepare(database, f"ours_{at}"), f"theirs_{at}") for at, run in enumerate(runs)}
    for _, slot in names.values():
        database.admin(f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    end = fill(server, database, TRANSACTIONS, BIG, big_first=big_first)
    walls: dict[tuple[bool, int], tuple[float, float]] = {}
    for (streaming, turn), (mirror, slot) in names.items():
        theirs_s = theirs(database, slot, end, (streaming, True))[0] if turn % 2 else 0.0
        ours_s = _ours(database, mirror, end, streaming, spark)
        theirs_s = theirs_s or theirs(database, slot, end, (streaming, True))[0]
        walls[streaming, turn] = ours_s, theirs_s
        line = f"  large first {big_first}, streaming {streaming}: {ours_s:.2f} s, pg_recvlogical {theirs_s:.2f} s"
        print(line + (" (warm-up)" if turn < 0 else ""), flush=True)
    server.remove()
    del walls[True, -1]
    for streaming in (True, False):
        turns = [wall for (mode, _), wall in walls.items() if mode is streaming]
        name = f"{'streamed' if streaming else 'whole'}_big_{'first' if big_first else 'last'}"
        figures[f"{name}_over_pg_recvlogical"] = sum(other for _, other in turns) / sum(ours for ours, _ in turns)
    return list(walls.values())


def _ours(database: Database, names: MirrorNames, end: Lsn, streaming: bool, spark: SparkSession) -> float:
    """Seconds from the start of receive and apply, in parallel, until the lake has everything."""
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "stderr").open("w") as stderr:
        log = Path(folder) / "log"
        receive = ReceiveOptions(database.dsn(MIRROR), log, names, endpos=end, streaming=streaming)
        take_over_slot(receive)
        begin = time.monotonic()
        with ReceiveProcess.start(receive, stderr=stderr) as process:
            while not (log / "receive.sock").exists():
                time.sleep(0.02)
            with lake_applier(ApplyOptions(receive.source, log, Path(folder) / "lake", names), spark) as writer:
                while writer.step() is not None or process.process.poll() is None:
                    pass
                while writer.apply() is not None:
                    pass
                cycle = writer.cycle
        if cycle.applied_lsn < end:
            raise SystemExit(f"the applied LSN is {cycle.applied_lsn}, not {end}")
        return time.monotonic() - begin


def _cycles(spark: SparkSession) -> dict[str, float]:
    """The cost of a cycle: with a small and a large table, almost idle, and the cost of unapplied changes."""
    server = start_server(installs()[18], SETTINGS)
    add_roles(server)
    database = create_database(server)
    database.run(
        *(f"create table {n} (id int primary key, v text, n numeric(10,2))" for n in ("small", "large", "tailed"))
    )
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        side = lakeside(database, Path(folder), spark, "small", "large", "tailed")
        with following(side), side.writing() as writer:
            for table, rows in (("small", SMALL), ("large", LARGE)):
                database.run(f"insert into {table} select i, 'text ' || i, i / 100.0 from generate_series(1, {rows}) i")
            writer.catch_up(side.position())
            batches = {"small": list[float](), "large": list[float]()}
            for _ in range(BATCHES):
                for table, taken in batches.items():
                    keys = f"id in (select (random() * {SMALL})::int from generate_series(1, {BATCH}))"
                    database.run(f"update {table} set v = v || 'x' where {keys}")
                    side.mirror.catch_up()
                    taken.append(_timed(writer.apply))
            figures["cycle_large_over_small"] = statistics.median(batches["large"]) / statistics.median(
                batches["small"]
            )
            figures["cycle_batch_ms"] = statistics.median(batches["small"]) * 1000
            figures |= _near_idle(side, writer)
            figures |= _tail(side, writer)
    server.remove()
    return figures


def _near_idle(side: Lakeside, writer: StreamApplier) -> dict[str, float]:
    """The parts of a cycle with one change."""
    looks, cycles, nothings, jobs = list[float](), list[float](), list[float](), list[float]()
    for n in range(20):
        side.database.run(f"update small set v = 'one' where id = {n + 1}")
        side.mirror.catch_up()
        looks.append(_timed(writer.read_catalog))
        cycles.append(_timed(writer.apply))
        nothings.append(_timed(writer.apply))
        jobs.append(_timed(lambda: side.spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()))
    return {
        "idle_look_ms": statistics.median(looks) * 1000,
        "idle_cycle_ms": statistics.median(cycles) * 1000,
        "idle_any_map_in_arrow_ms": statistics.median(jobs) * 1000,
        "idle_nothing_ms": statistics.median(nothings) * 1000,
    }


def _tail(side: Lakeside, writer: StreamApplier) -> dict[str, float]:
    """The cost of 10,000 unapplied changes for a warm query on a table of as many rows."""
    mirror = tidemark.open(side.options.lake, side.spark)

    def query() -> None:
        mirror.at("latest").sql("select count(*), sum(n) from public.tailed").collect()

    side.database.run("insert into tailed select i, 'text ' || i, i / 100.0 from generate_series(1, 10000) i")
    writer.catch_up(side.position())
    before = [_timed(query) for _ in range(15)][4:]
    side.database.run("update tailed set v = v || 'tail'")
    side.mirror.catch_up()
    upto = side.position()
    while writer.tables.lsns.mirror < upto:
        writer.read_catalog()
    writer.record_progress()
    after = [_timed(query) for _ in range(15)][4:]
    return {
        "tail_10k_ms": (statistics.median(after) - statistics.median(before)) * 1000,
        "query_without_tail_ms": statistics.median(before) * 1000,
    }


def _timed(work: Callable[[], object]) -> float:
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


if __name__ == "__main__":
    main()
