"""Snapshots that several read by: on a primary each in a session of its own, on a standby in the one that took it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg import sql

from harness.database import Database, create_database
from harness.standby import running, shared, standby_of, wait_for
from tests.conftest import NEWEST, Start
from tidemark.errors import Conflict, ConnectionLost, TimedOut
from tidemark.postgres.session import Timeouts

pytestmark = [pytest.mark.quick, NEWEST]

COUNTED = "select count(*) from public.t"
LATE = "delete from t where id <= 10; insert into t values (1000)"
LOCK = sql.SQL("lock table public.t in access share mode").format()


@pytest.fixture
def pair(start: Start) -> Iterator[tuple[Database, Database]]:
    """A database, and how a standby has it."""
    db = create_database(start(autovacuum=False, max_standby_streaming_delay=0))
    db.run("create table t (id int primary key)", "insert into t select generate_series(1, 100)")
    with standby_of(db) as there:
        yield db, there


def test_on_a_standby_nobody_sees_what_was_running(pair: tuple[Database, Database]) -> None:
    db, there = pair
    with running(db, there, LATE) as writer, shared(there) as (snapshot, session):
        assert session.row(COUNTED) == (100,)
        writer.execute(b"commit")
        wait_for(there, db)
        for _ in range(2):
            with snapshot.session("test") as reader:
                assert reader.row(COUNTED) == (100,)
    with there.session() as session:
        assert session.row(COUNTED) == (91,)


def test_readers_take_turns_and_leave_nothing(pair: tuple[Database, Database]) -> None:
    db, there = pair

    def read(_: int) -> int:
        with snapshot.session("test") as reader:
            reader.execute(LOCK, "locking")
            (count,) = reader.row(COUNTED)
            return int(count)

    with running(db, there, LATE), shared(there) as (snapshot, holder):
        with pytest.raises(TimedOut), snapshot.session("test", Timeouts(statement_s=0.001)) as reader:
            reader.row("select pg_sleep(10)")
        with pytest.raises(ZeroDivisionError), snapshot.session("test") as reader:
            reader.row(COUNTED)
            raise ZeroDivisionError
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(read, range(20))) == {100}
        assert holder.row("select count(*) from pg_locks where relation = 'public.t'::regclass") == (0,)
        assert holder.row("select current_setting('statement_timeout')") == ("1min",)


def test_when_the_snapshot_is_lost_all_hear_why(pair: tuple[Database, Database]) -> None:
    db, there = pair
    with running(db, there, LATE) as writer, shared(there) as (snapshot, _):
        with pytest.raises(Conflict, match="conflict with recovery"), snapshot.session("test") as reader:
            reader.execute(LOCK, "locking")
            writer.execute(b"rollback")
            db.run("truncate t")
            reader.row("select pg_sleep(60)")
        for _ in range(2):
            with pytest.raises(Conflict, match="conflict with recovery"), snapshot.session("test"):
                pass
    with running(db, there, LATE), shared(there) as (snapshot, _):
        there.server.sql(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'tidemark%'"
        )
        for _ in range(2):
            with pytest.raises(ConnectionLost), snapshot.session("test"):
                pass


def test_where_nothing_runs_and_on_a_primary_each_has_a_session(pair: tuple[Database, Database]) -> None:
    db, there = pair
    wait_for(there, db)
    with shared(there) as (snapshot, holder), snapshot.session("test") as reader:
        assert reader is not holder
        db.run("insert into t values (3000)")
        wait_for(there, db)
        assert reader.row(COUNTED) == holder.row(COUNTED) == (100,)
    with running(db, there, LATE) as writer, shared(db) as (snapshot, holder), snapshot.session("test") as reader:
        assert reader is not holder
        writer.execute(b"commit")
        assert reader.row(COUNTED) == holder.row(COUNTED) == (101,)
