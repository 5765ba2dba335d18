"""Reports the state and the progress of a pipeline, as events among those of its parts."""

from __future__ import annotations

import time
from collections import deque

from tidemark.clock import Lsn
from tidemark.lake.pipeline_state import Copies, State, TableCopyProgress
from tidemark.pipeline.copy.progress import CopyProgress
from tidemark.pipeline.events import (
    CycleApplied,
    Emit,
    PollApplied,
    StateChanged,
    SyncEvent,
    SyncProgress,
    TableFolded,
)
from tidemark.pipeline.logical import Lag, LogicalReplication

PROGRESS_S = 0.2
BEHIND_BYTES = 256 << 20  # of WAL: the lake falls behind
RATE_S = 10.0  # the interval over which changes per second are averaged


class Reporter:
    """Forwards events, and adds those about state and progress."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._state: State | None = None
        self._goal: Lsn | None = None
        self._next = 0.0
        self._begin = time.monotonic()
        self._changes: deque[tuple[float, int]] = deque()
        self._fold: tuple[TableFolded, float] | None = None

    def emit(self, event: SyncEvent) -> None:
        """Forward an event."""
        if isinstance(event, TableFolded):
            self._fold = event, time.monotonic()
        elif isinstance(event, (CycleApplied, PollApplied)):
            self._changes.append((time.monotonic(), event.changes))
        self._emit(event)

    def enter(self, state: State) -> None:
        """Change the state."""
        if state is not self._state:
            self._state = state
            self._emit(StateChanged(state))

    def stream(self, replication: LogicalReplication, *, now: bool = False, is_paused: bool = False) -> None:
        """Report the progress of a pipeline that follows the stream."""
        if not now and time.monotonic() < self._next:
            return
        lag = replication.lag
        if lag.applied_lsn == Lsn.ZERO:  # the first cycle has not been applied yet
            return
        if is_paused:
            self.enter(State.PAUSED)
        elif replication.copies > len(replication.unable):
            self.enter(State.COPYING)
        elif replication.settled or self._state is not State.STARTING:  # otherwise tables may still need a copy
            self.enter(self._following(lag))
        copies = _copies(replication.progress)
        self._progress(copies, lag.applied_lsn, lag.received_lsn, lag.source_lsn, lag.lag_bytes, lag.lag_s)

    def _following(self, lag: Lag) -> State:
        """Return whether it follows, or still catches up with where the source was when it fell behind."""
        if self._state in (State.STARTING, State.COPYING, State.PAUSED) or lag.lag_bytes > BEHIND_BYTES:
            self._goal = self._goal or lag.source_lsn
        if self._goal is not None and lag.applied_lsn >= self._goal:
            self._goal = None
        return State.FOLLOWING if self._goal is None else State.CATCHING_UP

    def polls(self, lsn: Lsn, progress: CopyProgress) -> None:
        """Report the progress of a pipeline that polls."""
        self._progress(_copies(progress), lsn, None, None, None, None)

    def clone(self, progress: CopyProgress, applied: Lsn, received: Lsn | None, changes: int = 0) -> None:
        """Report the progress of a clone, and the number of changes that were applied since the last report."""
        if changes:
            self._changes.append((time.monotonic(), changes))
        if time.monotonic() >= self._next:
            lag_bytes = max(0, received - applied) if received is not None else None
            self._progress(_copies(progress), applied, received, None, lag_bytes, None)

    def _progress(
        self,
        copies: Copies,
        applied: Lsn,
        received: Lsn | None,
        source: Lsn | None,
        lag_bytes: int | None,
        lag_s: float | None,
    ) -> None:
        now = time.monotonic()
        self._next = now + PROGRESS_S
        fold, folded_at = self._fold or (None, now)
        self._emit(
            SyncProgress(
                self._state or State.STARTING,
                applied,
                received,
                source,
                lag_bytes,
                lag_s,
                self._rate(now),
                copies,
                fold,
                now - folded_at if fold is not None else None,
            )
        )

    def _rate(self, now: float) -> float:
        while self._changes and self._changes[0][0] < now - RATE_S:
            self._changes.popleft()
        return sum(changes for _, changes in list(self._changes)) / max(1.0, min(RATE_S, now - self._begin))


def _copies(progress: CopyProgress) -> Copies:
    total = progress.total()
    tables = tuple(
        TableCopyProgress(table.name, table.state, table.size_bytes, table.copied_bytes, table.rows)
        for table in progress.tables()
        if table.state != "copied"
    )
    return Copies(
        total.tables,
        total.done,
        total.size_bytes,
        total.copied_bytes,
        total.rows,
        total.rate,
        total.left_s,
        tables,
    )
