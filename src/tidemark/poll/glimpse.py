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
from time import sleep

from tidemark.clock import Lsn, Snapshot
from tidemark.schema.table import Catalog
from tidemark.source.catalog import read_catalog
from tidemark.source.dsn import Dsn
from tidemark.source.identity import Identity, locate
from tidemark.source.look import replayed_by
from tidemark.source.session import Session, Timeouts
from tidemark.source.slot import exact_snapshot

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


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What was seen. On a standby `lsn` is what it had replayed after the snapshot, and `replayed` what before."""

    identity: Identity
    snapshot: Snapshot
    lsn: Lsn
    time: datetime
    version_num: int
    replayed: Lsn | None
    session: Session

    @property
    def on_standby(self) -> bool:
        """Whether the source is one."""
        return self.replayed is not None

    def catalog(self) -> Catalog:
        """Every table as the snapshot has it."""
        return read_catalog(self.session)

    def export(self) -> str:
        """The snapshot's name, by which other sessions see the same while it is held."""
        (name,) = self.session.row("select pg_export_snapshot()")
        return str(name)

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
    """Take a snapshot, and hold it for as long as the context lasts."""
    with Session.open(dsn, "poll", HOLDING) as session:
        located = locate(session, dsn, may_replicate=False)
        replayed = replayed_by(session)
        session.begin()
        snapshot, lsn, time = session.row(_HERE)
        version_num = session.version_num
        yield Glimpse(located.identity, Snapshot.parse(snapshot), Lsn.parse(lsn), time, version_num, replayed, session)


@contextmanager
def exact_glimpse(dsn: Dsn, wait_s: float) -> Iterator[Glimpse]:
    """The same of a primary, in a snapshot that shows the commits at or below its `lsn` and no others."""
    with exact_snapshot(dsn, wait_s) as exact, Session.open(dsn, "poll", HOLDING) as session:
        located = locate(session, dsn, may_replicate=False)
        session.begin(snapshot_id=exact.snapshot_id)
        snapshot, _, time = session.row(_HERE)
        version_num = session.version_num
        yield Glimpse(located.identity, Snapshot.parse(snapshot), exact.lsn, time, version_num, None, session)
