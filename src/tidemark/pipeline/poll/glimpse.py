"""One snapshot of the source, held while a cycle reads by it: what it sees, where it stands, and every table in it.

On a primary an equal text says that two snapshots see the same. On a standby it does not: there a transaction between
others may end and the text stays as it was. So a standby must also not have replayed anything in between.

A transaction is seen to have ended before that is on the source's disk, if it was rolled back or committed
asynchronously. A crash takes it back, and gives its id to another one, which no horizon would hold: so what a snapshot
saw is the mirror's only when the source cannot forget it any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from time import monotonic, sleep

from tidemark.clock import Lsn, Snapshot
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.identity import Identity, locate
from tidemark.postgres.look import replayed_by
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.shared import SharedSnapshot
from tidemark.postgres.slot import exact_snapshot
from tidemark.schema.table import Catalog

HOLDING = Timeouts(statement_s=0, idle_in_transaction_s=0)
_HERE = """
    select pg_current_snapshot()::text,
           case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_insert_lsn() end::text,
           clock_timestamp()
"""
# An end that nobody waited for is on the disk after three times the WAL writer's delay, says PostgreSQL's documentation
# (asynchronous commit). What else was inserted may take longer, and does not matter.
_DURABLE = """
    select pg_current_wal_flush_lsn() >= %s::pg_lsn
        or clock_timestamp() > %s + 4 * current_setting('wal_writer_delay')::interval
"""
_LOOK_S = 0.05
_QUIET_S, _STUCK_S, _AGAIN_S = 1.0, 0.1, 0.01


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What was seen, and how it is `shared` by all who read it.

    On a standby `lsn` is what it had replayed after the snapshot, and `replayed` what before.
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
        """Whether the source is one."""
        return self.replayed is not None

    def catalog(self) -> Catalog:
        """Every table as the snapshot has it."""
        return read_catalog(self.session)

    def require_held(self) -> None:
        """Refuse if the session is gone, and with it the snapshot: others only hear that they cannot have it."""
        self.session.row("select 1")

    def wait_until_durable(self) -> None:
        """Until a crash cannot take back what was seen. A standby has replayed only what is on disks."""
        while not self.on_standby and not self.session.row(_DURABLE, [str(self.lsn), self.time])[0]:
            sleep(_LOOK_S)

    def is_same(self, earlier: Glimpse) -> bool:
        """Whether nothing became visible since an earlier one."""
        return self.snapshot == earlier.snapshot and (not self.on_standby or self.lsn == earlier.replayed)


@contextmanager
def glimpse(dsn: Dsn) -> Iterator[Glimpse]:
    """Take a snapshot, and hold it for as long as the context lasts.

    On a standby it may be taken some times: one that sees all that began before can be shared by several sessions.
    While the same transaction is the oldest that runs there is none.
    """
    with Session.open(dsn, "poll", HOLDING) as session:
        identity = locate(session, dsn, may_replicate=False).identity
        begin, oldest = monotonic(), None
        while True:
            replayed = replayed_by(session)
            session.begin()
            text, lsn, time = session.row(_HERE)
            snapshot = Snapshot.parse(text)
            oldest = oldest or snapshot.xmin
            limit_s = _STUCK_S if snapshot.xmin == oldest else _QUIET_S
            if not snapshot.hides_who_runs or monotonic() - begin >= limit_s:
                break
            session.end()
            sleep(_AGAIN_S)
        shared = SharedSnapshot.of(dsn, session, snapshot)
        yield Glimpse(identity, snapshot, Lsn.parse(lsn), time, session.version_num, replayed, session, shared)


@contextmanager
def exact_glimpse(dsn: Dsn, wait_s: float) -> Iterator[Glimpse]:
    """The same of a primary, in a snapshot that shows the commits at or below its `lsn` and no others."""
    with exact_snapshot(dsn, wait_s) as exact, Session.open(dsn, "poll", HOLDING) as session:
        identity = locate(session, dsn, may_replicate=False).identity
        session.begin(snapshot_id=exact.shared.name)
        text, _, time = session.row(_HERE)
        shared = SharedSnapshot.exported(dsn, session)
        yield Glimpse(identity, Snapshot.parse(text), exact.lsn, time, session.version_num, None, session, shared)
