"""Copies that take the place of what was there: nothing is unreadable meanwhile, and the past stays what it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import tidemark
from harness.database import Database
from harness.lake import following, lakeside, require_rows
from harness.outside import path_of
from harness.syncing import syncing
from tests.conftest import NEWEST, quick_only
from tidemark.errors import LakeInUse, NotAnswerable
from tidemark.lake.requests import request_resync
from tidemark.lake.status import status_of
from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake
from tidemark.pipeline.fold.compactor import Compactor
from tidemark.storage import fail_points
from tidemark.storage.fail_points import AnyFailPoint, FailPoint

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]

POINTS = (FailPoint.GENERATION_COMMITTED, FailPoint.EVENTS_COMMITTED)


class Crash(BaseException):
    """What a test makes happen in the place of a power failure."""


@contextmanager
def crashing_at(point: FailPoint) -> Iterator[None]:
    def crash(reached: AnyFailPoint) -> None:
        if reached is point:
            raise Crash

    fail_points.attach(crash)
    try:
        yield
    finally:
        fail_points.detach(crash)


@pytest.mark.full
def test_a_resync_changes_nothing_for_who_reads_before_or_after_it(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key, v text)", "insert into t select i, 'a' from generate_series(1, 500) i")
    with syncing(db, tmp_path, spark, "t", folds=False) as synced:
        synced.copy_all()
        for turn in range(3):
            db.run(f"update t set v = v || '{turn}' where id % 7 = {turn}", f"delete from t where id = {turn + 1}")
            synced.note("t")
            synced.catch_up()
            if turn < 2:
                synced.fold()
            db.run(f"insert into t values ({1000 + turn}, 'new')")
            synced.note("t")
            held = tidemark.open(synced.options.lake, spark).at(synced.catch_up())
            synced.resync("t")
            rows = synced.notes[-1].tables["t"]
            require_rows(held.table("t"), *rows, "a handle held through a resync")
            held.close()
            synced.note("t")
        spans = synced.replication.applier.tables.history(oid(db)).spans()
        assert len(spans) == 4
        db.run("insert into t values (5000, 'last')")
        synced.note("t")
        assert synced.require_noted() == 10
        expire_lake(synced.options.lake, ExpireOptions(keep_s=None, before=synced.notes[3].lsn, grace_s=0))
        synced.fold()
        synced.notes = synced.notes[3:]
        assert synced.require_noted() == 7
        expire_lake(synced.options.lake, ExpireOptions(keep_s=None, before=synced.notes[-1].lsn, grace_s=0))
        with pytest.raises(NotAnswerable, match="the history is kept from"):
            tidemark.open(synced.options.lake, spark).at(synced.notes[0].lsn)
        synced.notes = synced.notes[-1:]
        assert synced.require_noted() == 1
        folder = synced.options.lake / path_of(synced.options.lake, "t") / "versions"
        known = {Path(uri).name for uri in DeltaTable(folder).file_uris()}
        assert {path.name for path in folder.glob("*.parquet")} == known


def oid(db: Database) -> int:
    return int(db.admin("select 't'::regclass::oid::int")[0][0])


@pytest.mark.full
@pytest.mark.parametrize("point", POINTS, ids=lambda each: each.value)
def test_a_crash_before_or_after_a_generation_is_told_loses_nothing(
    db: Database, spark: SparkSession, tmp_path: Path, point: FailPoint
) -> None:
    db.run("create table t (id int primary key, v text)", "insert into t select i, 'a' from generate_series(1, 100) i")
    with syncing(db, tmp_path, spark, "t", folds=False) as synced:
        synced.copy_all()
        db.run("update t set v = 'b' where id < 50")
        synced.note("t")
        synced.catch_up()
        with crashing_at(point), pytest.raises(Crash):
            synced.resync("t")
        notes = synced.notes
        synced.require_noted_here()
    with syncing(db, tmp_path, spark, folds=False) as again:
        again.notes = notes
        again.require_noted()
        again.fold()
        again.until(lambda: any("public.t: copied" in each for each in again.said))  # it is still asked for
        db.run("delete from t where id % 3 = 0")
        again.note("t")
        assert again.require_noted() == 2
        again.fold()
        assert again.require_noted() == 2


@pytest.mark.full
@pytest.mark.parametrize("folded", [True, False])
def test_a_fold_of_the_generation_before_loses(db: Database, spark: SparkSession, tmp_path: Path, folded: bool) -> None:
    rows = "insert into t select i, 'a' from generate_series(1, 100) i"
    db.run("create table t (id int primary key, v text)", *([rows] if folded else []))
    with syncing(db, tmp_path, spark, "t", folds=False) as synced:
        synced.copy_all()
        db.run(*([] if folded else [rows]))
        db.run("update t set v = 'b' where id < 50")
        synced.note("t")
        synced.catch_up()
        with Compactor(synced.options.lake, spark) as compactor:
            (stale,) = compactor.foldable()
            assert (stale.versions is not None) == folded
            synced.resync("t")
            with pytest.raises(LakeInUse):
                compactor.fold(stale)
        db.run("update t set v = 'c' where id > 90")
        synced.note("t")
        assert synced.require_noted() == 2


@pytest.mark.parametrize(
    "ddl",
    quick_only(
        (
            "alter table t alter column v type int using v::int * 100",
            "alter table t drop constraint t_pkey, add primary key (v)",
            "alter table t alter column id type bigint",
        ),
        "alter table t alter column id type bigint",
    ),
)
def test_ddl_that_needs_a_resync_starts_it(db: Database, spark: SparkSession, tmp_path: Path, ddl: str) -> None:
    db.run(
        "create table t (id int primary key, v text not null)",
        "insert into t select i, i from generate_series(1, 100) i",
    )
    with syncing(db, tmp_path, spark, "t") as synced:
        synced.copy_all()
        db.run("delete from t where id = 5")
        before = synced.note("t")
        synced.catch_up()
        db.run(ddl, "insert into t values (1000, 1000)")
        after = synced.note("t")
        synced.until(lambda: sum("public.t: copied" in each for each in synced.said) == 2)
        db.run("delete from t where id = 6")
        synced.note("t")
        synced.catch_up()
        with pytest.raises(NotAnswerable, match="must be copied again"):
            tidemark.open(synced.options.lake, spark).at(after).table("t")
        synced.notes = [noted for noted in synced.notes if noted.lsn != after]
        assert synced.require_noted() == 2
        (table,) = status_of(synced.options.lake).tables
        assert table.state == "readable"
        assert [begin <= before for begin, _ in table.readable] == [True, False]


@pytest.mark.full
@pytest.mark.parametrize(
    ("value", "ddl"),
    [("'sad'", "alter type mood rename value 'sad' to 'blue'"), ("(1,2)", "alter type pair add attribute z int")],
    ids=["enum", "composite"],
)
def test_a_type_that_is_altered_beside_an_open_transaction_is_copied_after_it(
    db: Database, spark: SparkSession, tmp_path: Path, value: str, ddl: str
) -> None:
    """The stream prints what the transaction has written as the type was before."""
    db.run("create type mood as enum ('sad', 'glad')", "create type pair as (x int, y int)")
    column = "mood" if "mood" in ddl else "pair"
    db.run(f"create table t (id int primary key, v {column})", f"insert into t values (0, {value})")
    with syncing(db, tmp_path, spark, "t", folds=False) as synced:
        synced.copy_all()
        before = len(synced.said)
        with db.connect() as writing:
            writing.execute(f"begin; insert into t values (1, {value})".encode())
            db.run(ddl)
            unripe = synced.replication.applier.tables.unripe
            synced.until(lambda: unripe() or any("copied" in each for each in synced.said[before:]))
            writing.execute(b"commit")
        synced.copy_all()
        synced.require_equal("t")


@pytest.mark.full
def test_a_table_that_apply_was_waiting_for_is_copied(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key)", "insert into t values (1)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        db.run("insert into t values (2)")
        side.apply_all()
        with pytest.raises(NotAnswerable, match="have not been copied yet"):
            side.open().table("t")
    with syncing(db, tmp_path, spark, log=tmp_path / "log") as synced:
        synced.copy_all()
        synced.require_equal("t")


@pytest.mark.full
def test_a_request_waits_for_the_next_mirror(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key)", "insert into t values (1)")
    with syncing(db, tmp_path, spark, "t") as synced:
        synced.copy_all()
    request_resync(synced.options.lake, [oid(db)])
    with syncing(db, tmp_path, spark) as again:
        again.until(lambda: any("public.t: copied" in each for each in again.said))
        again.require_equal("t")
        assert not list((again.options.lake / "_requests").iterdir())
