"""The snapshot for a mirror that streams: a new one, because the log determines which commits it includes."""

from __future__ import annotations

from dataclasses import replace

from tidemark.mirror.compare.holding import Held
from tidemark.mirror.gate import LIMIT_S
from tidemark.mirror.mirror import Mirror
from tidemark.mirror.moment import Moment
from tidemark.mirror.present import open_source
from tidemark.postgres.catalog_reading import read_within, replayed_by
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session
from tidemark.schema.catalog_snapshot import CatalogSnapshot


class HeldLook(Held):
    """The catalog snapshots that were taken, each with its session, until one of them is selected."""

    def __init__(self, dsn: Dsn, mirror: Mirror, timeout_s: float) -> None:
        super().__init__(dsn, mirror, timeout_s)
        self._looks: list[tuple[CatalogSnapshot, Session]] = []

    def moment(self, wait_s: float | None) -> Moment:
        """Return the mirror at the first snapshot that can be answered; the sessions of the others are closed."""
        limit_s = LIMIT_S if wait_s is None else wait_s
        moment = self._mirror._seen_by(self._look, limit_s, self._forget, self.tables)
        for look, session in self._looks:
            if look is moment._look:
                self._keep(session, look.snapshot)
            else:
                session.close()
        self._looks = []
        return moment

    def _forget(self, look: CatalogSnapshot) -> None:
        """Close the session of a snapshot that was not used; there may be many, and a server limits its connections."""
        for each, session in self._looks:
            if each is look:
                session.close()
        self._looks = [held for held in self._looks if held[0] is not look]

    def close(self) -> None:
        """Close all sessions, which releases their snapshots."""
        for _, session in self._looks:
            session.close()
        super().close()

    def _look(self) -> CatalogSnapshot:
        """Take a catalog snapshot in a session of its own, whose transaction stays open."""
        lake = self._mirror._opened.lake
        session = open_source(self._dsn, "compare", lake, self._mirror._opened.view().reader, self._timeouts)
        try:
            replayed = replayed_by(session)
            session.begin()
            look = replace(read_within(session, MirrorNames(lake.mirror)), replayed=replayed)
        except BaseException:
            session.close()
            raise
        self._looks.append((look, session))
        return look
