"""A large copy whose driver is killed continues in its snapshot; what is complete is not copied again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.database import MIRROR, Database
from harness.mirrored import eventually
from harness.outside import path_of
from harness.postgres.server import free_port
from harness.syncing import Synced, publish, syncing
from tests.conftest import NEWEST
from tests.pipeline.sync.child import as_json
from tidemark.clock import Boundary, Snapshot
from tidemark.errors import SourceError, SourceUnreachable
from tidemark.lake.copy_records import CopyRecord, RecordedCopy, RecordedPart, left_records, recorded_files
from tidemark.lake.requests import request_restart
from tidemark.lake.versions import read_versions
from tidemark.pipeline.copy import continuing, parts
from tidemark.pipeline.copy.continuing import ContinuedCopy, LeftCopy
from tidemark.pipeline.copy.holder import HeldCopy, SnapshotHolder
from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake
from tidemark.pipeline.plan import PipelineOptions
from tidemark.pipeline.restart import restart_if_requested
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.slot import exact_snapshot
from tidemark.storage.fail_points import AnyFailPoint, FailPoint, attach, detach

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]

ROWS = 12_000
HOLDER = b"tidemark.pipeline.copy.holder"
LEFT: list[SnapshotHolder] = []


@pytest.fixture
def large(db: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database with a table of several parts, and one of a single part."""
    monkeypatch.setattr(parts, "LEAST_BYTES", 1 << 17)
    monkeypatch.setattr(parts, "PART_BYTES", 1 << 17)
    monkeypatch.setattr(continuing, "LARGE_BYTES", 1)
    db.run(
        "create table large (id int primary key, v text)",
        f"insert into large select i, repeat(md5(i::text), 2) from generate_series(1, {ROWS}) i",
        "create table small (id int primary key, v text)",
        "insert into small values (1, 'one')",
    )
    yield db
    while LEFT:
        LEFT.pop().close()
    for pid in holders():
        os.kill(pid, signal.SIGKILL)


