"""One snapshot that several read by, while a session holds it.

On a primary each has a session of its own, which imports it. On a standby PostgreSQL may lose which transactions were
running when it exports a snapshot. Whoever imports that sees what was not committed yet, and marks rows of running
transactions as dead, in the standby's own pages and for everybody (docs/decisions/018). So there the session that took
a snapshot is the only one to read by it, unless nothing ran.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from psycopg import sql
from psycopg.pq import TransactionStatus

from tidemark.clock import Snapshot
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.sqlstate import translated


class SharedSnapshot:
    """`name` is what it was exported as; without one there is only its holder's session to read by."""

    def __init__(self, dsn: Dsn, holder: Session, name: str | None) -> None:
        self.dsn, self.name, self._holder = dsn, name, holder
        self._one_at_a_time = threading.Lock()
        self._lost: Exception | None = None

    @classmethod
    def of(cls, dsn: Dsn, holder: Session, snapshot: Snapshot) -> Self:
        """Share the snapshot that a session has."""
        return cls(dsn, holder, None) if snapshot.hides_who_runs else cls.exported(dsn, holder)

    @classmethod
    def exported(cls, dsn: Dsn, holder: Session) -> Self:
        """Share a snapshot that loses nothing by being exported."""
        (name,) = holder.row("select pg_export_snapshot()")
        return cls(dsn, holder, name)

    @contextmanager
    def session(self, purpose: str, timeouts: Timeouts | None = None) -> Iterator[Session]:
        """A session that sees it, for one reader, whose locks it gives back in the end; others may have to wait."""
        timeouts = timeouts or Timeouts()
        if self.name is not None:
            with Session.open(self.dsn, purpose, timeouts) as session, session.transaction(snapshot_id=self.name):
                yield session
        else:
            with self._one_at_a_time:
                yield from self._read_by_holder(timeouts)

    def _read_by_holder(self, timeouts: Timeouts) -> Iterator[Session]:
        """In a savepoint. After what that cannot make good the snapshot is gone, and all hear why."""
        holder = self._holder
        if self._lost is not None:
            raise self._lost
        if not _is_in_transaction(holder):
            raise RuntimeError("the session that holds a snapshot is in no transaction")
        limit = sql.SQL("set local statement_timeout = {}").format(round(timeouts.statement_s * 1000))
        try:
            with translated("reading from the source"), holder.connection.transaction(force_rollback=True):
                holder.execute(limit, "setting statement_timeout")
                yield holder
        except Exception as error:
            if not _is_in_transaction(holder):
                self._lost = error
                holder.close()
            raise


def _is_in_transaction(session: Session) -> bool:
    return session.connection.info.transaction_status == TransactionStatus.INTRANS
