"""Standbys for tests: a database on a standby, its snapshots, and transactions that run on its primary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from harness.database import MIRROR, Database
from harness.mirrored import eventually
from tidemark.clock import Snapshot
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.shared import SharedSnapshot


@contextmanager
def standby_of(database: Database) -> Iterator[Database]:
    """The same database on a standby, which is removed when the context ends."""
    standby = database.server.standby({"hot_standby_feedback": True})
    try:
        yield Database(standby, database.name)
    finally:
        standby.remove()


def wait_for(there: Database, database: Database) -> None:
    """Wait until a standby has replayed everything that its primary has written."""
    (lsn,) = database.server.sql("select pg_switch_wal()", "select pg_current_wal_flush_lsn()::text")[0]
    eventually(lambda: there.server.sql(f"select pg_last_wal_replay_lsn() >= '{lsn}'::pg_lsn")[0][0], 60)


@contextmanager
def running(database: Database, there: Database, does: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction whose subtransaction writes first, and another one that has ended since; both are replayed."""
    with database.connect() as session:
        session.execute(f"begin; savepoint s; {does}".encode())
        database.server.sql("select pg_current_xact_id()")
        wait_for(there, database)
        yield session


@contextmanager
def shared(database: Database) -> Iterator[tuple[SharedSnapshot, Session]]:
    """A snapshot, and the session that keeps it open."""
    dsn = database.dsn(MIRROR)
    with Session.open(dsn, "test", Timeouts(idle_in_transaction_s=0)) as session:
        session.begin()
        (text,) = session.row("select pg_current_snapshot()::text")
        yield SharedSnapshot.of(dsn, session, Snapshot.parse(text)), session
