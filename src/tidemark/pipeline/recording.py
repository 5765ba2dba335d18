"""Records the state of a pipeline in its lake, for `tidemark status` and for monitoring."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from tidemark.errors import Stopped, TidemarkError
from tidemark.lake.controls import forget_stop_at_once
from tidemark.lake.lake import Lake
from tidemark.lake.pipeline_state import LOCK, NAME, Failure, PipelineState, SlotUse, State, read_pipeline_state
from tidemark.logs import ROOT, current_mirror
from tidemark.pipeline.events import StateChanged, SyncEnded, SyncEvent, SyncProgress
from tidemark.storage import open_storage
from tidemark.storage.interface import StorageLock

HEARTBEAT_S = 5.0


class StateRecord:
    """Keeps the record of a lake up to date until the context ends; an exception that ends it is recorded too.

    Nothing is written while another pipeline has the lake, nor before the lake exists. Warnings that are logged, such
    as those of a failed fold or a lost connection, become the last error.
    """

    def __init__(self, lake: Path) -> None:
        self._lake, self._storage = lake, open_storage(lake)
        self._guard = threading.RLock()
        self._claim: StorageLock | None = None
        self._warnings = _Warnings(self)
        now = datetime.now(UTC)
        self._state = PipelineState(State.STARTING, now, now)
        self._written_at = float("-inf")

    def take(self, event: SyncEvent) -> None:
        """Record the content of an event; can be called from any thread."""
        if isinstance(event, StateChanged):
            self._enter(event.state)
        elif isinstance(event, SyncProgress):
            self._update(
                applied_lsn=event.applied_lsn,
                received_lsn=event.received_lsn,
                source_lsn=event.source_lsn,
                lag_bytes=event.lag_bytes,
                lag_s=event.lag_s,
                changes_per_s=event.changes_per_s,
                copies=None if event.copies.are_complete else event.copies,
            )
        elif isinstance(event, SyncEnded):
            self._update(applied_lsn=event.lsn, lag_bytes=event.lag_bytes)

    def use(self, slot: SlotUse | None) -> None:
        """Record the use of the slot."""
        self._update(slot=slot)

    def failed(self, message: str, hint: str = "") -> None:
        """Record an error or a warning."""
        with self._guard:
            last, now = self._state.last_error, datetime.now(UTC)
            count = last.count + 1 if last is not None and last.message == message else 1
            self._state = replace(self._state, last_error=Failure(message, hint, now, count))
            self._write()

    def _enter(self, state: State) -> None:
        with self._guard:
            if state is not self._state.state:
                self._state = replace(self._state, state=state, since=datetime.now(UTC))
                self._write()

    def _update(self, **values: object) -> None:
        with self._guard:
            self._state = replace(self._state, **values)  # type: ignore[arg-type]
            if time.monotonic() >= self._written_at + HEARTBEAT_S:
                self._write()

    def _write(self) -> None:
        """Write the record. An error is ignored: if the lake cannot be written, apply and copy report it."""
        if not self._is_ours():
            return
        self._written_at = time.monotonic()
        self._state = replace(self._state, reported_at=datetime.now(UTC))
        with suppress(TidemarkError):
            self._state.write(self._lake)

    def _is_ours(self) -> bool:
        """Return whether this pipeline has the lock; take it once the lake exists, with the last error recorded."""
        if self._claim is None and Lake.exists(self._lake):
            self._claim = self._storage.lock(LOCK)
            if self._claim is not None:
                forget_stop_at_once(self._lake)
                with suppress(TidemarkError):
                    self._storage.remove_unfinished(NAME)
                    before = read_pipeline_state(self._lake)
                    if before is not None and self._state.last_error is None:
                        self._state = replace(self._state, last_error=before.last_error)
        return self._claim is not None

    def __enter__(self) -> Self:
        logging.getLogger(ROOT).addHandler(self._warnings)
        with self._guard:
            self._write()
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        logging.getLogger(ROOT).removeHandler(self._warnings)
        with self._guard:
            if isinstance(error, Exception) and not isinstance(error, Stopped):
                message, hint = _message_and_hint(error)
                self.failed(message, hint)
                self._enter(State.FAILED)
            else:
                self._enter(State.STOPPED)
            if self._claim is not None:
                self._claim.close()


class _Warnings(logging.Handler):
    def __init__(self, record: StateRecord) -> None:
        super().__init__(logging.WARNING)
        self._record, self._mirror = record, current_mirror()

    def emit(self, record: logging.LogRecord) -> None:
        """Record a warning as the last error, unless it is about another mirror."""
        if current_mirror() == self._mirror:
            self._record.failed(record.getMessage())


def _message_and_hint(error: Exception) -> tuple[str, str]:
    if isinstance(error, TidemarkError):
        return error.message, error.hint
    return f"unexpected {type(error).__name__}", ""
