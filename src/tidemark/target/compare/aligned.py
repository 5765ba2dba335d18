"""Snapshots of a source and of a clone that follows it, at one LSN, while applications write to the source.

The clone is held where it is, for a moment. A snapshot of the source is taken at an exact LSN, which is at or above all
that the clone has; the clone is applied up to that LSN, and its snapshot is taken there. Then the clone is released and
follows as before, and both snapshots can be read for as long as they are held.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from tidemark.clock import Lsn, Snapshot
from tidemark.errors import InvalidValue, TargetBehind, TidemarkError
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.identity import locate
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.shared import SharedSnapshot
from tidemark.postgres.slot import exact_snapshot
from tidemark.postgres.sqlstate import Endpoint
from tidemark.target.compare.servers import open_snapshots
from tidemark.target.state import CloneHold, ClonePhase, CloneSummary, read_clones

_PAUSE_S = 0.01
_START_S = 3.0  # a process that begins to follow, or lost its connection, is not connected for a moment


@dataclass(frozen=True, slots=True)
class ComparedSnapshots:
    """A snapshot of each server, and the clone at the target, if there is one, whose tables are compared.

    Both are at `lsn`. If that is None, no process applies the stream, and each server is read as it is.
    """

    source: SharedSnapshot
    target: SharedSnapshot
    clone: CloneSummary | None = None
    lsn: Lsn | None = None


@contextmanager
def compared_snapshots(source: Dsn, target: Dsn, timeout_s: float, wait_s: float) -> Iterator[ComparedSnapshots]:
    """Take a snapshot of each server and hold both: at one LSN if the target is a clone that follows the source."""
    clone = _clone_at(source, target)
    timeouts = Timeouts(statement_s=timeout_s, idle_in_transaction_s=0)
    with ExitStack() as held:
        if clone is not None and clone.is_followed:
            yield held.enter_context(aligned_snapshots(source, target, clone, timeouts, wait_s))
        else:
            yield ComparedSnapshots(*held.enter_context(open_snapshots(source, target, timeout_s)), clone)


@contextmanager
def aligned_snapshots(
    source: Dsn, target: Dsn, clone: CloneSummary, timeouts: Timeouts, wait_s: float
) -> Iterator[ComparedSnapshots]:
    """Take a snapshot of the source, and of the target when it has all changes up to there and no others."""
    with ExitStack() as held:
        with Session.open(target, "compare", server=Endpoint.TARGET) as session:
            hold = CloneHold(session, clone.name)
            try:
                before = hold.at_once()
                exact = held.enter_context(exact_snapshot(source, wait_s, timeouts))
                if before is not None and exact.lsn < before:
                    raise InvalidValue(
                        f"the target has changes up to {before}, and the source is at {exact.lsn}",
                        "Name the server that is cloned as SOURCE.",
                    )
                hold.at(exact.lsn)
                wait_for(hold, clone.name, exact.lsn, wait_s)
                holder = held.enter_context(Session.open(target, "compare", timeouts, server=Endpoint.TARGET))
                holder.begin()
                (text,) = holder.row("select pg_current_snapshot()::text")
            finally:
                with suppress(TidemarkError):  # it ends with the session at the latest
                    hold.release()
        yield ComparedSnapshots(exact.shared, SharedSnapshot.of(target, holder, Snapshot.parse(text)), clone, exact.lsn)


def _clone_at(source: Dsn, target: Dsn) -> CloneSummary | None:
    """Return the clone of the source at the target, if there is one; an error if it is not filled yet."""
    with (
        Session.open(target, "compare", server=Endpoint.TARGET) as session,
        Session.open(source, "compare") as there,
    ):
        if not read_clones(session):
            return None
        identity = locate(there, source, may_replicate=False).identity
        deadline = time.monotonic() + _START_S
        while True:
            clones = [clone for clone in read_clones(session) if clone.is_of(identity)]
            if not any(clone.may_follow and not clone.is_written for clone in clones) or time.monotonic() > deadline:
                break
            time.sleep(_PAUSE_S)
    for clone in clones:
        if clone.phase not in (ClonePhase.FOLLOW, ClonePhase.COMPLETION, ClonePhase.COMPLETE):
            raise TargetBehind(
                f"clone {clone.name} is in phase {clone.phase.value}: not all of its tables are copied",
                "Run `tidemark clone SOURCE TARGET`, and compare when `tidemark status TARGET` reports phase follow.",
            )
    if len(clones) > 1:
        names = ", ".join(clone.name for clone in clones)
        raise InvalidValue(f"the target has several clones of the source: {names}", "Remove all but one.")
    return clones[0] if clones else None


def wait_for(hold: CloneHold, name: str, lsn: Lsn, wait_s: float) -> None:
    """Wait until a clone that is held at an LSN has all changes up to it."""
    deadline = time.monotonic() + wait_s
    while (applied := hold.applied_lsn()) != lsn:
        if time.monotonic() > deadline:
            raise TargetBehind(
                f"clone {name} has changes up to {applied}, and did not reach {lsn} within {wait_s:g} s",
                "Use a larger `--wait`, or wait until the clone has caught up; `tidemark status TARGET` shows its lag.",
            )
        time.sleep(_PAUSE_S)
