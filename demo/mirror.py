"""The mirror: copied under load, followed, killed in the middle, and asked the same as PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import tidemark
from demo.saying import say
from demo.source import DIGEST, QUESTIONS, answers_at_an_exact_position
from harness.database import Database
from harness.mirrored import Mirrored, take_over_slot
from tidemark.cli.main import run
from tidemark.clock import Lsn
from tidemark.log.reader import LogReader
from tidemark.receive.options import ReceiveOptions
from tidemark.source.slot import SlotWait, create_slot
from tidemark.spark import SparkOptions, spark_session
from tidemark.sync.mirroring import Mirroring, MirroringOptions

JUDGE = "judge"


@dataclass(frozen=True)
class Demonstrated:
    """A database, its mirror, and the judge of its log."""

    database: Database
    options: MirroringOptions
    judge: Mirrored
    spark: SparkSession


def prepare(database: Database, folder: Path) -> Demonstrated:
    """The mirror's slot, a second one that will be the judge, and a Spark session."""
    names = database.names
    create_slot(database.dsn(), names.slot, SlotWait(30))
    database.admin(f"select pg_copy_logical_replication_slot('{names.slot}', '{JUDGE}')")
    options = MirroringOptions(database.dsn(), folder / "lake", names)
    receive = ReceiveOptions(database.dsn(), options.log_folder, names)
    take_over_slot(receive)
    begin = time.monotonic()
    spark = spark_session(SparkOptions(conf={"spark.ui.showConsoleProgress": "false"}))
    spark.sparkContext.setLogLevel("ERROR")
    print(f"  Spark {spark.version} started in {time.monotonic() - begin:.0f} s")
    judge = Mirrored(database, receive, JUDGE, names.all_publications)
    return Demonstrated(database, options, judge, spark)


@contextmanager
def mirroring(shown: Demonstrated) -> Iterator[Mirroring]:
    """The mirror, as `tidemark sync` runs it."""
    with Mirroring(shown.options, shown.spark, lambda said: print(f"  {said}", flush=True)) as running:
        yield running


def copy_live(running: Mirroring) -> None:
    """Full tables, copied while pgbench goes on; each can be read as soon as it is there."""
    say("tidemark sync: full tables under load, copied and followed")
    begin = shown_at = time.monotonic()
    while not running.settled or running.copies:
        running.step()
        total = running.progress.total()
        if total.tables and time.monotonic() - shown_at > 1:
            shown_at = time.monotonic()
            print(f"  {total.copied_bytes / 1e6:.0f} of {total.size_bytes / 1e6:.0f} MB copied", end="  ")
            print(f"{total.rows:,} rows  {shown_at - begin:.0f} s", flush=True)


def follow_live(shown: Demonstrated, running: Mirroring, seconds: int) -> None:
    """What is committed, received in milliseconds and applied in cycles; killed in the middle."""
    say("Following: received within milliseconds, applied in cycles; and the receiving process killed with -9")
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


def ask_both(shown: Demonstrated, running: Mirroring) -> None:
    """The same questions to both, at the same positions, while the load goes on; then back in time."""
    say("The same questions to PostgreSQL and to Spark, at one LSN, under load")
    earlier = answers_at_an_exact_position(shown.database)
    time.sleep(1)
    lsn, answers = answers_at_an_exact_position(shown.database)
    while not running.reached(lsn):
        running.step()
    _compare(shown, lsn, answers)
    say("And what PostgreSQL had answered a second before: time travel")
    _compare(shown, *earlier)
    run(["status", str(shown.options.lake)])


def _compare(shown: Demonstrated, lsn: Lsn, answers: dict[str, int]) -> None:
    moment = tidemark.open(shown.options.lake, shown.spark).at(lsn)
    begin = time.monotonic()
    query = " union all ".join(f"select '{name}', ({query})" for name, query in {**QUESTIONS, **DIGEST}.items())
    found = {row[0]: int(row[1]) for row in moment.sql(query).collect()}
    told = "  ".join(f"{name} {value}" for name, value in found.items())
    verdict = "equal" if found == answers else f"DIFFERENT from {answers}"
    print(f"  {lsn!s:>11}  {told}  {verdict}  ({time.monotonic() - begin:.1f} s)")


def judge(shown: Demonstrated) -> None:
    """The log against a second slot, read by SQL."""
    count = shown.judge.require_equal_so_far()
    print(f"  {count} transactions in the log; the same {count}, message by message, in a second slot read by SQL")


def prove(shown: Demonstrated, running: Mirroring) -> None:
    """Every table, whole, at one snapshot of a session on PostgreSQL, while the load goes on."""
    say("tidemark compare: the proof, at one snapshot, under load")
    ((lsn,),) = shown.database.admin("select pg_current_wal_insert_lsn()::text")
    while not running.reached(Lsn.parse(lsn)):
        running.step()
    run(["compare", str(shown.options.lake), "--source", shown.database.dsn().reveal()])


def _received(shown: Demonstrated) -> Lsn:
    return LogReader(shown.options.log_folder).received
