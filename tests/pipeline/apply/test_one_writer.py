"""One writer: the lock names it, Delta fences off one that lost it, and a commit is done or it is not."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession

from harness.database import Database
from harness.lake import Lakeside, following, lakeside
from tests.conftest import NEWEST
from tidemark.clock import Lsn
from tidemark.errors import CommitUnknown, LakeDamaged, LakeDiskFull, LakeInUse
from tidemark.lake import commits
from tidemark.lake.changes import change_writer
from tidemark.lake.columns import OURS, StoredColumn
from tidemark.lake.commits import ChangeTable
from tidemark.lake.files import DataFile
from tidemark.lake.lock import WRITING, LakeLock, has_writer, last_writer
from tidemark.lake.registers import Cycle, Cycles, Tables, read_cycle, read_events
from tidemark.pipeline.apply.applier import StreamApplier
from tidemark.pipeline.apply.lake_applier import lake_applier
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableEvent, TableEventKind
from tidemark.schema.table import Persistence
from tidemark.storage.interface import Owner

pytestmark = pytest.mark.quick

ID = StoredColumn("id", 1, pa.int32())


@contextmanager
def another(lake: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lake's lock."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.pipeline.apply.child", "hold", str(lake)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_writer_is_refused_by_name_and_age_while_the_first_lives(tmp_path: Path) -> None:
    with another(tmp_path) as process:
        assert has_writer(tmp_path)
        owner = last_writer(tmp_path)
        assert owner is not None
        assert owner.pid == process.pid
        with pytest.raises(
            LakeInUse, match=rf"in use by another writer: pid {process.pid} on .+ \(child\.py hold\), for [\d.]+ s"
        ):
            LakeLock(tmp_path, WRITING)
        process.send_signal(signal.SIGSTOP)  # one that does not answer still lives
        with pytest.raises(LakeInUse):
            LakeLock(tmp_path, WRITING)
        process.kill()
        process.wait()
        assert not has_writer(tmp_path)
        with LakeLock(tmp_path, WRITING):
            now = last_writer(tmp_path)
            assert now is not None
            assert now.pid == os.getpid()
            assert has_writer(tmp_path)
    assert not has_writer(tmp_path)


def test_an_owner_is_printed_with_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.storage.interface.time.time", lambda: 1000.0)
    assert str(Owner("host", 7, "tidemark apply", 910.0)) == "pid 7 on host (tidemark apply), for 1 min 30 s"


def test_a_lake_nobody_wrote_has_no_owner(tmp_path: Path) -> None:
    assert last_writer(tmp_path) is None
    assert not has_writer(tmp_path)
    (tmp_path / WRITING).write_text("not ours")
    assert last_writer(tmp_path) is None


def file_of(folder: Path, lsn: int) -> DataFile:
    ours = ["insert", lsn, None, 0, 700, None, None]
    schema = pa.schema([ID.field(), *OURS])
    values = [pa.array([value], field.type) for value, field in zip([lsn, *ours], schema, strict=True)]
    writer = change_writer(folder, schema)
    writer.write(pa.table(values, schema=schema))
    return writer.close()


def held(folder: Path) -> list[int]:
    return sorted(pa.table(DeltaTable(folder).to_pyarrow_table())["id"].to_pylist())


@pytest.fixture
def changes(tmp_path: Path) -> ChangeTable:
    """A table with one change, at 10."""
    table = ChangeTable.create(tmp_path / "changes", [ID])
    table.append([file_of(table.folder, 10)], Lsn(10))
    return table


def fail(monkeypatch: pytest.MonkeyPatch, error: Exception, *, after: bool) -> None:
    """Have the next commit raise an error, after or before it has come about."""
    commit = DeltaTable.create_write_transaction

    def failing(self: DeltaTable, *arguments: Any, **named: Any) -> None:
        monkeypatch.undo()
        if after:
            commit(self, *arguments, **named)
        raise error

    monkeypatch.setattr(DeltaTable, "create_write_transaction", failing)


ERRORS = [CommitFailedError("the answer was lost"), OSError(errno.EIO, "the answer was lost")]


@pytest.mark.parametrize("error", ERRORS, ids=["delta", "os"])
def test_a_commit_that_came_about_though_it_failed_is_done(
    changes: ChangeTable, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fail(monkeypatch, error, after=True)
    changes.append([file_of(changes.folder, 20)], Lsn(20))
    assert changes.applied == Lsn(20)
    changes.append([file_of(changes.folder, 30)], Lsn(30))
    assert held(changes.folder) == [10, 20, 30]


@pytest.mark.parametrize("error", ERRORS, ids=["delta", "os"])
def test_a_commit_that_did_not_come_about_is_not_done_and_can_be_done_again(
    changes: ChangeTable, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    file = file_of(changes.folder, 20)
    fail(monkeypatch, error, after=False)
    with pytest.raises(CommitUnknown, match=r"the commit of 0/14 to .* failed"):
        changes.append([file], Lsn(20))
    assert held(changes.folder) == [10]
    assert changes.applied == Lsn(10)
    changes.append([file], Lsn(20))
    assert held(changes.folder) == [10, 20]


def test_a_commit_that_cannot_be_settled_says_so_and_is_settled_by_the_next_reading(
    changes: ChangeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(folder: Path) -> DeltaTable:
        raise LakeDamaged(f"{folder} cannot be read")

    fail(monkeypatch, ERRORS[0], after=True)
    with pytest.MonkeyPatch.context() as gone:
        gone.setattr(commits, "opened", unreadable)
        with pytest.raises(CommitUnknown, match=r"cannot determine whether the commit of 0/14 to .* succeeded"):
            changes.append([file_of(changes.folder, 20)], Lsn(20))
    assert ChangeTable(changes.folder).applied == Lsn(20)
    assert held(changes.folder) == [10, 20]


def test_a_handle_older_than_the_last_commit_cannot_add_to_a_table(changes: ChangeTable) -> None:
    stale = ChangeTable(changes.folder)
    changes.append([file_of(changes.folder, 20)], Lsn(20))
    for lsn in (20, 30):  # the same again, and more
        with pytest.raises(LakeInUse, match="another process changed"):
            stale.append([file_of(changes.folder, lsn)], Lsn(lsn))
    assert held(changes.folder) == [10, 20]


def test_a_table_never_goes_back(changes: ChangeTable) -> None:
    for lsn in (5, 10):
        with pytest.raises(LakeInUse, match="is already at 0/A"):
            changes.append([file_of(changes.folder, lsn)], Lsn(lsn))
    assert held(changes.folder) == [10]


def test_a_stale_register_cannot_say_how_far_it_has_come(tmp_path: Path) -> None:
    stale, other = Cycles(tmp_path), Cycles(tmp_path)
    other.record(Cycle(Lsn(20), Lsn(20)))
    for lsn in (Lsn(10), Lsn(30)):  # it stays fenced off after the first attempt
        with pytest.raises(LakeInUse, match="cannot write"):
            stale.record(Cycle(lsn, lsn))
    assert read_cycle(tmp_path) == Cycle(Lsn(20), Lsn(20))


def test_a_stale_register_cannot_take_anothers_event_for_its_own(tmp_path: Path) -> None:
    table = Fingerprint(16384, "public", "t", 16384, Persistence.PERMANENT, (1,), (), None, None, (), ())
    stale, other = Tables(tmp_path), Tables(tmp_path)
    other.append([TableEvent(TableEventKind.WAITING, table, "public/t", Lsn(10), Lsn(10))])
    for _ in range(2):
        with pytest.raises(LakeInUse, match="cannot write"):
            stale.append([TableEvent(TableEventKind.BEGUN, table, "public/t", Lsn(20), Lsn(20))])
    assert [event.kind for event in read_events(tmp_path)] == [TableEventKind.WAITING]


@pytest.mark.parametrize("name", ["fsync", "open"])
def test_a_file_for_which_there_is_no_room_is_not_given(
    changes: ChangeTable, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(f"tidemark.storage.disk.os.{name}", full)
        with pytest.raises(LakeDiskFull, match="No space left on device on the file system mounted at /"):
            file_of(changes.folder, 20)
    assert held(changes.folder) == [10]
    changes.append([file_of(changes.folder, 20)], Lsn(20))
    assert held(changes.folder) == [10, 20]


def test_a_commit_that_may_not_be_on_the_disk_is_not_relied_on_and_not_made_twice(
    changes: ChangeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(changes.folder, 20)

    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as disk:
        disk.setattr("tidemark.storage.disk.os.fsync", broken)
        with pytest.raises(CommitUnknown, match="cannot flush a commit"):
            changes.append([file], Lsn(20))
    again = ChangeTable(changes.folder)
    assert again.applied == Lsn(20)
    again.append([file_of(changes.folder, 30)], Lsn(30))
    assert held(changes.folder) == [10, 20, 30]


@pytest.fixture
def side(db: Database, spark: SparkSession, tmp_path: Path) -> Iterator[Lakeside]:
    db.run("create table t (id int primary key, v text)", "create table u (id int primary key)")
    with following(lakeside(db, tmp_path, spark, "t", "u")) as running:
        running.run_and_note(["insert into t values (1, 'one')", "insert into u values (1)"], "t", "u")
        running.apply_all()
        yield running


def caught_up(side: Lakeside, writer: StreamApplier) -> None:
    writer.catch_up(side.position())


@pytest.mark.full
@NEWEST
def test_a_writer_that_slept_while_another_took_over_adds_and_removes_nothing(side: Lakeside) -> None:
    with ExitStack() as stack:
        slept = stack.enter_context(side.writing())
        caught_up(side, slept)
        with pytest.raises(LakeInUse, match=f"in use by another writer: pid {os.getpid()}"):
            lake_applier(side.options, side.spark)
        (side.options.lake / WRITING).unlink()  # as by someone who takes it for a dead one's
        other = stack.enter_context(side.writing())
        side.run_and_note(["insert into t values (2, 'two')", "update t set v = 'uno' where id = 1"], "t", "u")
        caught_up(side, other)
        before = files(side)
        with pytest.raises(LakeInUse):
            caught_up(side, slept)
        assert files(side) == before
        side.run_and_note(["delete from t where id = 2", "insert into u values (2)"], "t", "u")
        with pytest.raises(LakeInUse):
            caught_up(side, slept)
        with suppress(LakeInUse):  # the one that slept may have been the first to write u: nothing is wrong with that
            caught_up(side, other)
    side.run_and_note(["insert into u values (3)"], "t", "u")
    side.apply_all()
    assert side.require_noted() == 7


def files(side: Lakeside) -> dict[str, int]:
    """How many files each table of the lake has."""
    logs = side.options.lake.glob("**/_delta_log")
    return {str(log.parent.relative_to(side.options.lake)): len(DeltaTable(log.parent).file_uris()) for log in logs}


@pytest.mark.full
@NEWEST
def test_a_cycle_whose_commits_fail_is_done_again_by_the_next(side: Lakeside, monkeypatch: pytest.MonkeyPatch) -> None:
    side.run_and_note(["begin; insert into t values (2, 'two'); insert into u values (2); commit"], "t", "u")
    fail(monkeypatch, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), after=False)
    with side.writing() as writer, pytest.raises(CommitUnknown, match="No space left"):
        caught_up(side, writer)
    assert side.open().table("t").count() == 1  # one of the two tables has its changes, and nobody is shown them
    assert side.open().table("u").count() == 1
    side.run_and_note(["update t set v = 'zwei' where id = 2"], "t", "u")
    fail(monkeypatch, OSError(errno.EIO, os.strerror(errno.EIO)), after=True)
    side.apply_all()
    assert side.require_noted() == 4
