"""A busy database, polled from the middle of its work on: in the snapshot of every poll every table is what it was.

Tables are altered, rewritten, emptied and folded meanwhile. `make poll-parity` is the same for longer.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from harness.database import Database, create_database
from harness.polled import PolledMirror, polling
from harness.postgres import installs
from tests.conftest import NEWEST, Start, installs_from
from tests.pipeline.sync.load import COLUMNS, Manner, create, writing
from tidemark.clock import Snapshot
from tidemark.errors import TableChanged, TimedOut
from tidemark.pipeline.poll.horizon import Horizon

pytestmark = [pytest.mark.quick, pytest.mark.spark]

FEW = 8
CYCLES = int(os.environ.get("CYCLES", FEW))
VERSIONS = [major for major in installs() if major >= 16][-1 if CYCLES <= FEW else 0 :]  # few polls are of the newest
install = installs_from(VERSIONS[0])
TABLES = ("orders", "items", "bag_of_events", "pairs", "ledger")
COMPARE_EVERY, FOLD_EVERY = 4, 2
MORE_COLUMNS, MOST_FAILURES = 12, 3
MANNERS = (
    Manner(keys=400),
    Manner(keys=400, held_s=0.4, empties=True),
    Manner("set synchronous_commit = off", keys=400, pause_s=0.05),
)


def create_all(db: Database) -> None:
    """With a key, without one, with one of two columns, and a small one that long transactions write to."""
    create(db, *TABLES[:3], rows=300)
    db.run(
        f"create table pairs ({COLUMNS.replace(' primary key', '')}, primary key (v, id))",
        "insert into pairs select i, i, i / 3.0, 'v' || i % 3 from generate_series(1, 300) i",
        "create table ledger (id int primary key, n int)",
        "insert into ledger select i, 0 from generate_series(1, 20) i",
    )


def _alteration(chance: random.Random, n: int) -> str:
    table, one, other = chance.choice(TABLES[:4]), *chance.sample(range(MORE_COLUMNS), 2)
    return chance.choice(
        [
            f"alter table {table} add column if not exists x{one} int default {n}",
            f"alter table {table} add column if not exists x{one} text",
            f"alter table {table} drop column if exists x{one}",
            f"alter table {table} rename column x{one} to x{other}",
            f"alter table {table} alter column q type numeric({chance.choice([14, 16, 20])}, 2)",
            f"alter table {table} rename to t{n}; alter table t{n} rename to {table}",
            f"truncate {table}",
            f"vacuum full {table}",
            f"vacuum (freeze) {table}",
            f"vacuum (freeze) {table}",
            "select pg_switch_wal()",
        ]
    )


@contextmanager
def altering(db: Database, seed: int) -> Iterator[threading.Event]:
    """Someone who alters and cleans tables, where nobody is in his way for long; he can be told to rest."""
    stop, rests, chance = threading.Event(), threading.Event(), random.Random(seed)  # noqa: S311 - repeatable

    def alter() -> None:
        n = 0
        with db.server.connect(db.name) as session:
            session.execute("set lock_timeout = '300ms'; set role app")
            while not stop.wait(chance.uniform(0.2, 1.5)):
                n += 1
                if rests.is_set():
                    continue
                with suppress(psycopg.Error):
                    session.execute(_alteration(chance, n).encode())

    thread = threading.Thread(target=alter)
    thread.start()
    try:
        yield rests
    finally:
        stop.set()
        thread.join()


def poll(mirror: PolledMirror, rests: threading.Event, *tables: str) -> None:
    """Poll until that succeeds: what changes between the snapshot and the read is not read."""
    for failures in range(20):
        if failures >= MOST_FAILURES:  # on a slow machine a poll takes longer than the pause of who alters tables
            rests.set()
        with suppress(TableChanged, TimedOut):
            mirror.poll(*tables)
            rests.clear()
            return
    raise AssertionError("a table was altered during every poll")


def run(mirror: PolledMirror, cycles: int, *tables: str, rests: threading.Event | None = None) -> int:
    """Polls, with a transaction that is open during each and ends before the next; how often a table was compared."""
    compared, rests = 0, rests or threading.Event()
    with mirror.database.connect() as long:
        for n in range(1, cycles + 1):
            long.execute("begin; update ledger set n = n + 1 where id % 3 = 0; savepoint s")
            long.execute(f"update ledger set n = n + 1 where id % 3 = 1; update ledger set id = {n} where id = -{n}")
            mirror.database.run("select pg_current_xact_id()")  # someone who began later has ended
            poll(mirror, rests, *tables)
            long.execute("commit")
            if n % COMPARE_EVERY == 0 or n == cycles:
                poll(mirror, rests, *tables)
                if n % (COMPARE_EVERY * FOLD_EVERY) == 0:
                    mirror.fold()
                compared += mirror.require_noted()
                mirror.notes = {}
    return compared


@pytest.mark.full
def test_under_load_every_table_is_what_each_snapshot_showed(start: Start, spark: SparkSession, tmp_path: Path) -> None:
    cycles = -(-CYCLES // len(VERSIONS))
    db = create_database(start(wal_level="replica", max_prepared_transactions=20))
    create_all(db)
    with (
        writing(db, *TABLES[:4], writers=3, manners=MANNERS) as done,
        altering(db, 1) as rests,
        polling(db, tmp_path, spark) as mirror,
    ):
        compared = run(mirror, cycles, *TABLES, rests=rests)
    assert compared > cycles * 3, "few tables were altered while they were noted"
    assert done[0] > cycles
    mirror.notes = {}


def from_xmax(earlier: Snapshot, later: Snapshot) -> Horizon | None:
    return Horizon(earlier.xmax, max(0, later.xmax.value - earlier.xmax.value))


@pytest.mark.full
@NEWEST
def test_a_horizon_that_begins_too_late_is_noticed(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_all(db)
    with writing(db, "orders", writers=1), polling(db, tmp_path, spark) as mirror:
        monkeypatch.setattr(Horizon, "between", from_xmax)
        with pytest.raises(AssertionError, match=r"ledger at .* missing"):
            run(mirror, 4, "ledger")


@pytest.mark.full
@NEWEST
def test_rows_that_are_not_looked_for_are_noticed(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    create_all(db)
    with writing(db, "orders", writers=1), polling(db, tmp_path, spark, reconcile_every=1000) as mirror:
        with pytest.raises(AssertionError, match=r"orders at .* too many"):
            run(mirror, 8, "orders")
