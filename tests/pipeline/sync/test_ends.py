"""Where a mirror ends that is to end: everything up to there can be read, and what cannot is told."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import Database
from harness.lake import Noted
from harness.syncing import Synced, publish, syncing
from tests.conftest import NEWEST
from tests.pipeline.sync.test_faults import TABLE
from tidemark.clock import Lsn
from tidemark.errors import NotAnswerable, NotPermitted
from tidemark.lake.controls import CURRENT, Controls
from tidemark.lake.requests import request_resync
from tidemark.pipeline.pipeline import follow
from tidemark.pipeline.recording import StateRecord
from tidemark.pipeline.reporting import Reporter

LIMIT_S = 300

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]


def run_to_end(synced: Synced, until: Lsn | str) -> None:
    replication, stopped = synced.replication, list[int]()
    timer = threading.Timer(LIMIT_S, lambda: stopped.append(1))
    timer.start()
    lake = synced.options.lake
    reporter, record = Reporter(lambda _: None), StateRecord(lake)
    follow(replication, synced.options, until, lambda: bool(stopped), reporter, record, Controls(lake))
    timer.cancel()
    assert not stopped, (until, replication.applier.cycle, replication.copies, replication.unable, synced.said)


def test_an_end_ahead_comes_after_the_copies_below_it(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run(*TABLE)
    end = Lsn(Lsn.parse(db.admin("select pg_current_wal_insert_lsn()::text")[0][0]).value + (20 << 20))
    with syncing(db, tmp_path, spark, "t", endpos=end) as synced:
        synced.copy_all()
        db.run("update t set v = 'below' where id % 2 = 0")
        synced.note("t")
        for n in range(3):
            db.admin("select pg_switch_wal()")
            db.run(f"update t set v = 'turn {n}'")
            synced.note("t")
        run_to_end(synced, end)
        synced.replication.require_copied()
        above = [noted for noted in synced.notes if noted.lsn > end]
        below = [noted for noted in synced.notes if noted.lsn <= end]
        synced.notes = [*below, Noted(end, below[-1].tables)]
        assert synced.require_noted_here() == len(below) + 1
        for noted in above:
            with pytest.raises(NotAnswerable):
                tidemark.open(synced.options.lake, spark).at(noted.lsn)
        assert above


def test_what_would_be_copied_beyond_the_end_is_told_and_the_rest_is_exact(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(*TABLE)
    with syncing(db, tmp_path, spark, "t") as synced:
        synced.copy_all()
        db.run("update t set v = 'below' where id % 2 = 0")
        end = synced.note("t")
    db.run("delete from t where id % 3 = 0", "create table late (id int primary key)", "insert into late values (1)")
    db.admin(f"alter publication {db.names.publication} add table late")
    request_resync(synced.options.lake, synced.replication.applier.tables.histories)
    with syncing(db, tmp_path, spark, endpos=end) as ended:
        run_to_end(ended, end)
        with pytest.raises(NotAnswerable, match=f"public.late cannot be read: .* after --endpos {end}"):
            ended.replication.require_copied()
        ended.notes = synced.notes
        assert ended.require_noted_here() == 1
        assert any("table public.t: copy failed" in each for each in ended.said)
    with syncing(db, tmp_path, spark) as again:
        again.copy_all()
        again.notes = synced.notes
        again.note("t", "late")
        assert again.require_noted() == 3
        assert not list((again.options.lake / "_requests").iterdir())


def test_a_table_altered_beyond_the_end_does_not_keep_it_from_ending(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(*TABLE)
    with syncing(db, tmp_path, spark, "t") as synced:
        synced.copy_all()
    db.run("update t set v = 'below' where id % 2 = 0")
    end = synced.note("t")
    db.run("alter table t add c int default 7", "insert into t values (-1)")
    with syncing(db, tmp_path, spark, endpos=end) as ended:
        run_to_end(ended, end)
        with pytest.raises(NotAnswerable, match="tables were altered after"):
            ended.replication.require_copied()
    with syncing(db, tmp_path, spark) as again:
        again.require_equal("t")


def test_a_table_that_may_not_be_read_does_not_keep_the_others_from_their_end(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(*TABLE, "create table closed as select * from t", "alter table closed replica identity full")
    db.run("revoke select on closed from mirror")
    with syncing(db, tmp_path, spark, "t", "closed") as synced:
        run_to_end(synced, CURRENT)
        with pytest.raises(NotPermitted, match=r"public\.closed cannot be read: .*permission denied") as refused:
            synced.replication.require_copied()
        assert "public.t" not in str(refused.value)
        synced.note("t")
        synced.require_noted()


def test_a_copy_that_is_asked_for_and_cannot_be_is_not_waited_for(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(*TABLE, "create table inserts (a int)", "insert into inserts values (1)")
    publish(db, "t", inserts="inserts")
    with syncing(db, tmp_path, spark) as synced:
        synced.copy_all()
        request_resync(synced.options.lake, synced.replication.applier.tables.histories)
        run_to_end(synced, CURRENT)
        synced.replication.require_copied()
        synced.until(lambda: not list((synced.options.lake / "_requests").iterdir()))
        assert any("not copied, it was dropped or has no replica identity" in each for each in synced.said)
