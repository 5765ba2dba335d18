"""The snapshot for a polled mirror: that of a poll, because for another one it is not known which rows it includes.

The polling process hands over the snapshot of its next poll (`lake.snapshot_requests`). If no process polls, the source
must be unchanged since the last poll: on a primary an equal snapshot proves that, on a standby nothing does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tidemark.clock import Lsn, Snapshot
from tidemark.errors import NotAnswerable, ObjectMissing
from tidemark.lake.lock import has_writer, last_writer
from tidemark.lake.polls import Poll
from tidemark.lake.snapshot_requests import ExportedSnapshot, SnapshotRequest
from tidemark.mirror.compare.source_snapshot import SourceSnapshot
from tidemark.mirror.mirror import Mirror
from tidemark.mirror.moment import Moment
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.catalog_reading import replayed_by
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.identity import Identity, locate
from tidemark.postgres.session import Session
from tidemark.schema.fingerprint import Fingerprint

LIMIT_S = 300.0  # a poll may be running, and the snapshot is that of the next one
_PAUSE_S, _LOOK_S = 0.05, 2.0
_ATTEMPTS = 3
_SYNC = "Run `tidemark sync SOURCE LAKE --once` just before, or retry while `tidemark sync` is running."


class PolledSnapshot(SourceSnapshot):
    """The snapshot of a poll."""

    def __init__(self, dsn: Dsn, mirror: Mirror, timeout_s: float) -> None:
        super().__init__(dsn, mirror, timeout_s)
        self._filenodes: dict[int, int] = {}

    def moment(self, wait_s: float | None) -> Moment:
        """Return the mirror at the next poll, or at the last one if no process polls."""
        until = time.monotonic() + (LIMIT_S if wait_s is None else wait_s)
        return self._mirror.at(self._settled(until))

    @contextmanager
    def seeing(self, *tables: Fingerprint) -> Iterator[Session]:
        """Return a session in the snapshot of the poll, with the tables locked against being altered or truncated.

        The tables are checked against the filenodes in that snapshot: a TRUNCATE or rewrite before the poll changes the
        filenode, and the lake may have recorded the old one.
        """
        present = (replace(each, filenode=self._filenodes.get(each.oid, each.filenode)) for each in tables)
        with super().seeing(*present) as session:
            yield session

    def _settled(self, until: float) -> Lsn:
        lake, missing = self._mirror._opened.lake.path, ""
        for _ in range(_ATTEMPTS):
            try:
                handed = self._handed_over(until) if has_writer(lake) else None
            except ObjectMissing as error:  # the polling process has ended, or the server is another one
                missing = error.message
            else:
                return handed if handed is not None else self._last()
        raise NotAnswerable(
            f"the snapshot of {last_writer(lake)} cannot be imported: {missing}",
            "Connect to the server that is polled.",
        )

    def _handed_over(self, until: float) -> Lsn | None:
        """Take over the snapshot of the polling process and return its position; None if no process polls."""
        lake = self._mirror._opened.lake.path
        look_at = time.monotonic() + _LOOK_S
        with SnapshotRequest(lake) as asked:
            while has_writer(lake):
                handed = asked.answer()
                if handed is not None:
                    self._take_over(handed)
                    return handed.lsn
                if time.monotonic() >= look_at:
                    look_at += _LOOK_S
                    if self._mirror._opened.last_poll is None:
                        raise NotAnswerable(f"{lake} changed from polling to logical decoding", "Retry the command.")
                if time.monotonic() >= until:
                    raise NotAnswerable(
                        f"timed out waiting for the next poll of {last_writer(lake)}",
                        "Use a longer `--wait`, or retry the command later.",
                    )
                time.sleep(_PAUSE_S)
        return None

    def _take_over(self, handed: ExportedSnapshot) -> None:
        session, _ = self._opened()
        session.begin(snapshot_id=handed.snapshot_id)
        if (found := _seen_by(session)) != handed.snapshot:
            raise ObjectMissing(f"snapshot {handed.snapshot_id} is {found}, not {handed.snapshot}")
        if found.omits_running:
            raise NotAnswerable(
                f"snapshot {found} of the standby does not list running transactions", "Retry the command later."
            )
        self._keep(session, found)

    def _last(self) -> Lsn:
        """Take a snapshot and return the position of the last poll; refuse if the snapshots differ."""
        poll = self._mirror._opened.last_poll
        session, identity = self._opened()
        if replayed_by(session) is not None:
            raise NotAnswerable(
                "no process polls this source, and a snapshot of a standby cannot be compared with the last poll", _SYNC
            )
        session.begin()
        if poll is None or not _is_same(poll, snapshot := _seen_by(session), identity):
            raise NotAnswerable(f"no process polls this source, and it may have changed since {poll}", _SYNC)
        self._keep(session, snapshot)
        return poll.lsn

    def _opened(self) -> tuple[Session, Identity]:
        """Open a session on the source of the mirror, and close the previous one."""
        self.close()
        self._session = session = Session.open(self._dsn, "compare", self._timeouts)
        identity = locate(session, self._dsn, may_replicate=False).identity
        self._mirror._opened.lake.require_own(identity)
        return session, identity

    def _keep(self, session: Session, snapshot: Snapshot) -> None:
        self._filenodes = {table.oid: table.filenode for table in read_catalog(session).tables}
        super()._keep(session, snapshot)


def _seen_by(session: Session) -> Snapshot:
    (text,) = session.row("select pg_current_snapshot()::text")
    return Snapshot.parse(text)


def _is_same(poll: Poll, snapshot: Snapshot, identity: Identity) -> bool:
    """Return whether the snapshot of a primary equals that of a poll, on the same timeline."""
    return (poll.seen.snapshot, poll.seen.timeline) == (snapshot, identity.timeline)
