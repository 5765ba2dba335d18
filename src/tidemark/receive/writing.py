"""The writer thread, so that a slow disk does not delay the responses to the server.

A fixed number of buffers circulates: the main loop fills a free buffer and passes it to the thread, which returns it
when its frames are in the log. While no buffer is free, nothing is read from the network. Data is synced in groups:
when the oldest unsynced byte has waited for an interval, when there are many unsynced bytes, or on request.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from tidemark.clock import Lsn, Xid8
from tidemark.errors import SourceError
from tidemark.log.writer import NO_ENDPOS, Appended, LogWriter
from tidemark.pgoutput.assembly import Assembler
from tidemark.receive.options import BUFFER_BYTES, BUFFERS
from tidemark.storage.fail_points import ReceiveFailPoint, fail_point
from tidemark.values.kernels import Bytes, read_only


@dataclass(frozen=True, slots=True)
class LogProgress:
    """The progress of the log; `ended` once a commit above endpos has arrived."""

    received: Lsn
    durable: Lsn
    durable_commit: Lsn
    size_bytes: int
    commits: int
    ended: bool


class Writing:
    """The writer thread of a log; its errors are raised by the next call of `check`.

    `refused` is the error for which the rest of this session is not written; a new session must be started.
    """

    def __init__(self, log: LogWriter, sync_interval_s: float, sync_bytes: int, endpos: Lsn | None) -> None:
        self._log = log
        self._sync_interval_s, self._sync_bytes = sync_interval_s, sync_bytes
        self._endpos = endpos or NO_ENDPOS
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._free: queue.SimpleQueue[Bytes] = queue.SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(np.empty(BUFFER_BYTES, np.uint8))
        self._failure: BaseException | None = None
        self.refused: SourceError | None = None
        self._convert: Callable[[Bytes], Bytes] | None = None
        self._ended = False
        self._handed = self._appended = 0
        self._commits = 0
        self._durable_commit = log.last_commit
        self._unsynced_since: float | None = None
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.progress = self._progress()
        self._thread = threading.Thread(target=self._run, name="writing", daemon=True)
        self._thread.start()

    def free_buffer(self) -> Bytes | None:
        """A buffer to fill, or None while all are in use."""
        try:
            return self._free.get_nowait()
        except queue.Empty:
            return None

    def give_back(self, buffer: Bytes) -> None:
        """Return a buffer; one that was enlarged for a single message is replaced with one of the usual size."""
        self._free.put(buffer if len(buffer) == BUFFER_BYTES else np.empty(BUFFER_BYTES, np.uint8))

    @property
    def busy(self) -> bool:
        """Whether frames passed to `append` are not in the log yet."""
        return self._handed > self._appended

    def append(self, buffer: Bytes, used: int, position: Lsn) -> None:
        """Queue frames to be written, with the position that the server sent after them."""
        self._handed += 1
        self._jobs.put(lambda: self._append(buffer, used, position))

    def begin_session(
        self,
        note: bytes,
        xid: Xid8,
        approve: Callable[[bytes], None] | None,
        convert: Callable[[Bytes], Bytes] | None,
    ) -> None:
        """Record a new connection in the log, after all queued frames; returns when it is written.

        `convert`, if given, is applied to the frames of this session before they are written.
        """
        self._wait(lambda: self._log.begin_session(note, xid, approve))
        self.refused, self._convert = None, convert

    def set_xid(self, xid: Xid8) -> None:
        """Queue a current full transaction ID, by which later 32-bit IDs are widened."""
        self._jobs.put(lambda: self._log.set_xid(xid))

    def sync(self) -> None:
        """Queue a sync of all frames queued so far; `progress.durable` advances when it is done."""
        self._jobs.put(self._sync)

    def trim(self, applied: Lsn) -> None:
        """Queue the removal of segments that are not required once everything up to `applied` is in the lake."""
        self._jobs.put(lambda: self._log.trim(applied))

    def finish(self) -> LogProgress:
        """Sync all queued frames, and end the thread; raises its error."""
        self._jobs.put(self._sync)
        self._jobs.put(None)
        self._thread.join()
        self.check()
        return self.progress

    def check(self) -> None:
        """Raise the error of the thread, if there is one."""
        if self._failure is not None:
            raise self._failure

    def clear_wakeup(self) -> None:
        """Reset the eventfd that signals progress."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.wakeup)

    def close(self) -> None:
        """End the thread, in any state, and close the eventfd."""
        self._jobs.put(None)
        self._thread.join()
        os.close(self.wakeup)

    def _wait(self, job: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            try:
                job()
            finally:
                done.set()

        self._jobs.put(run)
        while not done.wait(0.05) and self._failure is None:
            pass
        self.check()

    def _run(self) -> None:
        try:
            Assembler.compile()
            while (job := self._next()) is not None:
                job()
                if self._due():
                    self._sync()
                self.progress = self._progress()
                os.eventfd_write(self.wakeup, 1)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that calls `check`
            self._failure = error
            os.eventfd_write(self.wakeup, 1)

    def _next(self) -> Callable[[], None] | None:
        """The next job; a sync that is due counts as one."""
        while True:
            try:
                return self._jobs.get(timeout=self._sync_in_s())
            except queue.Empty:
                return self._sync

    def _sync_in_s(self) -> float | None:
        if self._unsynced_since is None:
            return None
        return max(0.0, self._unsynced_since + self._sync_interval_s - time.monotonic())

    def _due(self) -> bool:
        return self._log.unsynced_bytes >= self._sync_bytes or self._sync_in_s() == 0.0

    def _append(self, buffer: Bytes, used: int, position: Lsn) -> None:
        if not self._ended and self.refused is None:
            try:
                frames = read_only(buffer[:used])
                if self._convert is not None:
                    frames = self._convert(frames)
                self._count(self._log.append(frames, position, self._endpos))
            except SourceError as error:
                self.refused = error
        self._appended += 1
        self.give_back(buffer)

    def _count(self, appended: Appended) -> None:
        self._ended = appended.ended
        self._commits += len(appended.commits)
        self._unsynced_since = self._unsynced_since or time.monotonic()
        fail_point(ReceiveFailPoint.BLOCK_APPENDED)

    def _sync(self) -> None:
        self._log.sync()
        self._durable_commit = self._log.last_commit
        self._unsynced_since = None
        fail_point(ReceiveFailPoint.SYNCED)

    def _progress(self) -> LogProgress:
        log = self._log
        return LogProgress(
            received=log.received,
            durable=log.durable,
            durable_commit=self._durable_commit,
            size_bytes=log.size_bytes,
            commits=self._commits,
            ended=self._ended,
        )
