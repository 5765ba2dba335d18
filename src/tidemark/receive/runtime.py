"""The parts of the receiver that exist across connections: writer, monitoring and archive thread, control socket.

`ReceiverRuntime.wait` polls for all events together: the stream, the disk, clients, a stop signal and the parent's end.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable, Mapping

from tidemark.clock import Lsn
from tidemark.log.archive import parse_archive
from tidemark.log.writer import LogWriter
from tidemark.logs import fields
from tidemark.receive.archiving import Archiving
from tidemark.receive.control import Control, page_start
from tidemark.receive.options import ReceiveOptions
from tidemark.receive.watch import Watch
from tidemark.receive.writing import LogProgress, Writing

IDLE_S = 1.0
_LOGGER = logging.getLogger("tidemark.receive")


class ReceiverRuntime:
    """The long-lived parts of the receiver, and the state that clients get: one keyword, and a reason after a colon."""

    def __init__(self, options: ReceiveOptions, log: LogWriter, stopping: int, parent: int | None) -> None:
        self.options = options
        self.stopped = False
        self.report_every_s = options.status_interval_s
        self.writing = Writing(log, options.sync_interval_s, options.sync_bytes, options.endpos)
        self.watch = Watch(options)
        self.control = Control(options.folder, self.watch.nudge)
        self._archiving = Archiving(log, parse_archive(options.archive)) if options.archive is not None else None
        self._stopping = stopping
        self._parent = parent
        self._state = "connecting"
        self._applied: Lsn | None = None
        self.keep_marks: Callable[[Mapping[str, str]], None] = lambda _: None

    @property
    def progress(self) -> LogProgress:
        """The progress of the writer thread."""
        return self.writing.progress

    @property
    def position(self) -> Lsn:
        """The received LSN, from which the next stream starts."""
        return self.writing.progress.received

    def ended(self) -> bool:
        """Whether the receiver was stopped or has reached endpos."""
        return self.stopped or self.progress.ended or self._at_endpos()

    def _at_endpos(self) -> bool:
        endpos, segment_bytes = self.options.endpos, self.control.wal_segment_bytes
        return endpos is not None and self.progress.received >= page_start(endpos, segment_bytes)

    def limit_status_interval(self, server_timeout_s: float) -> None:
        """Set the interval of status updates to at most a third of `wal_sender_timeout`.

        While the receiver does not read, it does not receive the server's reply requests, and must not time out.
        """
        wish_s = self.options.status_interval_s
        self.report_every_s = min(wish_s, server_timeout_s / 3) if server_timeout_s else wish_s

    def enter(self, state: str) -> None:
        """Set the state; a changed state is logged, as a warning unless it is streaming."""
        if state != self._state:
            self._state = state
            keyword, _, reason = state.partition(": ")
            level = logging.WARNING if reason else logging.INFO
            _LOGGER.log(level, "%s", state, extra=fields(state=keyword, reason=reason or None))

    def require_sound(self) -> None:
        """Raise the error of another thread, and take over the values of the monitoring thread."""
        self.writing.check()
        if self.watch.failure is not None:
            raise self.watch.failure
        if self.watch.renewed is not None:
            renewed, self.watch.renewed = self.watch.renewed, None
            self.keep_marks(renewed)
        if self.watch.xid is not None:
            self.writing.set_xid(self.watch.xid)
            self.watch.xid = None

    def pause(self, pause_s: float) -> None:
        """Wait for `pause_s`, or until stopped, and serve clients meanwhile."""
        end = time.monotonic() + pause_s
        while not self.stopped and (left_s := end - time.monotonic()) > 0:
            self.require_sound()
            self.wait(None, 0, left_s)

    def wait(self, stream: int | None, wanted: int, limit_s: float = IDLE_S) -> int:
        """Wait for events and handle them, except for those of the stream, which are returned."""
        self._carry_out_wishes()
        again_s = self._settle()
        poll = select.poll()
        poll.register(self._stopping, select.POLLIN)
        poll.register(self.writing.wakeup, select.POLLIN)
        for descriptor, events in self.control.watched().items():
            poll.register(descriptor, events)
        if self._parent is not None:
            poll.register(self._parent, 0)  # POLLERR is reported once the pipe has no reader
        if stream is not None:
            poll.register(stream, wanted)
        if stream is not None and self.control.wishes.reply:
            limit_s = 0.0  # the caller sends it after this returns
        limit_s = limit_s if again_s is None else min(limit_s, again_s)
        happened = dict(poll.poll(1000 * limit_s))
        self.stopped = self.stopped or self._stopping in happened or self._parent in happened
        if self.writing.wakeup in happened:
            self.writing.clear_wakeup()
        for descriptor in happened:
            self.control.serve(descriptor)
        self._settle()
        return happened.get(stream, 0) if stream is not None else 0

    def close(self) -> None:
        """Close the control socket and end the threads."""
        self.control.close()
        if self._archiving is not None:
            self._archiving.close()
        self.watch.close()
        self.writing.close()

    def _settle(self) -> float | None:
        return self.control.settle(self.progress, self._state, self.watch.nudged)

    def _carry_out_wishes(self) -> None:
        wishes = self.control.wishes
        if wishes.sync:
            wishes.sync = False
            self.writing.sync()
        if wishes.applied is not None:
            self._applied, needed = wishes.applied
            wishes.applied = None
            self.writing.trim(min(self._applied, needed))
        if self.is_full and self._applied is not None:
            self.writing.trim(self._applied)
            self._applied = None

    @property
    def is_full(self) -> bool:
        """Whether the log has reached its budget."""
        return self.progress.size_bytes >= self.options.budget_bytes


def stop_signal() -> int:
    """An eventfd that a signal handler may write to."""
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
