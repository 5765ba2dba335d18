"""Supervision of a receiver by the process that uses its log: started, restarted if it was killed, and undone.

A receiver that ends with an error that may be temporary, such as a slot that another session uses, is restarted too. A
first start that fails drops the slot that it created at the source, so that it retains no WAL.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tidemark.errors import LogInUse, ReceiveFailed, Retry, Stopped, TidemarkError, policy_of
from tidemark.log.archive import NAME as ARCHIVED
from tidemark.log.disk import Disk
from tidemark.log.emptying import empty_log
from tidemark.log.mirror import NAME as MIRROR_FILE
from tidemark.log.mirror import read_mirror
from tidemark.log.writer import LogLock
from tidemark.logs import fields
from tidemark.postgres.session import Session
from tidemark.postgres.slot import drop_slot_when_free
from tidemark.receive.options import ReceiveOptions
from tidemark.receive.process import ReceiveProcess
from tidemark.restarts import Restarts
from tidemark.units import format_duration

ORPHAN_S = 15.0  # within this time the receiver of a killed parent detects that and stops
_BEGIN_S, _ORPHAN_PAUSE_S = 0.05, 0.5
_LOGGER = logging.getLogger("tidemark.receive")


class Receiving:
    """A receiver that runs until `close`. `ended` is true when it has received everything up to its `endpos`.

    If the first start of a log ends with an error before `keep`, its slot and its log are removed.
    """

    def __init__(self, options: ReceiveOptions, stopping: Callable[[], bool] = lambda: False) -> None:
        self._options, self._stopping = options, stopping
        self.ended = False
        self._restarts, self._start_at = Restarts(), 0.0
        self._is_counted = False
        self._patient_until = time.monotonic() + ORPHAN_S
        self._is_first = not has_begun(options.folder)
        with ExitStack() as held:
            held.push(self._undo)
            self._process = ReceiveProcess.start(options)
            held.callback(lambda: self._process.close())
            self._wait_for_log()
            self._held = held.pop_all()

    @property
    def pid(self) -> int:
        """The process ID of the receiver."""
        return self._process.process.pid

    def check(self) -> None:
        """Restart the receiver if it was killed or may succeed now; if it ended with another error, raise that."""
        if self.ended or self._process.process.poll() is None:
            return
        if self._is_counted and time.monotonic() < self._start_at:
            return
        try:
            self._process.wait()
            self.ended = self._options.endpos is not None
        except LogInUse as error:
            if time.monotonic() > self._patient_until:
                raise
            _LOGGER.info("%s; waiting for that process to end", error.message)
            time.sleep(_ORPHAN_PAUSE_S)
        except TidemarkError as error:
            if not self._is_counted:
                self._count(error)
                return
        if not self.ended:
            self._process.close()
            self._process = ReceiveProcess.start(self._options)
            self._is_counted = False

    def _count(self, error: TidemarkError) -> None:
        """Count the end of this receiver, and raise its error unless another one is to be started after a pause.

        A first start reports a temporary error at once.
        """
        temporary = policy_of(error).retry is not Retry.NEVER and has_begun(self._options.folder)
        now = time.monotonic()
        pause_s = self._restarts.failed(now) if temporary or isinstance(error, ReceiveFailed) else None
        if pause_s is None:
            raise error
        self._start_at, self._is_counted = now + pause_s, True
        _LOGGER.warning("%s; restarting the receiver in %s", error.message, format_duration(pause_s))

    def keep(self) -> None:
        """Keep the slot and the log from now on, also if this ends with an error."""
        self._is_first = False

    def kill(self) -> None:
        """Kill the receiver, as a power failure would; the next check starts another one."""
        self._process.kill()
        self._start_at, self._is_counted = 0.0, True

    def stop(self) -> None:
        """Have the receiver end normally; returns at once."""
        self._process.stop()

    def close(self) -> None:
        """Kill the receiver if it is still running."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.__exit__(kind, error, trace)

    def _wait_for_log(self) -> None:
        """Wait until the receiver has created a log, or raise its error."""
        while not has_begun(self._options.folder):
            if self._stopping():
                self._process.stop()
                with suppress(TidemarkError):  # it may be stopped before it can report
                    self._process.wait()
                raise Stopped("stopped before replication started; no slot is left at the source")
            self.check()
            time.sleep(_BEGIN_S)

    def _undo(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        """Drop the slot and remove the log of a first start that failed, unless another process uses the log."""
        log, disk = self._options.folder, Disk()
        if not self._is_first or not isinstance(error, Exception) or not log.exists():
            return
        try:
            lock = LogLock(log)
        except LogInUse:
            return
        try:
            mirror = read_mirror(log, disk)
            if mirror is not None:
                with Session.open(self._options.source, "undo") as session:
                    drop_slot_when_free(session, self._options.names.slot)
                empty_log(log, disk, mirror.identity, mirror.name)
                (log / ARCHIVED).unlink(missing_ok=True)
                disk.remove(log / MIRROR_FILE)
        except TidemarkError as failure:
            slot = self._options.names.slot
            _LOGGER.warning("could not drop replication slot %s: %s", slot, failure.message, extra=fields(slot=slot))
        finally:
            lock.release()


def has_begun(log: Path) -> bool:
    """Whether a log exists and its slot was created."""
    mirror = read_mirror(log, Disk()) if log.exists() else None
    return mirror is not None and mirror.start is not None
