"""The archive thread of the receiver: stores each segment once it is closed, so that it may be removed.

A failure is logged and retried. Until then the segment stays in the log, which can reach its budget; receiving then
pauses, and the source retains WAL. Nothing is lost.
"""

from __future__ import annotations

import logging
import threading

from tidemark.errors import TidemarkError
from tidemark.log.archive import Archive, read_archived, store_segment, unarchived
from tidemark.log.disk import Disk
from tidemark.log.writer import LogWriter
from tidemark.logs import fields
from tidemark.restarts import next_pause_s
from tidemark.storage.fail_points import ReceiveFailPoint, fail_point
from tidemark.units import format_duration

INTERVAL_S, RETRY_S, LONGEST_RETRY_S = 0.5, 1.0, 60.0
_LOGGER = logging.getLogger("tidemark.receive")


class Archiving:
    """Archives the closed segments of a log until `close`."""

    def __init__(self, log: LogWriter, archive: Archive) -> None:
        self._log, self._archive, self._disk = log, archive, Disk()
        self._stopping = threading.Event()
        archived = min(read_archived(log.folder, self._disk), log.last_closed)
        log.keep_above(archived)
        missing = min(unarchived(log.folder, self._disk), default=archived + 1) - archived - 1
        archive.tidy()
        if archived and missing:
            _LOGGER.warning(
                "the archive lacks %d segments from number %d on: they were removed while --archive was not set",
                missing, archived + 1, extra=fields(segment=archived + 1, segments=missing),
            )  # fmt: skip
        self._thread = threading.Thread(target=self._run, name="archive", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; a command that still runs is killed, and its file archived again at the next start."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s, retry_s = 0.0, 0.0
        while not self._stopping.wait(pause_s):
            try:
                self._archive_closed()
                pause_s, retry_s = INTERVAL_S, 0.0
            except (TidemarkError, OSError) as error:
                if self._stopping.is_set():
                    return
                pause_s = retry_s = next_pause_s(retry_s, RETRY_S, LONGEST_RETRY_S)
                _LOGGER.warning("%s; retry in %s", " ".join(str(error).split()), format_duration(pause_s))

    def _archive_closed(self) -> None:
        last = self._log.last_closed
        if last <= self._log.kept_above:
            return
        for number in unarchived(self._log.folder, self._disk):
            if number > last or self._stopping.is_set():
                return
            store_segment(self._log.folder, self._disk, number, self._archive, self._stopping.is_set)
            fail_point(ReceiveFailPoint.ARCHIVED)
            self._log.keep_above(number)
            _LOGGER.info("archived segment %d", number, extra=fields(segment=number))
