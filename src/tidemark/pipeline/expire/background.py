"""The expire job of a pipeline: a thread that deletes what is older than the retention, and stops with the process.

If the history is kept forever, it deletes what is not history: files that fold and compaction replaced, files that
failed jobs left, and old commits of Delta logs.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path

from tidemark.clock import Lsn
from tidemark.lake.retention import Retention, record_retention
from tidemark.logs import fields
from tidemark.pipeline.background import BackgroundJob
from tidemark.pipeline.expire.expiry import GRACE_S, ExpireOptions, expire_lake
from tidemark.units import format_duration, format_size

LONGEST_S, SHORTEST_S = 600.0, 1.0  # between two runs; a tenth of the retention in between
_LOGGER = logging.getLogger("tidemark.pipeline")


def expiring(lake: Path, keep_s: float | None) -> BackgroundExpiry:
    """Record the retention of a lake, and delete in the background what it does not need."""
    record_retention(lake, Retention(keep_s))
    return BackgroundExpiry(lake, Retention(keep_s))


class BackgroundExpiry(BackgroundJob):
    """Expires a lake at once and then again and again, until `close`."""

    def __init__(self, lake: Path, retention: Retention) -> None:
        super().__init__("expire")
        keep_s = math.inf if retention.keep_s is None else retention.keep_s
        self._lake, self._options = lake, ExpireOptions.of(retention, min(GRACE_S, keep_s))
        self._interval_s = min(LONGEST_S, max(SHORTEST_S, keep_s / 10))
        self._thread.start()

    def _run(self) -> None:
        pause_s = 0.0
        while not self._rest(pause_s):
            pause_s = self._interval_s
            try:
                self._expire()
            except Exception as error:  # noqa: BLE001 - without its thread, nothing would expire
                if not self._stopping.is_set():
                    _LOGGER.warning("expiry failed, retry in %s: %s", format_duration(pause_s), error)

    def _expire(self) -> None:
        done = expire_lake(self._lake, self._options)
        files, size = sum(each.files for each in done.removals), sum(each.size_bytes for each in done.removals)
        if files:
            line = f"deleted {files:,} files, {format_size(size)}; history is kept"
            line += f" from {done.retained} on" if done.retained > Lsn.ZERO else " from the beginning"
            _LOGGER.info("%s", line, extra=fields(lsn=done.retained, files=files, size_bytes=size))
