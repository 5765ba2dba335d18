"""The main loop of the receiver: connects, checks, streams, and reconnects after a growing pause.

Every connection is checked, not only the first. The server resends transactions that were open when a connection was
lost. An error whose policy is not to retry ends the process.
"""

from __future__ import annotations

import json
import logging
import os
import select
import time
from contextlib import ExitStack
from dataclasses import replace

from tidemark.clock import Lsn
from tidemark.errors import (
    DecodingFailed,
    ObjectInUse,
    Retry,
    SourceError,
    TidemarkError,
    UntranslatableText,
    policy_of,
)
from tidemark.log.disk import Disk
from tidemark.log.mirror import LogMirror, write_mirror
from tidemark.log.recovery import open_log
from tidemark.log.writer import LogLock, LogWriter
from tidemark.logs import fields
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.slot import SlotWait
from tidemark.receive.beginning import mirror_of
from tidemark.receive.checks import CheckedSource, Formats, check_marks, check_not_moved, check_slot, check_source
from tidemark.receive.connection import Plugin, Replication
from tidemark.receive.conversion import Conversion
from tidemark.receive.options import ReceiveOptions
from tidemark.receive.pump import Pump
from tidemark.receive.runtime import ReceiverRuntime, stop_signal
from tidemark.receive.watch import drop_slot_by_policy, stated, warn_not_published
from tidemark.receive.writing import LogProgress
from tidemark.restarts import next_pause_s
from tidemark.storage.fail_points import ReceiveFailPoint, fail_point

PAUSE_S, LONGEST_PAUSE_S = 0.1, 30.0
DECODING_ATTEMPTS = 4
_LOGGER = logging.getLogger("tidemark.receive")
_SETTINGS = "select name, setting::int from pg_settings where name in ('wal_segment_size', 'wal_sender_timeout')"


