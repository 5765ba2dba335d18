"""Reads at now and at a session's snapshot: what PostgreSQL's own session sees, also where no LSN is right."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import MIRROR, PATIENT, Database, create_database
from harness.lake import Lakeside, Row, by_spark, following, lakeside, read_table, require_rows
from harness.mirrored import eventually, receiving
from harness.postgres import Server
from harness.syncing import syncing
from tests.conftest import NEWEST
from tests.pipeline.sync.load import create, writing
from tidemark.errors import InvalidValue, NotAnswerable, NotPermitted, NotTheSameSource
from tidemark.mirror.mirror import Mirror
from tidemark.pipeline.apply.lake_applier import lake_applier

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]

HERE = "select pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text"
TABLES = ("keyed", "bag")
SNAPSHOTS = 8


def opened(side: Lakeside) -> Mirror:
    return tidemark.open(side.options.lake, side.spark, source=side.options.source)


@pytest.fixture
def side(db: Database, spark: SparkSession, tmp_path: Path) -> Iterator[Lakeside]:
    db.run("create table t (id int primary key, v text)", "create table bag (v int)")
    db.run("alter table bag replica identity full")
    with following(lakeside(db, tmp_path, spark, "t", "bag")) as made:
        yield made


@contextmanager
def commit_that_hangs(server: Server, db: Database, statements: str) -> Iterator[None]:
    """A transaction whose commit is in the log and not visible: it waits for a standby that does not exist."""
    server.sql("alter system set synchronous_standby_names = 'ghost'", "select pg_reload_conf()")
    server.sql("checkpoint")  # until the checkpointer has heard of it, nobody waits
    with db.connect() as session:
        thread = threading.Thread(target=lambda: session.execute(f"begin; {statements}; commit".encode()))
        thread.start()
        try:
            waits = "select 1 from pg_stat_activity where wait_event = 'SyncRep' and datname = current_database()"
            eventually(lambda: db.admin(waits), 30)
            yield
        finally:
            server.sql("alter system reset synchronous_standby_names", "select pg_reload_conf()")
            thread.join()


def test_a_commit_that_is_logged_and_not_visible_is_not_seen_and_one_behind_it_is(
    server: Server, side: Lakeside
) -> None:
    db, mirror = side.database, opened(side)
    db.run(
        "insert into t select i, 'first' from generate_series(1, 9) i", "insert into bag select generate_series(1, 9)"
    )
    with commit_that_hangs(server, db, "update t set v = 'ghost' where id < 5; delete from bag where v < 4"):
        db.run("set synchronous_commit = local; update t set v = 'second' where id > 5; insert into bag values (7)")
        with db.session() as session, mirror.at("now") as now:
            assert len(now.boundary.excluded) == 1
            for table in ("t", "bag"):
                require_rows(now.table(table), *read_table(session, table), table)
            side.apply_all()
            assert by_spark(mirror.table("t")) != read_table(session, "t"), "no LSN shows what the session sees"
        with db.session() as session, session.transaction():
            snapshot, lsn = session.row(HERE)
            held = {table: read_table(session, table) for table in ("t", "bag")}
    side.apply_all()
    with mirror.at(snapshot=snapshot, lsn=lsn) as given, mirror.at("now") as later:
        for table, there in held.items():
            require_rows(given.table(table), *there, f"{table} at {snapshot}")
            assert by_spark(later.table(table)) != there
    mirror.close()


def test_a_handle_stays_where_it_is_and_now_moves_on(side: Lakeside) -> None:
    db, mirror = side.database, opened(side)
    db.run("insert into t values (1, 'one')")
    with mirror.at("now") as first:
        db.run("update t set v = 'two'", "insert into t values (2, 'two')")
        assert first.sql("select count(*), max(v) from t").collect() == [(1, "one")]
        assert mirror.at("now").sql("select count(*), max(v) from t").collect() == [(2, "two")]
        assert first.table("t").collect() == [(1, "one")]
    mirror.close()


@pytest.mark.full
def test_under_load_the_mirror_gives_what_sessions_saw(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    create(db, *TABLES)
    with syncing(db, tmp_path, spark, *TABLES) as synced:
        synced.copy_all()
        seen: list[tuple[str, str, dict[str, tuple[tuple[str, ...], Counter[Row]]]]] = []
        with writing(db, *TABLES, writers=6):
            for _ in range(SNAPSHOTS):
                with db.session() as session, session.transaction():
                    snapshot, lsn = session.row(HERE)
                    seen.append((snapshot, lsn, {table: read_table(session, table) for table in TABLES}))
                synced.replication.step()
        synced.catch_up()
        mirror = tidemark.open(synced.options.lake, spark)
        for snapshot, lsn, held in seen:
            with mirror.at(snapshot=snapshot, lsn=lsn) as given:
                for table, there in held.items():
                    require_rows(given.table(table), *there, f"{table} at {snapshot}, {lsn}")


def test_a_table_altered_just_now_is_read_as_soon_as_the_mirror_knows_and_others_at_once(side: Lakeside) -> None:
    db, mirror = side.database, opened(side)
    db.run("insert into t values (1, 'one')", "alter table t add c int default 7", "insert into bag values (1)")
    with mirror.at("now", wait=3) as now:
        assert [now._histories[oid].name for oid in now._unclear] == ["public.t"]
        assert now.table("bag").collect() == [(1,)]
        with pytest.raises(NotAnswerable, match=r"public\.t was altered"):
            now.table("t")
        with pytest.raises(NotAnswerable, match="t was altered"):
            now.changes("t", now.lsn)
    told = threading.Event()

    def write() -> None:
        with lake_applier(side.options, side.spark) as writer:
            while not told.is_set():
                writer.step()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        with mirror.at("now", wait=60) as now:
            assert now.table("t").collect() == [(1, "one", 7)]
    finally:
        told.set()
        thread.join()
    mirror.close()


def test_what_the_mirror_passes_over_after_a_handle_was_made_is_refused_and_not_missing(side: Lakeside) -> None:
    db, mirror = side.database, opened(side)
    db.run("insert into t values (1, 'one')")
    side.apply_all()
    db.run("alter table t add c int", "insert into t values (2, 'two', 2)", "alter table t drop c")
    with mirror.at("now") as now:
        assert not now._unclear
        side.apply_all()
        with pytest.raises(NotAnswerable, match="altered more than once between two catalog snapshots"):
            now.table("t")
        assert now.table("bag").collect() == []
    mirror.close()


def test_a_snapshot_older_than_its_lsn_is_refused_where_a_table_was_altered_in_between(side: Lakeside) -> None:
    db, mirror = side.database, opened(side)
    db.run("insert into t values (1, 'one')", "insert into bag values (1)")
    with db.session(timeouts=PATIENT) as session, session.transaction():
        (snapshot,) = session.row("select pg_current_snapshot()::text")
        side.apply_all()
        db.run("alter table t add c int default 7")
        side.apply_all()
        db.run("insert into bag values (2)")
        (lsn,) = session.row("select pg_current_wal_insert_lsn()::text")
        side.apply_all()
        with mirror.at(snapshot=snapshot, lsn=lsn) as given:
            require_rows(given.table("bag"), *read_table(session, "bag"), "bag")
            with pytest.raises(NotAnswerable, match=r"public\.t was copied or altered up to"):
                given.table("t")
    with mirror.at("now") as now:
        assert now.table("t").collect() == [(1, "one", 7)]
    mirror.close()


@pytest.mark.full
def test_a_snapshot_older_than_its_lsn_is_refused_where_a_table_was_copied_in_between(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key)", "insert into t values (1)")
    with db.session(timeouts=PATIENT) as session, session.transaction():
        (snapshot,) = session.row("select pg_current_snapshot()::text")
        db.run("insert into t values (2)")
        with syncing(db, tmp_path, spark, "t") as synced:
            synced.copy_all()
            db.run("insert into t values (3)")
            (lsn,) = session.row("select pg_current_wal_insert_lsn()::text")
            later, there = db.admin(HERE)[0]
            synced.catch_up()
            mirror = tidemark.open(synced.options.lake, spark)
            with mirror.at(snapshot=later, lsn=there) as given:
                assert given.table("t").count() == 3
            with (
                mirror.at(snapshot=snapshot, lsn=lsn) as given,
                pytest.raises(NotAnswerable, match=r"public\.t was copied or altered up to"),
            ):
                given.table("t")


def test_the_wait_is_told(side: Lakeside, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = opened(side)
    monkeypatch.setattr(logging.getLogger("tidemark"), "propagate", True)  # a command in this process may have ended it
    with caplog.at_level(logging.DEBUG, "tidemark"):
        side.database.run("insert into t values (1, 'one')")
        with mirror.at("now") as now:
            assert now._passed is not None
            assert now._passed.lsn == now.lsn
            assert f"ms for {now.lsn}, {now._passed.behind_bytes} bytes behind" in caplog.text
    mirror.close()


def test_what_cannot_be_asked_is_refused_with_the_reason(server: Server, side: Lakeside) -> None:
    lake = side.options.lake
    with pytest.raises(InvalidValue, match="requires the source"):
        tidemark.open(lake, side.spark).at("now")
    other = create_database(server)
    with pytest.raises(NotTheSameSource, match="belongs to database"):
        tidemark.open(lake, side.spark, source=other.dsn()).at("now")
    with pytest.raises(InvalidValue, match="must be given together"):
        opened(side).at(snapshot="10:10:")
    with pytest.raises(InvalidValue, match="invalid snapshot"):
        opened(side).at(snapshot="10:10", lsn="0/1")
    with pytest.raises(NotAnswerable, match=r"was not received within 0\.1 s"):
        opened(side).at(snapshot="10:10:", lsn="FF/0", wait=0.1)


def test_a_role_that_may_replicate_by_membership_identifies_the_source_over_a_replication_connection(
    side: Lakeside,
) -> None:
    """As on Amazon RDS. This server does not honour that role, and refuses the connection."""
    db, mirror = side.database, opened(side)
    db.admin(f"alter role {MIRROR} noreplication", "create role rds_replication")
    try:
        with mirror.at("now") as now:
            assert now.table("t").count() == 0, "a role that may not replicate reads the identity by SQL"
        mirror.close()
        db.admin(f"grant rds_replication to {MIRROR}")
        with pytest.raises(NotPermitted, match="WAL sender"):
            opened(side).at("now")
    finally:
        db.admin(f"alter role {MIRROR} replication", "drop role rds_replication")


def test_where_nobody_follows_the_present_is_refused_and_latest_is_not(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key)")
    side = lakeside(db, tmp_path, spark, "t")
    with receiving(side.mirror):
        side.mirror.catch_up()
        side.apply_all()
    db.run("insert into t values (1)")
    mirror = opened(side)
    with pytest.raises(NotAnswerable, match="no process receives from the source"):
        mirror.at("now")
    assert mirror.table("t").count() == 0
    mirror.close()
