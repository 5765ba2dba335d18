"""The thread that writes: so that a slow disk keeps nobody from answering the server.

Buffers go round: the one who drains takes a free one, hands it over full, and gets it back when its frames are in the
log. There are so many and no more; when all are on their way, nothing is read from the network. Syncing is done in
groups: when the oldest unsynced byte has waited for an interval, when there are many, or when someone asks.
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
from tidemark.receive.options import BUFFER_BYTES, BUFFERS
from tidemark.receive.points import Point, reached
from tidemark.values.kernels import Bytes, read_only


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the log has come; `ended` once a commit above endpos was met."""

    received: Lsn
    durable: Lsn
    durable_commit: Lsn
    size_bytes: int
    commits: int
    ended: bool


class Writing:
    """One thread on one log. What goes wrong in it is raised by the next call of `check`.

    `refused` is why nothing more of this session is written: it must be begun anew.
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
        """A buffer to fill, or None while all are on their way."""
        try:
            return self._free.get_nowait()
        except queue.Empty:
            return None

    def give_back(self, buffer: Bytes) -> None:
        """A buffer that was not needed; one that was made larger for one message is let go."""
        self._free.put(buffer if len(buffer) == BUFFER_BYTES else np.empty(BUFFER_BYTES, np.uint8))

    @property
    def busy(self) -> bool:
        """Whether frames that were handed over are not in the log yet."""
        return self._handed > self._appended

    def append(self, buffer: Bytes, used: int, position: Lsn) -> None:
        """Have frames written, and the position that was named after them."""
        self._handed += 1
        self._jobs.put(lambda: self._append(buffer, used, position))

    def begin_session(
        self,
        note: bytes,
        xid: Xid8,
        approve: Callable[[bytes], None] | None,
        convert: Callable[[Bytes], Bytes] | None,
    ) -> None:
        """Record a new connection in the log, after all that was handed over. `convert` changes its frames."""
        self._wait(lambda: self._log.begin_session(note, xid, approve))
        self.refused, self._convert = None, convert

    def know(self, xid: Xid8) -> None:
        """Have transaction ids widened by this one."""
        self._jobs.put(lambda: self._log.know(xid))

    def sync(self) -> None:
        """Have all that was handed over synced; `progress.durable` says when."""
        self._jobs.put(self._sync)

    def trim(self, applied: Lsn) -> None:
        """Have the segments removed that nobody needs."""
        self._jobs.put(lambda: self._log.trim(applied))

    def finish(self) -> Progress:
        """Sync what was handed over, and end the thread."""
        self._jobs.put(self._sync)
        self._jobs.put(None)
        self._thread.join()
        self.check()
        return self.progress

    def check(self) -> None:
        """Raise what went wrong."""
        if self._failure is not None:
            raise self._failure

    def clear_wakeup(self) -> None:
        """Say that the news was heard."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.wakeup)

    def close(self) -> None:
        """Let go of everything, whatever state it is in."""
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
            while (job := self._next()) is not None:
                job()
                if self._due():
                    self._sync()
                self.progress = self._progress()
                os.eventfd_write(self.wakeup, 1)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that asks
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
        reached(Point.BLOCK_APPENDED)

    def _sync(self) -> None:
        self._log.sync()
        self._durable_commit = self._log.last_commit
        self._unsynced_since = None
        reached(Point.SYNCED)

    def _progress(self) -> Progress:
        log = self._log
        return Progress(
            received=log.received,
            durable=log.durable,
            durable_commit=self._durable_commit,
            size_bytes=log.size_bytes,
            commits=self._commits,
            ended=self._ended,
        )
