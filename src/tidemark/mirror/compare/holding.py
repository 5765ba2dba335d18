"""One snapshot of the source, held while it is compared, and sessions that see what it sees.

Tables are not locked until it is their turn, and only for that long. What became of a table between the snapshot and
its lock, a snapshot does not tell; so it is held against what the snapshot has of it, as for a copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from psycopg import sql

from tidemark.clock import Snapshot
from tidemark.mirror.mirror import Mirror
from tidemark.mirror.moment import Moment
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.shared import SharedSnapshot
from tidemark.postgres.table_lock import require_same
from tidemark.schema.fingerprint import Fingerprint

_ALONE = sql.SQL("set local max_parallel_workers_per_gather = 0")


class Held(ABC):
    """A snapshot and what the mirror has there; of which snapshot that can be said, its kinds differ in."""

    def __init__(self, dsn: Dsn, mirror: Mirror, timeout_s: float) -> None:
        self._dsn, self._mirror = dsn, mirror
        self._timeouts = Timeouts(statement_s=timeout_s, idle_in_transaction_s=0)
        self._session: Session | None = None
        self._shared: SharedSnapshot | None = None

    @abstractmethod
    def moment(self, wait_s: float | None) -> Moment:
        """Hold a snapshot; the mirror as it is there. Waited for at most so long, or as long as it commonly takes."""

    @contextmanager
    def seeing(self, *tables: Fingerprint) -> Iterator[Session]:
        """A session in that snapshot, with the tables locked against being altered."""
        if self._shared is None:
            raise RuntimeError("no snapshot was taken")
        with self._shared.session("compare", self._timeouts) as session:
            session.execute(_ALONE.format(), "disabling parallel query")
            for table in tables:
                require_same(session, table)
            yield session

    def close(self) -> None:
        """Let go of it."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    def _keep(self, session: Session, snapshot: Snapshot) -> None:
        """Hold the snapshot that this session has, for others to see."""
        self._session = session
        self._shared = SharedSnapshot.of(self._dsn, session, snapshot)
