"""The expire job of a pipeline: a thread that deletes what is older than the retention, and stops with the process.

If the history is kept forever, it deletes what is not history: files that fold and compaction replaced, files that
failed jobs left, and old commits of Delta logs.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tidemark.lake.sync_records import Retention, record_retention
from tidemark.pipeline.background import BackgroundJob
from tidemark.pipeline.expire.expiry import GRACE_S, Expired, ExpireOptions, expire_lake
from tidemark.units import format_duration

LONGEST_S, SHORTEST_S = 600.0, 1.0  # between two runs; a tenth of the retention in between
Done: TypeAlias = Callable[[Expired, float], None]  # called after a run that deleted files, with its seconds
_LOGGER = logging.getLogger("tidemark.pipeline")


def expiring(lake: Path, keep_s: float | None, done: Done) -> BackgroundExpiry:
    """Record the retention of a lake, and delete in the background what it does not need."""
    record_retention(lake, Retention(keep_s))
    return BackgroundExpiry(lake, Retention(keep_s), done)


class BackgroundExpiry(BackgroundJob):
    """Expires a lake at once and then again and again, until `close`."""

    def __init__(self, lake: Path, retention: Retention, done: Done) -> None:
        super().__init__("expire")
        self._done = done
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
        begin = time.monotonic()
        done = expire_lake(self._lake, self._options)
        if any(each.files for each in done.removals):
            self._done(done, time.monotonic() - begin)
