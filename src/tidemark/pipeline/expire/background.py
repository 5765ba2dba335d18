"""The expire job of a pipeline: a thread that deletes what is older than the retention, and stops with the process."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from tidemark.lake.retention import Retention, record_retention
from tidemark.logs import fields
from tidemark.pipeline.background import BackgroundJob
from tidemark.pipeline.expire.expiry import GRACE_S, ExpireOptions, expire_lake
from tidemark.units import format_duration, format_size

LONGEST_S, SHORTEST_S = 600.0, 1.0  # between two runs; a tenth of the retention in between
_LOGGER = logging.getLogger("tidemark.pipeline")


def expiring(lake: Path, keep_s: float | None) -> AbstractContextManager[object]:
    """Record the retention of a lake, and expire its data in the background unless it is kept forever."""
    record_retention(lake, Retention(keep_s))
    return BackgroundExpiry(lake, keep_s) if keep_s is not None else nullcontext()


class BackgroundExpiry(BackgroundJob):
    """Expires a lake at once and then again and again, until `close`."""

    def __init__(self, lake: Path, keep_s: float) -> None:
        super().__init__("expire")
        self._lake, self._options = lake, ExpireOptions(keep_s, grace_s=min(GRACE_S, keep_s))
        self._interval_s = min(LONGEST_S, max(SHORTEST_S, keep_s / 10))
        self._thread.start()

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stopping.wait(pause_s):
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
            line = f"expired {files:,} files, {format_size(size)}; history is kept from {done.retained} on"
            _LOGGER.info("%s", line, extra=fields(lsn=done.retained, files=files, size_bytes=size))
