"""The mirror: copied under load, followed, with its receiver killed, and compared with PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import tidemark
from demo.heading import print_heading
from demo.source import DIGEST, QUERIES, answers_at_an_lsn
from harness.database import Database
from harness.mirrored import Mirrored, take_over_slot
from tidemark.cli.main import run
from tidemark.cli.spark import started
from tidemark.clock import Lsn
from tidemark.log.reader import LogReader
from tidemark.pipeline.logical import LogicalReplication
from tidemark.pipeline.plan import PipelineOptions
from tidemark.postgres.slot import SlotWait, create_slot
from tidemark.receive.options import ReceiveOptions

REFERENCE = "reference"


@dataclass(frozen=True)
class Demonstrated:
    """A database, its mirror, and a second slot as the reference for its log."""

    database: Database
    options: PipelineOptions
    reference: Mirrored
    spark: SparkSession


def prepare(database: Database, directory: Path) -> Demonstrated:
    """Create the slot of the mirror, a second one as the reference, and a Spark session."""
    names = database.names
    create_slot(database.dsn(), names.slot, SlotWait(30))
    database.admin(f"select pg_copy_logical_replication_slot('{names.slot}', '{REFERENCE}')")
    options = PipelineOptions(database.dsn(), directory / "lake", names)
    receive = ReceiveOptions(database.dsn(), options.log_folder, names)
    take_over_slot(receive)
    begin = time.monotonic()
    spark = started(None, None, ())
    print(f"  Spark {spark.version} started in {time.monotonic() - begin:.0f} s")
    reference = Mirrored(database, receive, REFERENCE, names.all_publications)
    return Demonstrated(database, options, reference, spark)


@contextmanager
def mirroring(shown: Demonstrated) -> Iterator[LogicalReplication]:
    """Run the mirror as `tidemark sync` does."""
    with LogicalReplication(shown.options, shown.spark, lambda event: print(f"  {event}", flush=True)) as running:
        yield running


def copy_live(running: LogicalReplication) -> None:
    """Copy the tables while pgbench writes; each is readable as soon as its copy is complete."""
    print_heading("tidemark sync: tables with rows, copied under load and followed")
    begin = shown_at = time.monotonic()
    while not running.settled or running.copies:
        running.step()
        total = running.progress.total()
        if total.tables and time.monotonic() - shown_at > 1:
            shown_at = time.monotonic()
            print(f"  {total.copied_bytes / 1e6:.0f} of {total.size_bytes / 1e6:.0f} MB copied", end="  ")
            print(f"{total.rows:,} rows  {shown_at - begin:.0f} s", flush=True)


def follow_live(shown: Demonstrated, running: LogicalReplication, seconds: int) -> None:
    """Follow the stream: received within milliseconds, applied in cycles; the receiver is killed on the way."""
    print_heading(
        "Following the stream: received within milliseconds, applied in cycles; the receiver is killed with -9"
    )
    begin = time.monotonic()
    killed = False
    while (passed := time.monotonic() - begin) < seconds:
        applied = running.step()
        if applied is not None:
            (at,) = shown.database.admin("select pg_current_wal_flush_lsn()::text")[0]
            behind = Lsn.parse(at) - _received(shown)
            print(f"  source {at:>11}  received {max(behind, 0):>6} bytes behind", end="  ")
            print(f"applied up to {applied.upto!s:>11}  {applied.changes:>6} changes", flush=True)
        if passed > seconds / 2 and not killed:
            running.kill_receiving()
            killed = True


def compare_answers(shown: Demonstrated, running: LogicalReplication) -> None:
    """Run the same queries on PostgreSQL and Spark at two LSNs, under load; the earlier LSN last."""
    print_heading("The same queries on PostgreSQL and on Spark, at one LSN, under load")
    earlier = answers_at_an_lsn(shown.database)
    time.sleep(1)
    lsn, answers = answers_at_an_lsn(shown.database)
    while not running.reached(lsn):
        running.step()
    _compare(shown, lsn, answers)
    print_heading("Time travel: what PostgreSQL answered a second before")
    _compare(shown, *earlier)
    run(["status", str(shown.options.lake)])


def _compare(shown: Demonstrated, lsn: Lsn, answers: dict[str, int]) -> None:
    moment = tidemark.open(shown.options.lake, shown.spark).at(lsn)
    begin = time.monotonic()
    query = " union all ".join(f"select '{name}', ({query})" for name, query in {**QUERIES, **DIGEST}.items())
    found = {row[0]: int(row[1]) for row in moment.sql(query).collect()}
    answer = "  ".join(f"{name} {value}" for name, value in found.items())
    verdict = "equal" if found == answers else f"DIFFERENT from {answers}"
    print(f"  {lsn!s:>11}  {answer}  {verdict}  ({time.monotonic() - begin:.1f} s)")


def check_log(shown: Demonstrated) -> None:
    """Compare the log with a second slot, which is read with SQL."""
    count = shown.reference.require_equal_so_far()
    print(f"  {count:,} transactions in the log equal those of a second slot read with SQL, message by message")


def prove(shown: Demonstrated, running: LogicalReplication) -> None:
    """Compare every table in one snapshot of PostgreSQL, under load."""
    print_heading("tidemark compare: the proof that every table is equal, in one snapshot, under load")
    ((lsn,),) = shown.database.admin("select pg_current_wal_insert_lsn()::text")
    while not running.reached(Lsn.parse(lsn)):
        running.step()
    run(["compare", str(shown.options.lake), "--source", shown.database.dsn().reveal()])


def _received(shown: Demonstrated) -> Lsn:
    return LogReader(shown.options.log_folder).received
