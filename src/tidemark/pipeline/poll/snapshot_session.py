"""One snapshot of the source, open while a cycle reads with it: its position, and every table that it shows.

On a primary, two snapshots with the same text show the same data. On a standby they may not: a transaction between
others may end without a change of the text. So on a standby, nothing may have been replayed in between either.

A snapshot shows the end of a transaction before that is flushed at the source, if the transaction was rolled back or
committed asynchronously. A crash undoes it and assigns its xid to another transaction, which no horizon would include.
So the mirror does not commit what a snapshot shows until a crash of the source cannot undo it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from time import monotonic, sleep
from typing import Protocol

from tidemark.clock import Lsn, Snapshot
from tidemark.errors import SourceBusy
from tidemark.pipeline.poll.horizon import Horizon
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.catalog_reading import read_position, replayed_by
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.identity import Identity, locate
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.shared import SharedSnapshot
from tidemark.postgres.slot import exact_snapshot
from tidemark.schema.table import Catalog

HOLDING = Timeouts(statement_s=0, idle_in_transaction_s=0)
# The end of a transaction for which no client waits is flushed after at most three times wal_writer_delay, according to
# PostgreSQL's documentation (asynchronous commit). Other WAL may take longer to flush, and does not matter.
_DURABLE = """
    select pg_current_wal_flush_lsn() >= %s::pg_lsn
        or clock_timestamp() > %s + 4 * current_setting('wal_writer_delay')::interval
"""
_LOOK_S = 0.05
_QUIET_S, _STUCK_S, _AGAIN_S = 1.0, 0.1, 0.01


class Watermark(Protocol):
    """Up to where a copy of the source is polled: a snapshot, the LSN of the source at that time, and its timeline."""

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot."""

    @property
    def lsn(self) -> Lsn:
        """The LSN."""

    @property
    def timeline(self) -> int:
        """The timeline."""


@dataclass(frozen=True, slots=True)
class PollSnapshot:
    """A source snapshot; `shared` is how other sessions read with it.

    On a standby, `lsn` is the replay LSN after the snapshot was taken, and `replayed` the one before; on a primary,
    `replayed` is None.
    """

    identity: Identity
    snapshot: Snapshot
    lsn: Lsn
    time: datetime
    version_num: int
    replayed: Lsn | None
    session: Session
    shared: SharedSnapshot

    @property
    def on_standby(self) -> bool:
        """Whether the source is a standby."""
        return self.replayed is not None

    def catalog(self) -> Catalog:
        """Read the definition of every table as of the snapshot."""
        return read_catalog(self.session)

    def require_held(self) -> None:
        """Raise an error if the session has ended, and the snapshot with it.

        Other sessions only get the error that the snapshot does not exist.
        """
        self.session.row("select 1")

    def wait_until_durable(self) -> None:
        """Wait until a crash cannot undo what the snapshot shows; a standby replays only flushed WAL."""
        while not self.on_standby and not self.session.row(_DURABLE, [str(self.lsn), self.time])[0]:
            sleep(_LOOK_S)

    def unfollowable(self, last: Watermark) -> str | None:
        """Return why `xmin` does not show what changed since the last poll; None if it does.

        It does not after a restore of the source to an earlier state, a timeline change, or 2^32 transactions. Raises
        an error for a standby that lags, which is retried.
        """
        if self.lsn < last.lsn or self.snapshot.xmax < last.snapshot.xmax:
            if self.on_standby:
                raise SourceBusy(
                    f"the standby has replayed WAL up to {self.lsn}, and the last poll was at {last.lsn}",
                    "Retry the command when the standby has caught up.",
                )
            return "the source was restored to an earlier state"
        if self.identity.timeline != last.timeline:
            return f"the timeline of the source changed from {last.timeline} to {self.identity.timeline}"
        if Horizon.between(last.snapshot, self.snapshot) is None:
            return "too many transactions since the last poll"
        return None

    def is_same(self, earlier: PollSnapshot) -> bool:
        """Whether nothing became visible since an earlier snapshot."""
        return self.snapshot == earlier.snapshot and (not self.on_standby or self.lsn == earlier.replayed)


@contextmanager
def open_poll_snapshot(dsn: Dsn) -> Iterator[PollSnapshot]:
    """Take a snapshot, and keep it open while the context lasts.

    On a standby, only a snapshot that shows all transactions begun before it can be shared by several sessions, so it
    is retaken for up to `_QUIET_S` seconds. While the same transaction is the oldest running one, there is no such
    snapshot: then the limit is `_STUCK_S` seconds.
    """
    with Session.open(dsn, "poll", HOLDING) as session:
        identity = locate(session, dsn, may_replicate=False).identity
        begin, oldest = monotonic(), None
        while True:
            replayed = replayed_by(session)
            session.begin()
            snapshot, lsn, time = read_position(session)
            oldest = oldest or snapshot.xmin
            limit_s = _STUCK_S if snapshot.xmin == oldest else _QUIET_S
            if not snapshot.omits_running or monotonic() - begin >= limit_s:
                break
            session.end()
            sleep(_AGAIN_S)
        shared = SharedSnapshot.of(dsn, session, snapshot)
        yield PollSnapshot(identity, snapshot, lsn, time, session.version_num, replayed, session, shared)


@contextmanager
def exact_poll_snapshot(dsn: Dsn, wait_s: float) -> Iterator[PollSnapshot]:
    """Take a snapshot on a primary that shows the commits at or below its `lsn` and no others."""
    with exact_snapshot(dsn, wait_s) as exact, Session.open(dsn, "poll", HOLDING) as session:
        identity = locate(session, dsn, may_replicate=False).identity
        session.begin(snapshot_id=exact.shared.name)
        snapshot, _, time = read_position(session)
        shared = SharedSnapshot.exported(dsn, session)
        yield PollSnapshot(identity, snapshot, exact.lsn, time, session.version_num, None, session, shared)
