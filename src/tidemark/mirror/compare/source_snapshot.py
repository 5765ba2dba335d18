"""One snapshot of the source, kept open during a comparison, and sessions that read in it.

A table is locked only while it is read. A snapshot does not show changes of the table between the snapshot and the
lock, so the table is checked after the lock against its definition in the snapshot, as for a copy.

For a mirror that streams, the snapshot is a new one, because the log determines which commits it includes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self

from tidemark.clock import Snapshot
from tidemark.mirror.compare.server_side import reading
from tidemark.mirror.mirror import Mirror
from tidemark.mirror.moment import Moment
from tidemark.mirror.open_lake import LIMIT_S
from tidemark.mirror.present import open_source
from tidemark.postgres.catalog_reading import read_within, replayed_by
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.shared import SharedSnapshot
from tidemark.schema.catalog_snapshot import CatalogSnapshot
from tidemark.schema.fingerprint import Fingerprint


class SourceSnapshot(ABC):
    """A snapshot of the source and the moment of the mirror that matches it; subclasses select the snapshot."""

    def __init__(self, dsn: Dsn, mirror: Mirror, timeout_s: float) -> None:
        self._dsn, self._mirror = dsn, mirror
        self._timeouts = Timeouts(statement_s=timeout_s, idle_in_transaction_s=0)
        self.tables: Sequence[str] | None = None  # the tables that are compared; None for all
        self._session: Session | None = None
        self._shared: SharedSnapshot | None = None

    @abstractmethod
    def moment(self, wait_s: float | None) -> Moment:
        """Open a snapshot and return the mirror at it; wait at most `wait_s`, or for a default time if it is None."""

    @contextmanager
    def seeing(self, *tables: Fingerprint) -> Iterator[Session]:
        """Return a session in that snapshot, with the tables locked against being altered or truncated."""
        if self._shared is None:
            raise RuntimeError("no snapshot was taken")
        with reading(self._shared, self._timeouts, *tables) as session:
            yield session

    def close(self) -> None:
        """Close the session, which releases the snapshot."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    def _keep(self, session: Session, snapshot: Snapshot) -> None:
        """Keep this session, and share its snapshot with other sessions."""
        self._session = session
        self._shared = SharedSnapshot.of(self._dsn, session, snapshot)


class StreamedSnapshot(SourceSnapshot):
    """The catalog snapshots that were taken, each with its session, until one of them is selected."""

    def __init__(self, dsn: Dsn, mirror: Mirror, timeout_s: float) -> None:
        super().__init__(dsn, mirror, timeout_s)
        self._catalogs: list[tuple[CatalogSnapshot, Session]] = []

    def moment(self, wait_s: float | None) -> Moment:
        """Return the mirror at the first snapshot that can be answered; the sessions of the others are closed."""
        limit_s = LIMIT_S if wait_s is None else wait_s
        moment = self._mirror._seen_by(self._read_catalog, limit_s, self._forget, self.tables)
        for catalog, session in self._catalogs:
            if catalog is moment._catalog:
                self._keep(session, catalog.snapshot)
            else:
                session.close()
        self._catalogs = []
        return moment

    def _forget(self, catalog: CatalogSnapshot) -> None:
        """Close the session of a snapshot that was not used; there may be many, and a server limits its connections."""
        for each, session in self._catalogs:
            if each is catalog:
                session.close()
        self._catalogs = [held for held in self._catalogs if held[0] is not catalog]

    def close(self) -> None:
        """Close all sessions, which releases their snapshots."""
        for _, session in self._catalogs:
            session.close()
        super().close()

    def _read_catalog(self) -> CatalogSnapshot:
        """Take a catalog snapshot in a session of its own, whose transaction stays open."""
        lake = self._mirror._opened.lake
        session = open_source(self._dsn, "compare", lake, self._mirror._opened.view().reader, self._timeouts)
        try:
            replayed = replayed_by(session)
            session.begin()
            catalog = replace(read_within(session, MirrorNames(lake.mirror)), replayed=replayed)
        except BaseException:
            session.close()
            raise
        self._catalogs.append((catalog, session))
        return catalog
