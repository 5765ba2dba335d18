"""One snapshot that several read by, while a session holds it.

On a primary each of them has a session of its own, which imports it. On a standby PostgreSQL loses, when it exports a
snapshot, which transactions were running, as soon as one of them has subtransactions that the standby does not list one
by one: 64 of them, or with `wal_level = logical` one that wrote before its parent did. Whoever imports that sees what
was not committed yet, and marks rows of running transactions as dead, in the standby's own pages and for everybody
(docs/decisions/018). So there the session that took a snapshot is the only one to read by it, unless nothing ran.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from tidemark.clock import Snapshot
from tidemark.source.dsn import Dsn
from tidemark.source.session import Session, Timeouts
from tidemark.source.sqlstate import translated


class SharedSnapshot:
    """`name` is what it was exported as; without one there is only its holder's session to read by."""

    def __init__(self, dsn: Dsn, name: str | None, holder: Session | None = None) -> None:
        self.dsn, self.name, self._holder = dsn, name, holder
        self._one_at_a_time = threading.Lock()

    @classmethod
    def of(cls, dsn: Dsn, holder: Session, snapshot: Snapshot) -> Self:
        """Share the snapshot that a session has."""
        if snapshot.hides_who_runs:
            return cls(dsn, None, holder)
        (name,) = holder.row("select pg_export_snapshot()")
        return cls(dsn, name, holder)

    @contextmanager
    def session(self, purpose: str, timeouts: Timeouts | None = None) -> Iterator[Session]:
        """A session that sees it, for one reader, whose locks it gives back in the end; others may have to wait."""
        if self.name is not None:
            with Session.open(self.dsn, purpose, timeouts) as session, session.transaction(snapshot_id=self.name):
                yield session
        elif self._holder is not None:
            with (
                self._one_at_a_time,
                translated("a part of a transaction on the source"),
                self._holder.connection.transaction(force_rollback=True),
            ):
                yield self._holder