class Receiver:
    """The receiver of one mirror; `stop` may be called from a signal handler."""

    def __init__(self, options: ReceiveOptions, parent: int | None = None) -> None:
        self._options = options
        self._parent = parent
        self._disk = Disk()
        self._stopping = stop_signal()
        self._runtime: ReceiverRuntime | None = None
        self._mirror: LogMirror
        self._in_use_since: float | None = None
        self._undecoded = 0
        self._met: set[int] = set()
        self._as_stored = False

    def stop(self) -> None:
        """Make `run` end normally, as soon as possible."""
        os.eventfd_write(self._stopping, 1)

    @property
    def progress(self) -> LogProgress | None:
        """The progress of the writer thread, or None before the log is open."""
        return self._runtime.progress if self._runtime is not None else None

    def run(self) -> Lsn:
        """Receive until endpos or until stopped; returns the LSN up to which everything is durable."""
        with self._opened() as log:
            extra = fields(lsn=log.received, limit_bytes=self._options.wal_limit_bytes)
            _LOGGER.info("received LSN %s; %s", log.received, stated(self._options), extra=extra)
            runtime = self._runtime = ReceiverRuntime(self._options, log, self._stopping, self._parent)
            try:
                self._follow(runtime)
                return self._finished(runtime)
            except TidemarkError as error:
                drop_slot_by_policy(self._options, error)
                raise
            finally:
                runtime.close()

    def _opened(self) -> LogWriter:
        """Open the log, and create the slot on the first start, for which the lock is already held."""
        folder, disk = self._options.folder, self._disk
        disk.make_folder(folder)
        lock = LogLock(folder)
        try:
            wait = SlotWait(self._options.slot_wait_s, self._is_stopping)
            self._mirror = mirror_of(self._options, disk, wait)
        except BaseException:
            lock.release()
            raise
        start, first = self._mirror.start or Lsn.ZERO, self._mirror.segment
        return open_log(folder, start, disk, self._options.segment_bytes, lock=lock, first=first)

    def _is_stopping(self) -> bool:
        """Whether `stop` was called or the parent has ended."""
        poll = select.poll()
        poll.register(self._stopping, select.POLLIN)
        if self._parent is not None:
            poll.register(self._parent, 0)
        return bool(poll.poll(0))

    def _finished(self, runtime: ReceiverRuntime) -> Lsn:
        progress, endpos = runtime.writing.finish(), self._options.endpos
        fail_point(ReceiveFailPoint.ENDED)
        if endpos is None or runtime.stopped:
            return progress.durable
        self._become(replace(self._mirror, complete=max(endpos, self._mirror.complete)))
        return endpos

    def _become(self, mirror: LogMirror) -> None:
        self._mirror = mirror
        write_mirror(self._options.folder, self._disk, mirror)

    def _follow(self, runtime: ReceiverRuntime) -> None:
        pause_s = 0.0
        while not runtime.ended():
            before = runtime.position
            try:
                self._stream(runtime)
            except UntranslatableText as error:
                if self._as_stored:
                    raise
                self._as_stored = True
                _LOGGER.warning("%s; texts are received unconverted", " ".join(error.message.split()))
            except SourceError as error:
                advanced = runtime.position > before
                if not self._may_succeed(error, advanced=advanced):
                    raise
                pause_s = next_pause_s(0.0 if advanced else pause_s, PAUSE_S, LONGEST_PAUSE_S)
                runtime.enter(f"waiting: {' '.join(error.message.split())}; retrying in {pause_s:g} s")
                fail_point(ReceiveFailPoint.CONNECTION_LOST)
                runtime.pause(pause_s)

    def _may_succeed(self, error: SourceError, *, advanced: bool) -> bool:
        """Whether another connection may succeed after this error.

        A new session of the server has empty caches, so it may decode what the last one could not. If a file is
        damaged or missing, or the snapshot from which the slot starts is wrong, every session fails at that change.
        """
        if isinstance(error, DecodingFailed):
            self._undecoded = 1 if advanced else self._undecoded + 1
            return self._undecoded < DECODING_ATTEMPTS
        return policy_of(error).retry is Retry.BACK_OFF and not self._in_use_too_long(error)

    def _in_use_too_long(self, error: SourceError) -> bool:
        """Whether the slot has been in use for longer than `in_use_patience_s`.

        The receiver's own last connection may use the slot for a while; another client may use it indefinitely.
        """
        if not isinstance(error, ObjectInUse):
            self._in_use_since = None
            return False
        self._in_use_since = self._in_use_since or time.monotonic()
        return time.monotonic() - self._in_use_since > self._options.in_use_patience_s

    def _stream(self, runtime: ReceiverRuntime) -> None:
        """Check the source, and stream over one connection until its end."""
        mirror, source = self._mirror, self._checked(runtime, self._mirror)
        if (source.identity, source.marks) != (mirror.identity, mirror.marks):
            for lost in sorted(set(mirror.marks) - set(source.marks)):
                warn_not_published(lost)
            self._become(replace(mirror, identity=source.identity, marks=source.marks))
        runtime.watch.marks = source.marks
        runtime.keep_marks = lambda marks: self._become(replace(self._mirror, marks=marks))
        formats = Formats(source.types, self._met)
        binary = self._options.binary and source.all_binary and formats.all_binary() and not self._as_stored
        streaming = self._options.streaming and not self._as_stored
        plugin = Plugin(source.publications, streaming, binary, self._as_stored)
        note = {"at": time.time(), "timeline": source.identity.timeline, "options": dict(plugin.options())}
        with ExitStack() as opened:
            conversion = self._conversion(opened)
            runtime.writing.begin_session(
                json.dumps(note).encode(),
                source.xid,
                formats.approve if binary else None,
                conversion.frames if conversion is not None else None,
            )
            fail_point(ReceiveFailPoint.SESSION_BEGUN)
            timeouts = Timeouts(statement_s=0)
            session = opened.enter_context(Session.open(self._options.source, "receive", timeouts, replication=True))
            slot, silence_s = self._options.names.slot, self._options.silence_s
            replication = Replication(session, slot, runtime.position, plugin, silence_s)
            fail_point(ReceiveFailPoint.STREAM_STARTED)
            form = "binary" if plugin.binary else "text"
            _LOGGER.info("streaming from %s, %s", runtime.position, form, extra=fields(lsn=runtime.position, form=form))
            self._in_use_since = None
            with Session.open(self._options.source, "check") as check:
                check_not_moved(check, self._options.names, runtime.position)
            begun_at = runtime.progress.durable_commit

            def is_over() -> bool:
                """Whether the server can convert texts again.

                That is so if the change that it could not convert is in the log, and no other occurred for a while.
                """
                if conversion is None or conversion.idle_s() < self._options.as_stored_s:
                    return False
                self._as_stored = runtime.progress.durable_commit <= begun_at
                return not self._as_stored

            pump = Pump(runtime, replication, is_over)
            try:
                pump.run()
                pump.finish()
            finally:
                pump.close()

    def _conversion(self, opened: ExitStack) -> Conversion | None:
        """The conversion for the texts of the next stream, or None if the server converts them."""
        if not self._as_stored:
            return None
        return Conversion(opened.enter_context(Session.open(self._options.source, "convert")))

    def _checked(self, runtime: ReceiverRuntime, mirror: LogMirror) -> CheckedSource:
        options, position = self._options, runtime.position
        with Session.open(options.source, "check") as session:
            source = check_source(session, options.source, options.names, mirror.identity, position)
            if not options.accept_altered_publication:
                check_marks(session, options.names, mirror.marks)
            check_slot(session, options.names, position)
            settings = dict(session.rows(_SETTINGS))
        runtime.control.wal_segment_bytes = settings["wal_segment_size"]
        runtime.limit_status_interval(settings["wal_sender_timeout"] / 1000)
        return source
