"""The snapshot of a copy and its position: rows visible in it are copied, later changes are in the stream.

The first choice is the snapshot of a temporary slot, which is a plain LSN. Creating the slot waits for every running
transaction. If that takes too long or fails, or no slot is free, an ordinary snapshot is taken: its boundary excludes
the commits at or below its position that were not visible in it, according to the log.

In both cases the table must have been published before every transaction began that was running when the snapshot was
taken, or the stream lacks the earlier changes of such a transaction. The caller ensures that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from psycopg import sql

from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.errors import Conflict, NotAnswerable, ReceiveFailed, SlotBlocked, SourceBusy
from tidemark.log.reader import LogReader
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.shared import SharedSnapshot
from tidemark.postgres.slot import exact_snapshot
from tidemark.receive.client import ReceiveClient
from tidemark.schema.fingerprint import Fingerprint

SLOT_WAIT_S, LOG_WAIT_S, START_WAIT_S = 2.0, 60.0, 10.0
_PAUSE_S = 0.1
_HOLDING = Timeouts(idle_in_transaction_s=0)
_HERE = "select pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text"


@dataclass(frozen=True, slots=True)
class CopySnapshot:
    """A snapshot that can be read while it is kept open, and the boundary of what is visible in it."""

    base: Boundary
    shared: SharedSnapshot


@contextmanager
def copy_snapshot(dsn: Dsn, log: Path, endpos: Lsn | None = None) -> Iterator[CopySnapshot]:
    """A snapshot that is kept open for the duration of the context. The log must be received meanwhile.

    A snapshot above `endpos`, where receiving ends, is refused.
    """
    with ExitStack() as holding:
        try:
            exact = holding.enter_context(exact_snapshot(dsn, SLOT_WAIT_S))
            _require_at_most(endpos, exact.lsn)
            found = CopySnapshot(Boundary(exact.lsn), exact.shared)
        except (SlotBlocked, SourceBusy, Conflict):
            found = holding.enter_context(locked_snapshot(dsn, log, (), endpos))
        yield found


@contextmanager
def locked_snapshot(
    dsn: Dsn, log: Path, tables: Sequence[Fingerprint], endpos: Lsn | None = None
) -> Iterator[CopySnapshot]:
    """A snapshot like that of `copy_snapshot`, of an ordinary transaction, which locks tables before it is taken.

    While it is kept open, these tables are not truncated, rewritten or altered. Then only its own session reads in it:
    another one would wait behind a session that waits for the end of the lock.
    """
    with Session.open(dsn, "snapshot", _HOLDING) as session:
        session.begin()
        for table in tables:
            lock = sql.SQL("lock table only {} in access share mode").format(sql.Identifier(table.schema, table.name))
            session.execute(lock, f"locking {table.qualified}")
        text, position = session.row(_HERE)
        snapshot, lsn = Snapshot.parse(text), Lsn.parse(position)
        _require_at_most(endpos, lsn)
        shared = SharedSnapshot(dsn, session, None) if tables else SharedSnapshot.of(dsn, session, snapshot)
        yield CopySnapshot(_boundary(log, snapshot, lsn), shared)


def _require_at_most(endpos: Lsn | None, lsn: Lsn) -> None:
    if endpos is not None and lsn > endpos:
        raise NotAnswerable(
            f"the snapshot for the copy is at {lsn}, after --endpos {endpos}", "Use a later `--endpos`, or none."
        )


def _boundary(log: Path, snapshot: Snapshot, lsn: Lsn) -> Boundary:
    with _client(log) as client:
        reached = client.wait(lsn, LOG_WAIT_S)
    return LogReader(log).boundary(snapshot, min(lsn, reached))  # less just after a page header: the same position


def _client(log: Path) -> ReceiveClient:
    """Connect to the receiver, which may have been started a moment ago."""
    deadline = time.monotonic() + START_WAIT_S
    while True:
        try:
            return ReceiveClient(log)
        except ReceiveFailed:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)
