"""The changes of tables that cannot be read: they take a bounded amount of disk, and a copy later is exact."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.database import MIRROR, Database
from harness.outside import path_of
from harness.syncing import Synced, publish, syncing
from tests.conftest import NEWEST
from tidemark.clock import Lsn
from tidemark.lake.changes import ChangeFile, read_changes
from tidemark.lake.registers import read_cycle
from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake
from tidemark.pipeline.fold import change_files
from tidemark.pipeline.fold.compactor import Compactor
from tidemark.pipeline.sinks.sink import STAGING

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]

ROUNDS = 5


def files(synced: Synced) -> tuple[ChangeFile, ...]:
    lake = synced.options.lake
    return read_changes(lake, path_of(lake, "t"), Lsn.ZERO).files


def rounds(synced: Synced, statement: str) -> None:
    """Cycles with changes of t, each of which becomes a file."""
    for n in range(ROUNDS):
        synced.database.run(statement.format(n), f"insert into u values ({n}) on conflict do nothing")
        synced.catch_up()


def expire(synced: Synced, before: Lsn) -> None:
    expire_lake(synced.options.lake, ExpireOptions(keep_s=None, before=before, grace_s=0))


@pytest.mark.full
def test_changes_of_a_table_that_was_never_copied_expire_once_it_is_no_longer_published(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key, v text)", "create table u (id int primary key)")
    db.run("insert into t values (-1, 'first')", f"revoke select on t from {MIRROR}")
    with syncing(db, tmp_path, spark, "t", "u", folds=False, keep_s=None) as synced:
        synced.until(lambda: any("public.t: copy failed" in each for each in synced.said))
        rounds(synced, "insert into t values ({}, 'unread')")
        expire(synced, Lsn.ZERO)
        assert len(files(synced)) == ROUNDS, "a copy that is retried may need them"
        publication = synced.options.names.publication
        path = path_of(synced.options.lake, "t")
        db.admin(f"alter publication {publication} drop table t")
        db.run("insert into u values (100)")
        synced.catch_up()
        expire(synced, Lsn.ZERO)
        assert not read_changes(synced.options.lake, path, Lsn.ZERO).files
        synced.require_equal("u")


def test_changes_of_a_table_without_a_replica_identity_expire_even_if_history_is_kept_forever(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int, v text)", "create table u (id int primary key)")
    names = publish(db, "u", inserts="t")
    with syncing(db, tmp_path, spark, folds=False, keep_s=None) as synced:
        rounds(synced, "insert into t values ({}, 'unread')")
        synced.until(lambda: not synced.replication.copies)
        synced.catch_up()
        assert len(files(synced)) == ROUNDS
        expire(synced, Lsn.ZERO)
        complete = read_cycle(synced.options.lake).complete
        assert all(file.greatest > complete for file in files(synced))
        db.run("insert into t values (7, 'before')", "update t set v = v || '.'")
        synced.catch_up()
        db.run("alter table t replica identity full")
        db.admin(
            f"alter publication {names.inserts_publication} drop table t",
            f"alter publication {names.publication} add table t",
        )
        db.run("update t set v = v || ', published' where id < 3")
        synced.catch_up()
        expire(synced, Lsn.ZERO)
        synced.copy_all()
        expire(synced, Lsn.ZERO)
        db.run("update t set v = v || ', later' where id < 2", "delete from t where id = 4")
        synced.note("t", "u")
        db.run("insert into t values (8, 'last')")
        synced.note("t", "u")
        synced.require_noted()
        synced.fold()
        expire(synced, Lsn.ZERO)
        synced.require_noted_here()


def test_changes_of_a_table_that_cannot_be_copied_are_merged_and_expire(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_files, "MANY", 3)
    monkeypatch.setattr(change_files, "GROWTH", 1)
    db.run("create table t (id int primary key, v text)", "create table u (id int primary key)")
    db.run("insert into t values (-1, 'first')", f"revoke select on t from {MIRROR}")
    with syncing(db, tmp_path, spark, "t", "u", folds=False) as synced:
        synced.until(lambda: any("public.t: copy failed" in each for each in synced.said))
        rounds(synced, "insert into t values ({}, 'unread')")
        assert len(files(synced)) == ROUNDS
        with Compactor(synced.options.lake, spark) as compactor:
            for table in compactor.compactable():
                compactor.compact(table)
        (merged,) = files(synced)
        assert merged.rows == ROUNDS
        rounds(synced, "update t set v = v || '{}'")
        expire(synced, synced.replication.position())
        cycle = read_cycle(synced.options.lake)
        assert all(file.greatest > cycle.complete for file in files(synced))
        db.run(f"grant select on t to {MIRROR}", "update t set v = v || ', kept' where id > 2")
        synced.resync("t")
        db.run("update t set v = v || ', later' where id < 2", "delete from t where id = 3")
        synced.require_equal("t", "u")
        synced.fold()
        expire(synced, synced.replication.position())
        synced.require_noted_here()


@pytest.mark.full
def test_data_that_a_killed_process_has_spooled_for_its_copies_is_deleted(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key)")
    spooled = tmp_path / "lake" / STAGING / "0.copy"
    spooled.parent.mkdir(parents=True)
    spooled.touch()
    with syncing(db, tmp_path, spark, "t", folds=False):
        assert not spooled.exists()