def holders() -> list[int]:
    """The processes that hold snapshots."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if HOLDER in (folder / "cmdline").read_bytes() and state != "Z":
                found.append(int(folder.name))
    return found


class Interrupted(BaseException):
    """Ends the thread of a copy."""


@contextmanager
def ended_when(is_time: Callable[[], bool]) -> Iterator[None]:
    """End the thread of a copy when a condition is true after a part was recorded."""

    def observe(point: AnyFailPoint) -> None:
        if point is FailPoint.PART_RECORDED and is_time():
            raise Interrupted

    attach(observe)
    try:
        yield
    finally:
        detach(observe)


def interrupted(
    db: Database, folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, count: int | None = 3
) -> Synced:
    """A mirror whose copy ended like that of a killed process, when so many parts were recorded, or all of them."""
    lake = folder / "lake"
    with monkeypatch.context() as patched:
        patched.setattr(ContinuedCopy, "__exit__", leave)
        patched.setattr("threading.excepthook", lambda _: None)
        with (
            syncing(db, folder, spark, "large", "small") as synced,
            ended_when(lambda: recorded_parts(lake) == (count or planned_parts(lake))),
        ):
            synced.until(lambda: recorded_parts(lake) >= (count or planned_parts(lake)) and not is_copying(synced))
            db.run("insert into small values (2, 'applied after the snapshot of the copy')")
            synced.catch_up()
    return synced


def leave(copy: ContinuedCopy, *_: object) -> None:
    """What a killed process leaves: the record without its lock, and the holder."""
    copy._record.close()
    if copy._holder is not None:
        LEFT.append(copy._holder)


def is_copying(synced: Synced) -> bool:
    return any(thread.is_alive() for thread in synced.replication._copying._threads)


def recorded_parts(lake: Path) -> int:
    return len(list((lake / "_copies").glob("*.part")))


def planned_parts(lake: Path) -> int:
    records = [json.loads(path.read_text()) for path in (lake / "_copies").glob("*.json")]
    return sum(len(table["parts"]) for record in records for table in record["tables"]) or ROWS


def record_of(lake: Path) -> tuple[RecordedCopy, list[RecordedPart]]:
    (record,) = left_records(lake)
    try:
        copy = record.read()
        assert copy is not None
        return copy, record.parts()
    finally:
        record.close()


def files_of(lake: Path, table: str) -> set[str]:
    versions = read_versions(lake, path_of(lake, table))
    return {file.name for file in versions.files} if versions is not None else set()


def base_of(synced: Synced) -> Boundary:
    """The base of the last copy of the large table."""
    histories = synced.replication.applier.tables.histories.values()
    return next(each for each in histories if each.name == "public.large").spans()[-1].base


def continued(db: Database, folder: Path, spark: SparkSession) -> tuple[Synced, int]:
    """Start the mirror again until everything is copied; return it and the number of parts that it copied."""
    copied = []
    with syncing(db, folder, spark) as synced:
        add = ContinuedCopy.add

        def adding(copy: ContinuedCopy, part: object) -> None:
            copied.append(part)
            add(copy, part)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ContinuedCopy, "add", adding)
            synced.copy_all()
        synced.note("large", "small")
        synced.require_noted()
    return synced, len(copied)


@pytest.mark.full
def test_the_parts_that_are_complete_are_kept_and_the_rest_is_read_in_the_same_snapshot(
    large: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = interrupted(large, tmp_path, spark, monkeypatch)
    lake = synced.options.lake
    copy, done = record_of(lake)
    (table,) = copy.tables.values()
    assert len(done) >= 3
    assert len(table.parts) > len(done)
    assert len(holders()) == 1
    large.run("update large set v = 'later' where id % 100 = 0", "delete from large where id % 101 = 0")
    expired = expire_lake(lake, ExpireOptions(keep_s=0, grace_s=0))
    assert expired.copies == (copy.base.floor,)
    assert expired.retained <= copy.base.floor < expired.wanted
    kept = recorded_files(lake)
    assert kept
    assert all((lake / path_of(lake, "large") / "versions" / name).exists() for name in kept)
    again, copied = continued(large, tmp_path, spark)
    assert copied == len(table.parts) - len(done)
    assert kept <= files_of(lake, "large")
    assert base_of(again) == copy.base, "the rows are those of the first snapshot"
    assert not recorded_parts(lake)
    assert not left_records(lake)
    eventually(lambda: not holders())


@pytest.mark.full
def test_if_the_snapshot_is_lost_too_the_table_is_copied_again(
    large: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = interrupted(large, tmp_path, spark, monkeypatch)
    copy, _ = record_of(synced.options.lake)
    (holder,) = holders()
    os.kill(holder, signal.SIGKILL)
    large.run("update large set v = 'later' where id % 100 = 0")
    again, _ = continued(large, tmp_path, spark)
    assert any("the snapshot of an interrupted copy is lost" in line for line in again.said)
    assert base_of(again).lsn > copy.base.lsn
    assert not left_records(synced.options.lake)


@pytest.mark.full
def test_a_table_of_which_every_part_is_complete_is_kept_without_its_snapshot(
    large: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = interrupted(large, tmp_path, spark, monkeypatch, None)
    lake = synced.options.lake
    (holder,) = holders()
    os.kill(holder, signal.SIGKILL)
    copy, _ = record_of(lake)
    kept = recorded_files(lake)
    large.run("update large set v = 'later' where id % 100 = 0")
    again, copied = continued(large, tmp_path, spark)
    assert copied == 0
    assert kept == files_of(lake, "large")
    assert base_of(again) == copy.base


@pytest.mark.full
@pytest.mark.parametrize(
    "statement",
    [
        "alter table large add w int default 7",
        "truncate large",
        "alter table large alter v type varchar(70)",
        "drop table large",
    ],
)
def test_a_table_that_changed_meanwhile_is_exact(
    large: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    synced = interrupted(large, tmp_path, spark, monkeypatch)
    large.run(statement)
    if statement.startswith("drop"):
        large.run("create table large (id int primary key)", "insert into large values (1)")
        large.admin(f"alter publication {synced.options.names.publication} add table large")
    continued(large, tmp_path, spark)
    assert not left_records(synced.options.lake)


@pytest.mark.full
def test_a_mirror_that_is_restarted_continues_no_copy(
    large: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = interrupted(large, tmp_path, spark, monkeypatch)
    copy, _ = record_of(synced.options.lake)
    large.run("update large set v = 'lost with the log' where id % 100 = 0")
    request_restart(synced.options.lake)
    assert restart_if_requested(synced.options) is not None
    assert not left_records(synced.options.lake)
    again, _ = continued(large, tmp_path, spark)
    assert base_of(again).lsn > copy.base.lsn


@pytest.mark.full
def test_killed_after_each_part_the_next_one_goes_on(
    large: Database, spark: SparkSession, connect: str, tmp_path: Path
) -> None:
    names = publish(large, "large", "small")
    options = PipelineOptions(large.dsn(MIRROR), tmp_path / "lake", names)
    points = ["part recorded:2", "part recorded:1", "file written:1", "part recorded:2", "generation committed:1"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.sync.child", *points],
        input=as_json(options),
        env={**os.environ, "SPARK_CONNECT": connect, "SMALL_PARTS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout.splitlines() == [f"{point} {-signal.SIGKILL}" for point in points], done.stderr
    large.run("update large set v = 'later' where id % 100 = 0")
    continued(large, tmp_path, spark)
    assert not left_records(options.lake)
    eventually(lambda: not holders())


def test_a_holder_ends_when_nobody_continues_the_copy(db: Database, tmp_path: Path) -> None:
    record = CopyRecord(tmp_path)
    with exact_snapshot(db.dsn(), 60) as snapshot:
        assert snapshot.shared.name is not None
        held = HeldCopy(db.dsn(), snapshot.shared.name, tmp_path, record.id, hold_s=1.0)
        holder = SnapshotHolder(held)
        record.write(RecordedCopy(holder.snapshot_id, Snapshot.parse("7:7:"), Boundary(snapshot.lsn), {}))
    with db.session() as session, session.transaction(snapshot_id=holder.snapshot_id):
        (text,) = session.row("select pg_current_snapshot()::text")
    copy = record.read()
    assert copy is not None
    assert LeftCopy(record, copy, ()).snapshot(db.dsn()) is None, "it is another snapshot than the recorded one"
    assert LeftCopy(record, replace(copy, snapshot=Snapshot.parse(text)), ()).snapshot(db.dsn()) is not None
    record.close()
    holder._process.wait(60)
    assert holder._process.returncode == 0
    CopyRecord(tmp_path, record.id).remove()
    assert not list((tmp_path / "_copies").iterdir())


def test_the_error_of_a_process_that_cannot_hold_a_snapshot_keeps_its_class_sqlstate_and_hint(
    db: Database, tmp_path: Path
) -> None:
    with pytest.raises(SourceError) as stale, db.session() as session:
        session.begin(snapshot_id="00000003-00000002-1")
    with pytest.raises(type(stale.value)) as held:
        SnapshotHolder(HeldCopy(db.dsn(), "00000003-00000002-1", tmp_path, "unrecorded"))
    assert held.value.args == stale.value.args
    assert held.value.sqlstate is not None
    with pytest.raises(SourceUnreachable, match="Connection refused") as unreachable:
        SnapshotHolder(HeldCopy(Dsn(f"host=127.0.0.1 port={free_port()}"), "1-1", tmp_path, "unrecorded"))
    assert unreachable.value.hint
