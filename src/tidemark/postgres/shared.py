"""Share one snapshot between several readers while a session holds it.

On a primary, every reader has its own session, which imports the snapshot. On a standby, PostgreSQL may lose the list
of running transactions when it exports a snapshot. A session that imports such a snapshot sees transactions that
committed later, and sets hint bits that mark rows of running transactions as dead in the standby's pages, for all
sessions (docs/decisions/018). Therefore, on a standby only the session that took the snapshot reads with it, unless no
transaction was running.
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
    """A shared snapshot. `name` is its export identifier; if None, readers take turns using the holder's session."""

    def __init__(self, dsn: Dsn, holder: Session, name: str | None) -> None:
        self.dsn, self.name, self._holder = dsn, name, holder
        self._one_at_a_time = threading.Lock()
        self._lost: Exception | None = None

    @classmethod
    def of(cls, dsn: Dsn, holder: Session, snapshot: Snapshot) -> Self:
        """Share the snapshot of a session; export it unless the export would lose its running transactions."""
        return cls(dsn, holder, None) if snapshot.hides_who_runs else cls.exported(dsn, holder)

    @classmethod
    def exported(cls, dsn: Dsn, holder: Session) -> Self:
        """Share a snapshot that can be exported without loss."""
        (name,) = holder.row("select pg_export_snapshot()")
        return cls(dsn, holder, name)

    @contextmanager
    def session(self, purpose: str, timeouts: Timeouts | None = None) -> Iterator[Session]:
        """Provide a session with this snapshot for one reader; releases its locks at the end. Others may wait."""
        timeouts = timeouts or Timeouts()
        if self.name is not None:
            with Session.open(self.dsn, purpose, timeouts) as session, session.transaction(snapshot_id=self.name):
                yield session
        else:
            with self._one_at_a_time:
                yield from self._read_by_holder(timeouts)

    def _read_by_holder(self, timeouts: Timeouts) -> Iterator[Session]:
        """Read in a savepoint of the holder's session.

        If an error ends the whole transaction, the snapshot is lost, and all later readers get the same error.
        """
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
