"""One stream: passes messages from the source to the writer thread, and reports the flushed LSN to the source.

It never waits for the disk. While a block is being written, the next one is filled, so blocks are small under low load
and large under high load. If no buffer is free, or the log has reached its budget, nothing is read, and the source
waits.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from tidemark.clock import Lsn
from tidemark.errors import SourceError
from tidemark.receive.connection import Replication
from tidemark.receive.drain import Dry
from tidemark.receive.runtime import IDLE_S, ReceiverRuntime
from tidemark.storage.fail_points import ReceiveFailPoint, fail_point
from tidemark.units import format_size
from tidemark.values.kernels import Bytes

# A receiver that waits in poll is woken by every message, which costs CPU time on the server too. So the receiver
# sleeps for short intervals while data arrives, longer ones at high rates (docs/decisions/008-receiver.md).
FIRST_NAP_S, NAP_S, BULK_NAP_S = 0.0003, 0.001, 0.006
NAPS, BULK_BYTES_PER_S = 4, 8 << 20
BLOCK_BYTES = 512 << 10  # a block of this size is written, even if more data is arriving


class Pump:
    """Processes one stream from its start to its end."""

    def __init__(
        self, runtime: ReceiverRuntime, replication: Replication, is_over: Callable[[], bool] = lambda: False
    ) -> None:
        self._runtime = runtime
        self._replication = replication
        self._is_over = is_over
        self._buffer: Bytes | None = None
        self._used = 0
        self._handed = self._confirmed = Lsn.ZERO
        self._unread = True  # libpq may have buffered messages at the start, which cause no poll event

    def run(self) -> None:
        """Run until the receiver is stopped, endpos is reached or `is_over` returns true.

        Raises the error that ended the stream, or for which the writer refused a block.
        """
        runtime, replication = self._runtime, self._replication
        while not runtime.ended() and not self._is_over():
            runtime.require_sound()
            if runtime.writing.refused is not None:
                raise runtime.writing.refused
            readable = not self._holding()
            wanted = replication.wants if readable else replication.wants & ~select.POLLIN
            limit_s = 0.0 if readable and self._unread else min(IDLE_S, runtime.report_every_s)
            events = runtime.wait(replication.socket if wanted else None, wanted, limit_s)
            if readable and (self._unread or events & (select.POLLIN | select.POLLHUP | select.POLLERR)):
                self._take()
            else:
                self._hand_over()
            if events & select.POLLOUT:
                replication.flush()
                self._unread = True  # libpq may have read messages while it could not send
            self._report()

    def close(self) -> None:
        """Release the buffer and the memory of libpq, after a normal end or an error."""
        self._replication.drain.close()
        if self._buffer is not None:
            self._runtime.writing.give_back(self._buffer)
            self._buffer = None

    def finish(self) -> None:
        """End normally: sync the log, report the flushed LSN to the source, and end the stream."""
        runtime = self._runtime
        runtime.writing.sync()
        deadline = time.monotonic() + runtime.options.silence_s
        while runtime.progress.durable < runtime.progress.received and time.monotonic() < deadline:
            runtime.writing.check()
            time.sleep(0.002)
        with suppress(SourceError):
            self._replication.report(runtime.progress.received, self._durable())
        self._replication.finish()

    def _holding(self) -> bool:
        """Whether reading must pause, because the log has reached its budget or no buffer is free.

        Otherwise a buffer is ready when this returns.
        """
        runtime, budget = self._runtime, format_size(self._runtime.options.budget_bytes)
        full = runtime.is_full
        runtime.enter(f"paused: the log has reached its budget of {budget}" if full else "streaming")
        if not full and self._buffer is None:
            self._buffer = runtime.writing.free_buffer()
        if not full and self._buffer is not None:
            return False
        self._replication.reset_silence()
        return True

    def _take(self) -> None:
        """Read what has arrived and arrives during short sleeps, until nothing arrives or the block is large enough."""
        why, nap_s = self._read(), FIRST_NAP_S
        for _ in range(NAPS):
            if why is not Dry.DRY or self._used >= BLOCK_BYTES:
                break
            before = self._used
            time.sleep(nap_s)
            why = self._read()
            if self._used == before:
                break
            nap_s = BULK_NAP_S if self._used - before > nap_s * BULK_BYTES_PER_S else NAP_S
        if why is Dry.FULL and self._used == 0:
            # `Writing.give_back` replaces it with a buffer of the usual size.
            self._buffer = np.empty(self._replication.drain.waiting_bytes, np.uint8)
            return
        self._hand_over(at_once=why is not Dry.DRY)
        if why is Dry.ENDED:
            raise self._replication.ended()

    def _read(self) -> Dry:
        assert self._buffer is not None  # noqa: S101 - `_holding` has set it
        why, self._used = self._replication.read(self._buffer, self._used)
        self._unread = why is Dry.FULL
        return why

    def _hand_over(self, *, at_once: bool = False) -> None:
        """Pass the data read so far to the writer thread, as one block.

        While the thread is busy, the block continues to grow unless `at_once` is set.
        """
        position, writing = Lsn(self._replication.drain.position), self._runtime.writing
        nothing = self._used == 0 and position <= self._handed
        if self._buffer is None or nothing or (writing.busy and not at_once):
            return
        writing.append(self._buffer, self._used, position)
        self._buffer, self._used, self._handed = None, 0, position

    def _report(self) -> None:
        """Report the flushed LSN to the server when it has advanced, on request, and at regular intervals."""
        replication, options = self._replication, self._runtime.options
        wishes, durable = self._runtime.control.wishes, self._durable()
        silent = replication.silent_for_s() > options.silence_s / 2
        due_s = min(self._runtime.report_every_s, 1.0) if silent else self._runtime.report_every_s
        asked = replication.drain.take_reply_wish()
        if durable > self._confirmed or asked or wishes.reply or replication.since_sent_s() >= due_s:
            replication.report(self._runtime.progress.received, durable, wants_reply=wishes.reply or silent)
            wishes.reply = False
            if durable > self._confirmed:
                self._confirmed = durable
                fail_point(ReceiveFailPoint.CONFIRMED)
        replication.require_alive()

    def _durable(self) -> Lsn:
        """The flushed LSN to confirm: the end of a commit, or a position that the server sent; never endpos itself."""
        progress, endpos = self._runtime.progress, self._runtime.options.endpos
        return progress.durable if endpos is None or progress.durable < endpos else progress.durable_commit
