"""The mirror: received live, killed, started again, applied to a lake, and asked the same as PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tidemark
from demo.saying import say
from demo.source import SUMS, sums_at_an_exact_position
from harness.database import Database
from harness.lake import Lakeside
from harness.mirrored import Mirrored, connected, receiving, take_over_slot
from tidemark.apply.options import ApplyOptions
from tidemark.cli.main import run
from tidemark.clock import Lsn
from tidemark.log.reader import LogReader
from tidemark.receive.options import ReceiveOptions
from tidemark.source.slot import create_slot
from tidemark.spark import SparkOptions, spark_session

JUDGE = "judge"


def prepare(database: Database, folder: Path) -> Lakeside:
    """The slot and the log, a second slot that will be the judge, and a Spark session."""
    names = database.names
    create_slot(database.dsn(), names.slot, wait_s=30)
    database.admin(f"select pg_copy_logical_replication_slot('{names.slot}', '{JUDGE}')")
    options = ReceiveOptions(database.dsn(), folder / "log", names)
    take_over_slot(options)
    mirror = Mirrored(database, options, JUDGE, names.all_publications)
    begin = time.monotonic()
    spark = spark_session(SparkOptions(master="local[2]", conf={"spark.ui.showConsoleProgress": "false"}))
    spark.sparkContext.setLogLevel("ERROR")
    print(f"  Spark {spark.version} started in {time.monotonic() - begin:.0f} s")
    return Lakeside(database, mirror, ApplyOptions(database.dsn(), options.folder, folder / "lake", names), spark)


def begin_lake(side: Lakeside) -> None:
    """The lake is begun while the tables are empty."""
    say("tidemark receive and tidemark apply: the tables are empty, and mirrored from here on")
    with receiving(side.mirror) as process:
        side.mirror.catch_up()
        side.apply_all()
        process.stop()
        process.wait()
    run(["status", str(side.options.lake)])


def receive_live(side: Lakeside) -> None:
    """Everything the source commits into a log, seen from outside; killed in the middle."""
    say("tidemark receive, live: what the source commits, on our disk before it is confirmed")
    with receiving(side.mirror) as process:
        _show_positions(side.mirror, seconds=3)
        process.kill()
    print("  kill -9; started again")


def apply_live(side: Lakeside, seconds: int) -> None:
    """Cycles: what was received, into Delta tables."""
    say("tidemark apply, live: from the log into the lake")
    with side.writing() as writer:
        begin = time.monotonic()
        while (passed := time.monotonic() - begin) < seconds:
            applied = writer.step()
            if applied is not None:
                rate = applied.changes / max(time.monotonic() - begin - passed, 0.001)
                print(f"  applied up to {applied.upto!s:>11}  {applied.transactions:>6} transactions", end="  ")
                print(f"{applied.changes:>7} changes  {rate:>9,.0f}/s", flush=True)


def ask_both(side: Lakeside) -> None:
    """The same sums by PostgreSQL and by Spark, at the same positions, while the load goes on; then back in time."""
    say("The same question to PostgreSQL and to Spark, at one LSN, under load")
    earlier = sums_at_an_exact_position(side.database)
    time.sleep(1)
    lsn, sums = sums_at_an_exact_position(side.database)
    with side.writing() as writer:
        writer.catch_up(lsn)
    begin = time.monotonic()
    folded = side.fold()
    print(f"  {sum(each.changes for each in folded)} changes of {len(folded)} tables folded", end=" ")
    print(f"in {time.monotonic() - begin:.1f} s: reads are plain scans now", flush=True)
    _compare(side, lsn, sums)
    say("And what PostgreSQL had answered a second before: time travel")
    _compare(side, *earlier)


def _compare(side: Lakeside, lsn: Lsn, sums: dict[str, int]) -> None:
    moment = tidemark.open(side.options.lake, side.spark).at(lsn)
    begin = time.monotonic()
    query = " union all ".join(f"select '{table}', ({query})" for table, query in SUMS.items())
    found = {row[0]: int(row[1]) for row in moment.sql(query).collect()}
    shown = "  ".join(f"{table} {value:>9}" for table, value in found.items())
    print(f"  {lsn!s:>12}  {shown}  {'equal' if found == sums else 'DIFFERENT'}  ({time.monotonic() - begin:.1f} s)")


def judge(side: Lakeside) -> None:
    """The log against a second slot, read by SQL."""
    count = side.mirror.require_equal_so_far()
    print(f"  {count} transactions in the log; the same {count}, message by message, in a second slot read by SQL")


@contextmanager
def received(side: Lakeside) -> Iterator[None]:
    """A receiving process until the context ends."""
    with receiving(side.mirror) as process:
        yield
        process.stop()
        process.wait()


def _show_positions(mirror: Mirrored, seconds: int) -> None:
    with connected(mirror.options.folder) as client:
        reader, before = LogReader(mirror.options.folder), 0
        for second in range(seconds + 1):
            position = client.position()
            (at,) = mirror.database.admin("select pg_current_wal_flush_lsn()::text")[0]
            reader.refresh()
            commits = len(reader.commits())
            if second:
                behind = f"({Lsn.parse(at) - position.received} bytes behind)"
                print(f"  source {at:>11}  received {position.received!s:>11} {behind:<21}", end="  ")
                print(f"durable {position.durable!s:>11}  {commits - before:>5} transactions/s", flush=True)
            before = commits
            time.sleep(1)
