"""From the stream to polls and back, in one lake: what was mirrored stays exact, and what is missing is refused."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import MIRROR, PASSWORD, Database, create_database
from harness.lake import Noted, by_postgres, require_read
from harness.syncing import Synced, syncing
from tests.conftest import NEWEST, Start
from tests.pipeline.sync.history import CREATE, work
from tests.striking import striking
from tidemark.clock import Lsn
from tidemark.errors import InvalidValue, NotAnswerable, NotPermitted, NotTheSameSource
from tidemark.lake.lake import Lake
from tidemark.lake.polls import read_polls
from tidemark.lake.requests import read_restart, request_restart
from tidemark.lake.status import status_of
from tidemark.mirror.mirror import Mirror
from tidemark.pipeline.pipeline import sync
from tidemark.pipeline.plan import PipelineOptions, plan_pipeline
from tidemark.postgres.names import MirrorNames
from tidemark.storage.fail_points import FailPoint

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]

TABLES = ("t", "bag", "root")
SLOTS = "select slot_name from pg_replication_slots where database = current_database()"


def streamed(db: Database, folder: Path, spark: SparkSession) -> Synced:
    """A mirror that follows the stream, with some history, stopped."""
    db.run(*CREATE)
    with syncing(db, folder, spark, "t", "bag", "leaf", "empty") as synced:
        synced.copy_all()
        synced.note(*TABLES)
        for turn in (1, 2):
            work(db, turn)
            synced.note(*TABLES)
        synced.catch_up()
        return synced


def run(db: Database, folder: Path, spark: SparkSession, mode: str = "auto", user: str = MIRROR) -> Lsn:
    """`tidemark sync --once`, after which the mirror must return what the tables have now; returns its LSN."""
    lake = folder / "lake"
    sync(db.dsn(user), lake, name=db.name, mode=mode, once=True, spark=spark)
    moment = tidemark.open(lake, spark).at()
    for table in TABLES:
        require_read(moment, table, *by_postgres(db, table))
    return moment.lsn


def noted(db: Database, lsn: Lsn) -> Noted:
    return Noted(lsn, {table: by_postgres(db, table) for table in TABLES})


def test_a_mirror_changes_from_the_stream_to_polls_and_back_twice(
    db: Database, tmp_path: Path, spark: SparkSession
) -> None:
    side = streamed(db, tmp_path, spark)
    lake = side.options.lake
    with tidemark.open(lake, spark, source=db.dsn(MIRROR)) as mirror:
        last = side.notes[-1].lsn
        streamed_at = require_time(mirror, last)
        assert mirror.at("now").lsn >= last, "the handle has seen the stream"
        for turn in (3, 6):
            last, streamed_at = change_and_return(mirror, side, turn, last, streamed_at)


def change_and_return(
    mirror: Mirror, side: Synced, turn: int, last: Lsn, streamed_at: datetime
) -> tuple[Lsn, datetime]:
    """Poll the mirror twice, then follow the stream; `last` and `streamed_at` are the end of the stream before."""
    db, lake, spark = side.database, side.options.lake, side.spark
    tmp_path = lake.parent
    work(db, turn)
    first = run(db, tmp_path, spark, "poll")
    side.notes.append(noted(db, first))
    assert db.run(SLOTS) == []
    found = status_of(lake)
    assert found.last_poll is not None
    assert (found.last_poll.lsn, found.restart) == (first, None)
    assert side.require_noted_here()
    with pytest.raises(NotAnswerable, match="is polled and cannot be read at `now`"):
        mirror.at("now")
    gap = Lsn(first.value - 1)
    for table in TABLES:
        with pytest.raises(NotAnswerable, match="the mirror changed from the stream to polling"):
            mirror.at(gap).table(table)
    assert mirror.at(last).time is None
    with pytest.raises(NotAnswerable, match="before the first poll that followed the stream"):
        mirror.at(streamed_at)
    work(db, turn + 1)
    polled = run(db, tmp_path, spark, "poll")
    side.notes.append(noted(db, polled))
    assert mirror.at().observed is not None
    handed = run(db, tmp_path, spark)
    assert status_of(lake).last_poll is None
    assert db.run(SLOTS) == [(db.names.slot,)]
    assert read_polls(lake).polled_upto(handed) > polled
    assert mirror.at(polled).observed is not None
    assert mirror.at(last).observed is None, "the stream was read there"
    work(db, turn + 2)
    with syncing(db, tmp_path, spark) as again:
        again.notes = side.notes
        again.note(*TABLES)
        again.require_noted()
        again.fold()
        again.require_noted_here()
    now = mirror.at("now")
    for table in TABLES:
        require_read(now, table, *by_postgres(db, table))
    last = side.notes[-1].lsn
    return last, require_time(mirror, last)


def require_time(mirror: Mirror, lsn: Lsn) -> datetime:
    """The time of a position, at which the mirror can be read."""
    time = mirror.at(lsn).time
    assert time is not None
    mirror.at(time).close()
    return time


POINTS = (  # and how often each is reached
    (FailPoint.RESTART_DECIDED, 1),
    (FailPoint.EVENTS_COMMITTED, 1),
    (FailPoint.LOG_EMPTIED, 1),
    (FailPoint.CYCLE_COMMITTED, 1),
    (FailPoint.WRITTEN, 1),
    (FailPoint.ALL_COMMITTED, 1),
    (FailPoint.CYCLE_COMMITTED, 2),
)


@pytest.mark.parametrize("then", ["poll", "auto"])
def test_wherever_the_change_ends_the_next_sync_polls_or_restarts(
    db: Database, tmp_path: Path, spark: SparkSession, then: str
) -> None:
    side = streamed(db, tmp_path, spark)
    for turn, (point, times) in enumerate(POINTS, 3):
        work(db, turn)
        with striking(point, times):
            sync(db.dsn(MIRROR), side.options.lake, name=db.name, mode="poll", once=True, spark=spark)
        assert read_restart(side.options.lake) is not None
        assert side.require_noted_here(), f"history is readable after it ended at: {point.value}"
        if then == "auto":
            run(db, tmp_path, spark)
            assert read_restart(side.options.lake) is None
    run(db, tmp_path, spark, then)
    assert side.require_noted_here()
    assert (status_of(side.options.lake).last_poll is None) is (then == "auto")
    assert read_restart(side.options.lake) is None


def test_a_source_that_lost_logical_decoding_and_was_restored_is_polled(
    start: Start, tmp_path: Path, spark: SparkSession
) -> None:
    """The source is a standby that was promoted below what the lake has, and has `wal_level` replica."""
    primary = start()
    db = create_database(primary)
    standby = primary.standby()
    try:
        standby.promote()
        side = streamed(db, tmp_path, spark)
        restored = Database(standby, db.name)
        standby.restart(settings={"wal_level": "replica"})
        restored.run(*CREATE)
        work(restored, 5)
        reached = Lake.open(side.options.lake).cycle().applied_lsn
        assert run(restored, tmp_path, spark, "poll") > reached
        assert side.require_noted_here()
        work(restored, 6)
        run(restored, tmp_path, spark, "poll")
        assert side.require_noted_here()
    finally:
        standby.remove()


def test_a_slot_that_the_role_cannot_drop_is_named_and_nothing_changes(
    db: Database, tmp_path: Path, spark: SparkSession
) -> None:
    side = streamed(db, tmp_path, spark)
    reader = f"{db.name}_reader"
    db.admin(f"create role {reader} login password '{PASSWORD}'", f"grant pg_read_all_data to {reader}")
    before = Lake.open(side.options.lake).cycle()
    with pytest.raises(NotPermitted, match=f"cannot drop replication slot {db.names.slot}") as refused:
        sync(db.dsn(reader), side.options.lake, name=db.name, mode="poll", once=True, spark=spark)
    assert "pg_drop_replication_slot" in refused.value.hint
    assert Lake.open(side.options.lake).cycle() == before
    assert read_restart(side.options.lake) is None
    work(db, 3)
    run(db, tmp_path, spark)  # it follows the stream as before
    db.admin(f"select pg_drop_replication_slot('{db.names.slot}')")
    run(db, tmp_path, spark, "poll", reader)


def test_a_standby_and_another_name_are_refused(start: Start, tmp_path: Path, spark: SparkSession) -> None:
    primary = start()
    db = create_database(primary)
    side = streamed(db, tmp_path, spark)
    standby = primary.standby()
    before = Lake.open(side.options.lake).cycle()
    try:
        copied = Database(standby, db.name)
        with pytest.raises(InvalidValue, match="SOURCE is a standby"):
            sync(copied.dsn(MIRROR), side.options.lake, name=db.name, mode="poll", once=True, spark=spark)
        with pytest.raises(NotTheSameSource, match="not of 'other'"):
            sync(db.dsn(MIRROR), side.options.lake, name="other", mode="poll", once=True, spark=spark)
        assert Lake.open(side.options.lake).cycle() == before
        assert read_restart(side.options.lake) is None
        assert db.run(SLOTS) == [(db.names.slot,)]
    finally:
        standby.remove()


def test_times_of_a_stream_that_another_log_has_replaced_are_refused(
    db: Database, tmp_path: Path, spark: SparkSession
) -> None:
    side = streamed(db, tmp_path, spark)
    lake = side.options.lake
    run(db, tmp_path, spark, "poll")
    run(db, tmp_path, spark)
    work(db, 3)
    run(db, tmp_path, spark)
    with tidemark.open(lake, spark) as mirror:
        lsn = mirror.at().lsn
        streamed_at = require_time(mirror, lsn)
        request_restart(lake)
        work(db, 4)
        run(db, tmp_path, spark)
        assert mirror.at(lsn).time is None
        with pytest.raises(NotAnswerable, match="is before the first commit"):
            mirror.at(streamed_at)


def test_the_plan_names_what_is_lost(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    side = streamed(db, tmp_path, spark)

    def plan(**options: Any) -> str:
        chosen = PipelineOptions.of(db.dsn(MIRROR), side.options.lake, name=db.name, **options)
        return plan_pipeline(chosen).describe()

    assert f"replication slot {MirrorNames(db.name).slot} and the log with its commit times are removed" in plan(
        mode="poll"
    )
    assert "are removed" not in plan()
