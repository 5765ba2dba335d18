"""Snapshots that several read by: on a primary each in a session of its own, on a standby in the one that took it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from harness.database import MIRROR, Database, create_database
from harness.mirrored import eventually
from tests.conftest import NEWEST, Start
from tidemark.clock import Snapshot
from tidemark.errors import ConnectionLost, TimedOut
from tidemark.source.session import Session, Timeouts
from tidemark.source.shared import SharedSnapshot

pytestmark = NEWEST

COUNTED = "select count(*) from public.t"


@pytest.fixture
def pair(start: Start) -> Iterator[tuple[Database, Database]]:
    """A database, and how a standby has it."""
    db = create_database(start())
    db.run("create table t (id int primary key)", "insert into t select generate_series(1, 100)")
    standby = db.server.standby({"hot_standby_feedback": True})
    try:
        yield db, Database(standby, db.name)
    finally:
        standby.remove()


def replayed(db: Database, there: Database) -> None:
    """Until the standby shows what its primary has written."""
    ((lsn,),) = db.admin("select pg_current_wal_insert_lsn()::text")
    eventually(lambda: there.server.sql(f"select pg_last_wal_replay_lsn() >= '{lsn}'::pg_lsn")[0][0], 60)


@contextmanager
def running(db: Database, there: Database) -> Iterator[psycopg.Connection[Any]]:
    """A transaction whose subtransaction has written first, others that have ended since; the standby knows of both."""
    with db.connect() as session:
        session.execute(b"begin; savepoint s; delete from t where id <= 10; insert into t values (1000)")
        db.run("insert into t values (2000)")
        replayed(db, there)
        yield session


@contextmanager
def shared(db: Database) -> Iterator[tuple[SharedSnapshot, Session]]:
    with Session.open(db.dsn(MIRROR), "test", Timeouts(idle_in_transaction_s=0)) as session:
        session.begin()
        (text,) = session.row("select pg_current_snapshot()::text")
        yield SharedSnapshot.of(db.dsn(MIRROR), session, Snapshot.parse(text)), session


def test_on_a_standby_nobody_sees_what_was_running(pair: tuple[Database, Database]) -> None:
    db, there = pair
    with running(db, there) as writer, shared(there) as (snapshot, session):
        assert session.row(COUNTED) == (101,)
        writer.execute(b"commit")
        replayed(db, there)
        for _ in range(2):
            with snapshot.session("test") as reader:
                assert reader.row(COUNTED) == (101,)
    with there.session() as session:
        assert session.row(COUNTED) == (92,)


def test_readers_take_turns_and_one_that_fails_does_not_end_it(pair: tuple[Database, Database]) -> None:
    db, there = pair

    def read(_: int) -> int:
        with snapshot.session("test") as reader:
            reader.execute(sql.SQL("lock table public.t in access share mode").format(), "locking")
            (count,) = reader.row(COUNTED)
            return int(count)

    with running(db, there), shared(there) as (snapshot, holder):
        with pytest.raises(TimedOut), snapshot.session("test") as reader:
            reader.row("select set_config('statement_timeout', '1', true)")
            reader.row("select pg_sleep(10)")
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(read, range(20))) == {101}
        assert holder.row("select count(*) from pg_locks where relation = 'public.t'::regclass") == (0,)
        assert holder.row("select current_setting('statement_timeout')") == ("1min",)
        there.server.sql(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'tidemark%'"
        )
        with pytest.raises(ConnectionLost):
            read(0)


def test_where_nothing_runs_and_on_a_primary_each_has_a_session(pair: tuple[Database, Database]) -> None:
    db, there = pair
    replayed(db, there)
    with shared(there) as (snapshot, holder), snapshot.session("test") as reader:
        assert reader is not holder
        db.run("insert into t values (3000)")
        replayed(db, there)
        assert reader.row(COUNTED) == holder.row(COUNTED) == (100,)
    with running(db, there) as writer, shared(db) as (snapshot, holder), snapshot.session("test") as reader:
        assert reader is not holder
        writer.execute(b"commit")
        assert reader.row(COUNTED) == holder.row(COUNTED) == (102,)
