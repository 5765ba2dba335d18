"""What goes wrong while a table is copied: it starts over, or goes on, and never holds what PostgreSQL does not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import MIRROR, Database, create_database
from harness.syncing import Synced, syncing
from tests.conftest import NEWEST, Start
from tidemark.errors import NotAnswerable
from tidemark.lake.requests import request_resync
from tidemark.lake.status import status_of
from tidemark.pipeline.apply.applier import StreamApplier
from tidemark.pipeline.copy import copying, parts, snapshots
from tidemark.pipeline.copy.planning import SnapshotCopy
from tidemark.pipeline.sinks.sink import TableCopy

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]

TABLE = (
    "create table t (id int primary key, v text)",
    "insert into t select i, md5(i::text) from generate_series(1, 8000) i",
)


def wrapped(
    monkeypatch: pytest.MonkeyPatch,
    where: object,
    name: str,
    before: Any = None,
    after: Any = None,
    concerns: Callable[..., bool] = lambda *_: True,
) -> None:
    """Have something happen the first time that a function is called for what it concerns."""
    original, happened = getattr(where, name), threading.Event()

    def call(*arguments: Any, **options: Any) -> Any:
        first = not happened.is_set() and concerns(*arguments)
        if first:
            happened.set()
        if first and before:
            before()
        result = original(*arguments, **options)
        if first and after:
            after()
        return result

    monkeypatch.setattr(where, name, call)


def _is_of_t(_: StreamApplier, copy: TableCopy) -> bool:
    return copy.name == "public.t"


CopyPhase = Callable[[pytest.MonkeyPatch, Callable[[], object]], None]
PHASES: dict[str, CopyPhase] = {
    "snapshot taken": lambda patch, act: wrapped(patch, copying, "plan_copy", before=act),
    "planned": lambda patch, act: wrapped(patch, copying, "plan_copy", after=act),
    "one part copied": lambda patch, act: wrapped(patch, copying, "copy_parts", after=act),
    "all parts copied": lambda patch, act: wrapped(patch, SnapshotCopy, "_copy", after=act),
    "looked at": lambda patch, act: wrapped(patch, StreamApplier, "_take", before=act, concerns=_is_of_t),
}
ACTS = {
    "truncated": ["truncate t", "insert into t values (1, 'only one')"],
    "rewritten": ["vacuum full t"],
    "altered": ["alter table t drop if exists c", "alter table t add c int default 7"],
    "swapped": ["alter table t rename v to w", "alter table t add v text default 'other'"],
    "renamed": ["alter table t rename to u", "alter table u rename to t"],
    "written": ["update t set v = 'later' where id % 10 = 0", "delete from t where id % 7 = 0"],
}


@pytest.mark.full
def test_what_becomes_of_a_table_in_each_phase_of_its_copy_is_right_in_the_end(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    """One thing in each phase; the next test has all in all."""
    db.run(*TABLE)
    with syncing(db, tmp_path, spark, "t") as synced:
        synced.copy_all()
        for phase, act in zip(PHASES, ("truncated", "rewritten", "altered", "renamed", "written"), strict=True):
            _copied_while(synced, PHASES[phase], act)


def _copied_while(synced: Synced, hook: CopyPhase, act: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "LEAST_BYTES", 1 << 17)
        hook(patch, lambda: synced.database.run(*ACTS[act], user="app"))
        synced.resync("t")
        synced.until(lambda: synced.replication.settled and not synced.replication.copies)
        synced.require_equal("t")


@pytest.mark.full
@pytest.mark.parametrize("act", ACTS)
def test_whatever_becomes_of_a_table_while_it_is_copied_it_is_right_in_the_end(
    db: Database, spark: SparkSession, tmp_path: Path, act: str
) -> None:
    db.run(*TABLE)
    with syncing(db, tmp_path, spark, "t") as synced:
        synced.copy_all()
        for hook in PHASES.values():
            _copied_while(synced, hook, act)
            if act == "swapped":
                db.run("alter table t drop v", "alter table t rename w to v")


@pytest.mark.full
@pytest.mark.parametrize("phase", PHASES)
def test_a_table_dropped_while_it_is_copied_is_gone(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    db.run(*TABLE, "create table u (id int primary key)", "insert into u values (1)")
    monkeypatch.setattr(parts, "LEAST_BYTES", 1 << 17)
    PHASES[phase](monkeypatch, lambda: db.run("drop table t"))
    with syncing(db, tmp_path, spark, "t", "u") as synced:
        said = ": copied " if phase == "looked at" else "copy failed"
        synced.until(lambda: any("public.t" in each and said in each for each in synced.said))
        synced.until(lambda: synced.replication.settled and not synced.replication.copies)
        synced.require_equal("u")
        with pytest.raises(NotAnswerable, match="t"):
            tidemark.open(synced.options.lake, spark).at(synced.notes[0].lsn).table("t")


@pytest.mark.full
def test_the_holder_of_the_snapshot_and_connections_may_be_killed(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run(*TABLE)
    monkeypatch.setattr(parts, "LEAST_BYTES", 1 << 17)
    kill = "select pg_terminate_backend(pid, 10000) from pg_stat_activity where application_name = 'tidemark {}'"
    wrapped(monkeypatch, copying, "plan_copy", after=lambda: db.admin(kill.format("snapshot")))
    with syncing(db, tmp_path, spark, "t") as synced:
        synced.copy_all()
        assert any("copy failed" in each for each in synced.said)
        db.run("update t set v = 'x' where id % 5 = 0")
        synced.require_equal("t")
        stop = threading.Event()

        def kill_copies() -> None:
            for _ in range(6):
                db.admin(kill.format("copy"))
                stop.wait(0.1)

        thread = threading.Thread(target=kill_copies)
        thread.start()
        synced.resync("t")
        stop.set()
        thread.join()
        synced.require_equal("t")


@pytest.mark.full
def test_a_table_that_cannot_be_locked_or_read_waits_and_the_others_do_not(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "ATTEMPTS", 1)
    db.run(
        *TABLE,
        "create table locked as select * from t",
        "alter table locked add primary key (id)",
        "create table hidden as select * from t",
        "alter table hidden add primary key (id)",
        "alter table hidden enable row level security",
        "create table closed as select * from t",
        "alter table closed add primary key (id)",
        f"revoke select on closed from {MIRROR}",
    )
    with syncing(db, tmp_path, spark, "t", "locked", "hidden", "closed") as synced, db.connect() as blocker:
        synced.replication.applier.read_catalog()  # before the transaction that is in the way begins
        blocker.execute("begin; lock table locked in access exclusive mode")
        synced.until(lambda: any("public.t: copied" in each for each in synced.said))
        synced.until(lambda: all(any(name in e and "copy failed" in e for e in synced.said) for name in WAITING))
        reasons = {table.name: table.reason for table in status_of(synced.options.lake).tables}
        assert "row-level security" in reasons["public.hidden"]
        assert "permission denied" in reasons["public.closed"]
        assert "lock timeout" in reasons["public.locked"]
        assert f"the lock is held by pid {blocker.info.backend_pid} of app" in reasons["public.locked"]
        blocker.execute("rollback")
        db.admin(f"alter role {MIRROR} bypassrls", f"grant select on closed to {MIRROR}")
        try:
            synced.copy_all()
            synced.require_equal("t", "locked", "hidden", "closed")
        finally:
            db.admin(f"alter role {MIRROR} nobypassrls")


WAITING = ("locked", "hidden", "closed")


@pytest.mark.full
def test_who_keeps_a_table_from_being_copied_is_named(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run(*TABLE, "create table late (id int primary key)", "insert into late values (1)")
    with syncing(db, tmp_path, spark, "t") as synced, db.connect() as session:
        synced.copy_all()
        session.execute("set application_name = 'nightly report'; begin; insert into late values (2)")
        db.run("begin; insert into t values (-1); prepare transaction 'payroll'")
        db.admin(f"alter publication {db.names.publication} add table late")
        who = f"pid {session.info.backend_pid} of app (nightly report); prepared transaction 'payroll' of app, since "
        synced.until(lambda: any(who in each for each in synced.said), 60)
        assert who in {table.name: table.reason for table in status_of(synced.options.lake).tables}["public.late"]
        session.execute("commit")
        db.run("commit prepared 'payroll'")
        synced.copy_all()
        synced.require_equal("t", "late")


@pytest.mark.full
def test_while_a_table_is_copied_it_and_all_others_stay_fresh(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run(*TABLE, "create table u (id int primary key)", "insert into u values (1)")
    with syncing(db, tmp_path, spark, "t", "u") as synced:
        synced.copy_all()
        going_on = threading.Event()
        wrapped(monkeypatch, copying, "copy_parts", before=going_on.wait)
        request_resync(synced.options.lake, synced.replication.applier.tables.histories)
        synced.until(lambda: [each.state for each in synced.replication.progress.tables()] == ["copying"] * 2)
        try:
            for turn in range(3):
                db.run(f"update t set v = 'turn {turn}' where id % 3 = {turn}", f"insert into u values ({10 + turn})")
                synced.require_equal("t", "u")
                assert synced.replication.copies == 2, "it is read while it is being copied"
        finally:
            going_on.set()
        synced.until(lambda: not list((synced.options.lake / "_requests").iterdir()))
        synced.require_equal("t", "u")


@pytest.mark.full
def test_a_table_that_may_not_be_read_any_more_says_why_it_is_not_copied_anew_and_holds_up_no_other(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(*TABLE, "create table u (id int primary key)", "insert into u values (1)")
    with syncing(db, tmp_path, spark, "t", "u") as synced:
        synced.copy_all()
        db.run(f"revoke select on t from {MIRROR}")
        request_resync(synced.options.lake, synced.replication.applier.tables.histories)
        assert told(synced, "public.t") == "readable: resync requested"
        synced.until(lambda: told(synced, "public.u") == "readable: ")
        synced.until(lambda: "permission denied" in told(synced, "public.t"))
        db.run("update t set v = 'on it goes'")
        assert told(synced, "public.t").startswith("readable: resync requested; ")
        synced.require_equal("u")
        db.run(f"grant select on t to {MIRROR}")
        synced.until(lambda: told(synced, "public.t") == "readable: ")
        synced.require_equal("t", "u")


def told(synced: Synced, name: str) -> str:
    """The state of a table and the reason that `status` has."""
    (table,) = (each for each in status_of(synced.options.lake).tables if each.name == name)
    return f"{table.state}: {table.reason}"


@pytest.mark.full
def test_a_slot_that_is_blocked_gives_way_to_a_snapshot_by_its_transactions(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SLOT_WAIT_S", 0.5)
    db.run(*TABLE)
    with syncing(db, tmp_path, spark, "t") as synced:
        synced.copy_all()
        with db.connect() as session:
            session.execute("begin; update t set v = 'not yet' where id % 3 = 0; savepoint s")
            session.execute("delete from t where id % 10 = 1")
            synced.resync("t")
            synced.note("t")
            session.execute("commit")
        synced.note("t")
        assert synced.require_noted() == 2


def test_commits_that_are_logged_and_not_seen_are_left_out_of_a_copy_and_come_after_it(
    start: Start, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SLOT_WAIT_S", 0.5)
    server = start()
    db = create_database(server)
    db.run(*TABLE, "create table bag as select id % 5 as n from t", "alter table bag replica identity full")
    with syncing(db, tmp_path, spark, "t", "bag") as synced:
        synced.copy_all()
        server.sql("alter system set synchronous_standby_names = 'ghost'", "select pg_reload_conf()")
        server.sql("checkpoint")  # until the checkpointer has heard of it, nobody waits
        texts = ["update t set v = 'g' where id % 3 = 0", "update t set id = -id where id < 9"]
        statements = "; ".join([*texts, "delete from bag where n = 2"])
        with db.connect() as ghost:
            thread = threading.Thread(target=lambda: ghost.execute(f"begin; {statements}; commit".encode()))
            thread.start()
            waits = "select 1 from pg_stat_activity where wait_event = 'SyncRep' and datname = current_database()"
            synced.until(lambda: db.admin(waits))
            synced.resync("t", "bag")
            spans = [each.spans()[-1] for each in synced.replication.applier.tables.histories.values()]
            assert all(span.copied and len(span.base.excluded) == 1 for span in spans)
            server.sql("alter system reset synchronous_standby_names", "select pg_reload_conf()")
            thread.join()
        synced.note("t", "bag")
        db.run("update t set v = 'after' where id < 0")
        synced.note("t", "bag")
        assert synced.require_noted() == 4
    with syncing(db, tmp_path, spark, folds=False) as again:
        again.notes = synced.notes
        again.catch_up()
        again.fold()
        assert again.require_noted() == 4
