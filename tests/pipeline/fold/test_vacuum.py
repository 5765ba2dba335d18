"""What is older than the window goes, each kind of thing by its own rule, and nothing that an open read needs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import PATIENT, Database
from harness.lake import Lakeside, following, lakeside
from harness.mirrored import eventually
from harness.outside import path_of
from harness.small_disk import CannotMount, fill, small_disk
from harness.syncing import syncing
from tests.conftest import NEWEST
from tidemark.clock import Boundary, Lsn
from tidemark.errors import LakeError, NotAnswerable
from tidemark.lake.commits import LOG, LOG_S, old_commits, opened
from tidemark.lake.leases import Lease, read_leases
from tidemark.lake.paths import CHANGES, VERSIONS
from tidemark.lake.registers import read_retained
from tidemark.lake.status import status_of
from tidemark.lake.sync_records import Retention, retention_of
from tidemark.lake.unlisted import names_in
from tidemark.lake.versions import END_LSN, read_versions
from tidemark.log.reader import LogReader
from tidemark.log.segment import INDEX, SEGMENT, numbers
from tidemark.pipeline.expire import background, expiry
from tidemark.pipeline.expire.background import expiring
from tidemark.pipeline.expire.expiry import Expired, ExpireOptions, expire_lake
from tidemark.pipeline.fold import compactor

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]


def remove_files(side: Lakeside, before: Lsn, *, dry_run: bool = False) -> Expired:
    return expire_lake(side.options.lake, ExpireOptions(keep_s=None, before=before, grace_s=0), dry_run=dry_run)


def parquet(side: Lakeside) -> set[Path]:
    files = (side.options.lake / path_of(side.options.lake, "t")).rglob("*.parquet")
    return {path for path in files if "_delta_log" not in path.parts}


def indexes_and_segments(side: Lakeside) -> tuple[list[int], list[int]]:
    names = [path.name for path in side.options.log.iterdir()]
    return numbers(names, INDEX), numbers(names, SEGMENT)


def rounds(side: Lakeside, count: int) -> None:
    """Changes that are applied and folded, one round after the other."""
    for n in range(count):
        side.database.run(f"insert into t select {n} * 100 + i, 'v' from generate_series(1, 50) i")
        side.database.run(f"update t set v = v || '{n}' where id % 3 = 0", f"delete from t where id = {n} * 100 + 7")
        side.note("t")
        side.apply_all()
        side.fold()


def test_what_is_older_goes_and_the_window_reads_as_before(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, v text)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        rounds(side, 3)
        before, third = parquet(side), side.notes[2].lsn
        told = remove_files(side, third, dry_run=True)
        assert told.removals
        assert parquet(side) == before
        assert read_retained(side.options.lake) == Lsn.ZERO
        assert side.require_noted_now() == 3
        done = remove_files(side, third)
        assert done.retained == third
        assert not done.leases
        assert parquet(side) < before
        versions = read_versions(side.options.lake, path_of(side.options.lake, "t"))
        assert versions is not None
        assert all(file.greatest_end is None or file.greatest_end > third for file in versions.files)
        early, mirror = side.notes[:2], side.open()
        side.notes = side.notes[2:]
        side.require_noted_now()
        for noted in early:
            with pytest.raises(NotAnswerable, match=f"the history is kept from {third} on"):
                mirror.at(noted.lsn)
        with pytest.raises(NotAnswerable, match="the history is kept from"):
            mirror.at(Boundary(third, frozenset({early[0].lsn})))
        with pytest.raises(NotAnswerable, match="are not complete"):
            mirror.changes("t", early[0].lsn)
        side.database.run("update t set v = 'again'")
        side.note("t")
        side.apply_all()
        assert side.require_noted() == 2
        assert remove_files(side, early[0].lsn).retained == third, "the window never opens again"


@pytest.mark.full
def test_files_that_are_joined_again_and_again_lose_the_rows_that_expired(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compactor, "MANY_FILES", 2)
    db.run("create table t (id int primary key, v text)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        rounds(side, 2)
        altered(side, 1)  # joins the closed files, so that one file has old and new rows
        retained = remove_files(side, side.notes[1].lsn).retained
        ends = _ends(side)
        assert min(ends) <= retained.value < max(ends), "the file has rows that are needed, and stays"
        altered(side, 2)
        assert min(_ends(side)) > retained.value
        side.notes = side.notes[1:]
        assert side.require_noted_now() == 4


def altered(side: Lakeside, count: int) -> None:
    """Updates of all rows that are applied and folded, one round after the other."""
    for _ in range(count):
        side.database.run("update t set v = v || '.'")
        side.note("t")
        side.apply_all()
        side.fold()


def _ends(side: Lakeside) -> list[int]:
    """The ends of the closed versions in the files that the table lists."""
    folder = side.options.lake / path_of(side.options.lake, "t") / VERSIONS
    closed = [folder / name for name in names_in(opened(folder)) if name.startswith("closed")]
    return [end for path in closed for end in pq.read_table(path)[END_LSN].to_pylist()]


def test_an_open_handle_keeps_what_it_needs_and_is_named(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, v text)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        rounds(side, 2)
        with side.open().at(side.notes[0].lsn) as held:
            frame = held.table("t")
            rounds_before = frame.count()
            side.database.run("update t set v = 'later'")
            side.apply_all()
            side.fold()
            done = remove_files(side, side.position())
            (lease,) = done.leases
            assert (lease.owner.pid, lease.lsn) == (os.getpid(), held.lsn)
            assert done.retained == held.lsn < done.wanted
            assert frame.count() == held.table("t").count() == rounds_before
        assert not read_leases(side.options.lake)
        assert remove_files(side, side.notes[1].lsn).retained == side.notes[1].lsn
        frame = side.open().at(side.notes[1].lsn).table("t")
        assert len(read_leases(side.options.lake)) == 1, "a frame remembers its handle"
        del frame
        eventually(lambda: not read_leases(side.options.lake))


def test_kept_forever_what_folds_replaced_is_deleted_and_all_history_reads_as_before(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "GRACE_S", 0.0)
    monkeypatch.setattr(expiry, "MANY_COMMITS", 0)
    db.run("create table t (id int primary key, v text)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        rounds(side, 2)
        lake, path = side.options.lake, side.options.lake / path_of(side.options.lake, "t")
        folders = [path / CHANGES, path / VERSIONS]
        listed = {folder / name for folder in folders for name in names_in(opened(folder))}
        assert parquet(side) > listed, "folds replaced files"
        opened(path / VERSIONS).create_checkpoint()
        made_older(path / VERSIONS)
        with expiring(lake, None, lambda *_: None):
            eventually(lambda: parquet(side) == listed and old_commits(path / VERSIONS) == 1, 20)
        assert read_retained(lake) == Lsn.ZERO
        assert retention_of(lake) == Retention(None)
        assert expire_lake(lake, ExpireOptions.of(retention_of(lake), 0.0)).removals == ()
        assert side.require_noted_now() == 2
        assert parquet(side) == listed


@pytest.mark.full
def test_kept_forever_with_a_resync_the_log_of_versions_keeps_only_what_each_generation_needs(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "MANY_COMMITS", 0)
    db.run("create table t (id int primary key, v text)", "insert into t select i, 'v' from generate_series(1, 50) i")
    with syncing(db, tmp_path, spark, "t", folds=False, keep_s=None) as synced:
        lake = synced.options.lake

        def changed(count: int) -> None:
            for _ in range(count):
                db.run("update t set v = v || '.' where id % 3 = 0")
                synced.note("t")
                synced.catch_up()
                synced.fold()

        synced.copy_all()
        changed(2)
        folder = lake / path_of(lake, "t") / VERSIONS
        end = opened(folder).version()
        synced.resync("t")
        changed(3)
        table = opened(folder)
        table.create_checkpoint()
        made_older(folder)
        expire_lake(lake, ExpireOptions.of(Retention(None), 0.0))
        left = sorted(int(path.stem) for path in (folder / LOG).glob("*.json"))
        assert left == [*range(end + 1), table.version()]
        synced.require_noted()
        changed(1)
        synced.require_noted()


def made_older(folder: Path) -> None:
    """Make the commits of a table older than its log needs."""
    past = time.time() - 2 * LOG_S
    for commit in (folder / LOG).glob("*"):
        os.utime(commit, (past, past))


@pytest.mark.full
def test_a_handle_that_nobody_closes_is_refused_after_its_time_and_keeps_nothing(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run("create table t (id int primary key, v text)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        rounds(side, 2)
        forgotten = tidemark.open(side.options.lake, spark, hold_s=3600).at(side.notes[0].lsn)
        assert forgotten.table("t").count() > 0
        later = time.time() + 3601
        monkeypatch.setattr("tidemark.lake.leases.time.time", lambda: later)
        done = remove_files(side, side.notes[1].lsn)
        assert (done.retained, done.leases) == (side.notes[1].lsn, ())
        with pytest.raises(NotAnswerable, match="the lease of this handle"):
            forgotten.table("t")
        with pytest.raises(NotAnswerable, match="the lease of this handle"):
            forgotten.sql("select * from t")
        assert [reader.in_force for reader in status_of(side.options.lake).readers] == [False]
        assert side.open().at().table("t").count() > 0
        forgotten.close()


def test_files_of_failed_jobs_go_when_nobody_writes(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, v text)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        rounds(side, 1)
        strays = [
            side.options.lake / path_of(side.options.lake, "t") / name
            for name in ("changes/part-0.parquet", "versions/live-0.parquet")
        ]
        for stray in strays:
            stray.write_bytes(b"left behind")
            os.utime(stray, (time.time() - 60, time.time() - 60))
        with side.writing():
            remove_files(side, side.notes[0].lsn)
            assert all(stray.exists() for stray in strays), "they may belong to the one who writes"
        remove_files(side, side.notes[0].lsn)
        assert not any(stray.exists() for stray in strays)
        assert side.require_noted_now() == 1


@pytest.mark.full
def test_on_a_full_disk_what_was_removed_before_is_deleted_and_then_it_goes_on(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key, v text)")
    try:
        disk = small_disk(tmp_path / "lake", 64 << 20)
        with disk as small, following(lakeside(db, tmp_path, spark, "t")) as side:
            digits = "(select string_agg(md5(i::text || j), '') from generate_series(1, 50) j)"
            db.run(f"insert into t select -i, {digits} from generate_series(1, 1000) i")
            rounds(side, 2)
            first, second = side.notes[0].lsn, side.notes[1].lsn
            expire_lake(side.options.lake, ExpireOptions(keep_s=None, before=first, grace_s=3600))
            db.run("update t set v = v || ', later'")
            side.apply_all()
            side.fold()
            before = parquet(side)
            ballast = fill(small)
            with pytest.raises((LakeError, OSError)):
                remove_files(side, second)
            assert parquet(side) < before
            remove_files(side, second)
            assert read_retained(side.options.lake) == second
            ballast.unlink()
            side.notes = side.notes[1:]
            assert side.require_noted_now() == 1
    except CannotMount as error:
        pytest.skip(f"no file system can be mounted here: {error}")


@pytest.mark.full
def test_the_tail_of_a_reader_that_opens_while_expire_runs_stays_in_the_log(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run("create table t (id int primary key, v text)")
    side = lakeside(db, tmp_path, spark, "t", segment_bytes=100_000)
    removing, leases, segments = expiry._tables, list[Lease](), list[int]()

    def opened_meanwhile(*arguments: Any) -> Iterator[expiry.Removal]:
        leases.append(Lease(side.options.lake, begin))
        leases[0].needs_tail(begin)
        for n in range(3):
            db.run(f"insert into t select {n} * 1000 + i, repeat('v', 200) from generate_series(1, 600) i")
            side.apply_all()
        segments.extend(indexes_and_segments(side)[1])
        return removing(*arguments)

    with following(side):
        begin = side.apply_all()
        monkeypatch.setattr(expiry, "_tables", opened_meanwhile)
        remove_files(side, begin)
        monkeypatch.undo()
        db.run("insert into t values (-1, 'received later')")
        side.mirror.catch_up()
        assert len(segments) > 2
        assert indexes_and_segments(side)[1][: len(segments)] == segments
        leases[0].close()


@pytest.mark.full
def test_the_commit_index_goes_with_the_window(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, v text)")
    side = lakeside(db, tmp_path, spark, "t", segment_bytes=100_000)
    with following(side):
        for n in range(4):
            db.run(f"insert into t select {n} * 1000 + i, repeat('v', 200) from generate_series(1, 600) i")
            side.note("t")
            side.apply_all()
        before, (first, *_) = indexes_and_segments(side)
        assert before[0] < first, "the bytes go when they are applied"
        side.notes = side.notes[2:]
        done = remove_files(side, side.notes[0].lsn)
        after, _ = indexes_and_segments(side)
        assert before[0] < after[0] <= first
        assert any("commit index" in removal.what for removal in done.removals)
        assert len(LogReader(side.options.log).commits()) > 0
        db.run("insert into t values (-1, 'goes on')")
        side.note("t")
        side.apply_all()
        assert side.require_noted() == 3


@pytest.mark.full
def test_a_snapshot_from_before_what_the_index_has_forgotten_is_refused(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key, v text)")
    side = lakeside(db, tmp_path, spark, "t", segment_bytes=100_000)
    with following(side), db.session(timeouts=PATIENT) as old, old.transaction():
        (snapshot,) = old.row("select pg_current_snapshot()::text")
        for n in range(4):
            db.run(f"insert into t select {n} * 1000 + i, repeat('v', 200) from generate_series(1, 600) i")
            side.note("t")
            side.apply_all()
        (lsn,) = old.row("select pg_current_wal_insert_lsn()::text")
        side.apply_all()
        with side.open().at(snapshot=snapshot, lsn=lsn) as given:
            assert given.table("t").count() == 0
        remove_files(side, Lsn(side.notes[1].lsn.value + 1))
        with pytest.raises(NotAnswerable, match="are no longer listed, and the snapshot may exclude"):
            side.open().at(snapshot=snapshot, lsn=lsn)


@pytest.mark.full
def test_applying_and_folding_go_on_after_files_were_let_go_meanwhile(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key, v text)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        rounds(side, 2)
        with side.writing() as writer:
            writer.catch_up(side.position())
            for _ in range(2):
                side.notes = side.notes[-1:]
                remove_files(side, side.notes[0].lsn)
                side.database.run("update t set v = v || '.'")
                side.note("t")
                writer.catch_up(side.position())
                side.fold()
        assert side.require_noted_now() == 2


@pytest.mark.full
def test_nothing_is_kept_of_a_table_that_was_dropped_before_the_window(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key, v text)", "create table u (id int primary key)")
    with following(lakeside(db, tmp_path, spark, "t", "u")) as side:
        rounds(side, 1)
        assert parquet(side)
        db.run("drop table t", "insert into u values (1)")
        side.apply_all()
        side.notes = []
        side.note("u")
        db.run("insert into u values (2)")
        side.apply_all()
        remove_files(side, side.notes[0].lsn)
        assert not parquet(side)
        assert side.require_noted_now() == 1


@pytest.mark.full
def test_by_time_what_was_applied_before_goes(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, v text)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        rounds(side, 1)
        assert expire_lake(side.options.lake, ExpireOptions(keep_s=3600.0)).retained == Lsn.ZERO
        done = expire_lake(side.options.lake, ExpireOptions(keep_s=0.0))
        assert done.retained == min(
            side.open()._opened.lake.cycle().applied_lsn, side.open()._opened.lake.cycle().schema_lsn
        )
