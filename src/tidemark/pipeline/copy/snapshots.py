"""The snapshot of a copy, and where it stands: what a table held there is a copy, what came after it is in the stream.

The first way is the snapshot of a temporary slot, which is a plain LSN. Making the slot waits for every transaction
that runs. Where that takes too long, or there is no slot to be had, the second way is an ordinary snapshot: its
boundary leaves out the commits at or below its position that it did not see, as the log tells them.

Either way a table must have been published since before every transaction that ran when the snapshot was taken, or the
stream lacks what they did before. Whoever asks for a copy has seen to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.errors import NotAnswerable, SlotBlocked, SourceBusy
from tidemark.log.reader import LogReader
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.shared import SharedSnapshot
from tidemark.postgres.slot import exact_snapshot
from tidemark.receive.client import ReceiveClient

SLOT_WAIT_S, LOG_WAIT_S = 2.0, 60.0
_HOLDING = Timeouts(idle_in_transaction_s=0)
_HERE = "select pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text"


@dataclass(frozen=True, slots=True)
class CopySnapshot:
    """A snapshot to read by while it is held, and what it sees."""

    base: Boundary
    shared: SharedSnapshot


@contextmanager
def copy_snapshot(dsn: Dsn, log: Path, endpos: Lsn | None = None) -> Iterator[CopySnapshot]:
    """A snapshot, held for as long as the context lasts. The log must be received into meanwhile.

    One above `endpos`, up to where that is done, is refused.
    """
    with ExitStack() as holding:
        try:
            exact = holding.enter_context(exact_snapshot(dsn, SLOT_WAIT_S))
            _require_at_most(endpos, exact.lsn)
            found = CopySnapshot(Boundary(exact.lsn), exact.shared)
        except (SlotBlocked, SourceBusy):
            session = holding.enter_context(Session.open(dsn, "snapshot", _HOLDING))
            session.begin()
            text, position = session.row(_HERE)
            snapshot, lsn = Snapshot.parse(text), Lsn.parse(position)
            _require_at_most(endpos, lsn)
            found = CopySnapshot(_boundary(log, snapshot, lsn), SharedSnapshot.of(dsn, session, snapshot))
        yield found


def _require_at_most(endpos: Lsn | None, lsn: Lsn) -> None:
    if endpos is not None and lsn > endpos:
        raise NotAnswerable(
            f"the snapshot for the copy is at {lsn}, after --endpos {endpos}", "Use a later `--endpos`, or none."
        )


def _boundary(log: Path, snapshot: Snapshot, lsn: Lsn) -> Boundary:
    with ReceiveClient(log) as client:
        reached = client.wait(lsn, LOG_WAIT_S)
    return LogReader(log).boundary(snapshot, min(lsn, reached))  # less just after a page's header, and the same
