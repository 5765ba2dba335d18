"""One snapshot of the source, held while it is compared, and sessions that see what it sees.

Tables are not locked until it is their turn, and only for that long. What became of a table between the snapshot and
its lock, a snapshot does not tell; so it is held against what the snapshot has of it, as for a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self

from psycopg import sql

from tidemark.lake.lake import Lake
from tidemark.log.reader import LogReader
from tidemark.query.present import open_source
from tidemark.schema.fingerprint import Fingerprint
from tidemark.source.dsn import Dsn
from tidemark.source.look import Look, look_within, replayed_by
from tidemark.source.names import MirrorNames
from tidemark.source.session import Session, Timeouts
from tidemark.sync.reading import require_same

_ALONE = sql.SQL("set local max_parallel_workers_per_gather = 0")


class Held:
    """Snapshots that were looked at, until it is settled which of them is compared."""

    def __init__(self, dsn: Dsn, lake: Lake, reader: LogReader | None, timeout_s: float) -> None:
        self._dsn, self._lake, self._reader = dsn, lake, reader
        self._timeouts = Timeouts(statement_s=timeout_s, idle_in_transaction_s=0)
        self._held: list[tuple[Look, Session]] = []
        self._id = ""

    def look(self) -> Look:
        """Take a snapshot, and see how tables are defined in it."""
        session = open_source(self._dsn, "compare", self._lake, self._reader, self._timeouts)
        try:
            replayed = replayed_by(session)
            session.begin()
            look = replace(look_within(session, MirrorNames(self._lake.mirror)), replayed=replayed)
        except BaseException:
            session.close()
            raise
        self._held.append((look, session))
        return look

    def settle(self, chosen: Look | None) -> None:
        """Keep this snapshot, and let go of the others."""
        for look, session in self._held:
            if look is chosen:
                (self._id,) = session.row("select pg_export_snapshot()")
            else:
                session.close()
        self._held = [(look, session) for look, session in self._held if look is chosen]

    @contextmanager
    def seeing(self, table: Fingerprint) -> Iterator[Session]:
        """A session in that snapshot, with the table locked against being altered."""
        with (
            Session.open(self._dsn, "compare", self._timeouts) as session,
            session.transaction(snapshot_id=self._id),
        ):
            session.execute(_ALONE.format(), "being content with one process")
            require_same(session, table)
            yield session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.settle(None)
