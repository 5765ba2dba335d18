"""How much disk a mirror uses, and how much it will use when its history covers the retention period.

The forecast assumes that the source changes as it did since the oldest LSN that can be read: the history grows in
proportion to time until the retention period has passed, and current rows and the log stay as they are.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.clock import Lsn
from tidemark.lake.changes import read_changes
from tidemark.lake.key_index import index_bytes
from tidemark.lake.lake import Lake
from tidemark.lake.paths import CHANGES, VERSIONS
from tidemark.lake.registers import read_retained, read_times
from tidemark.lake.sync_records import Retention, recorded_retention
from tidemark.lake.unlisted import unlisted_files
from tidemark.lake.versions import read_versions

_SHORTEST_S = 60.0  # a rate over less time is not meaningful
_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Bytes on disk: current rows with their key indexes, the history, files that no table lists, and the log.

    Files that no table lists have expired and are not deleted yet, or belong to earlier generations or running jobs.

    `covered_s` is the time that the history covers, by the clock of the writer, and `retention` what the last sync
    recorded. Either is None if it is not known. `free_bytes` is the free space of the file system of the lake or of
    that of the log, whichever has less.
    """

    current_bytes: int
    history_bytes: int
    unlisted_bytes: int
    log_bytes: int
    free_bytes: int
    covered_s: float | None
    retention: Retention | None

    @property
    def total_bytes(self) -> int:
        """The sum of all."""
        return self.current_bytes + self.history_bytes + self.unlisted_bytes + self.log_bytes

    @property
    def history_bytes_per_day(self) -> int | None:
        """By how much the history grows in a day; None if too little time has passed."""
        return int(self.history_bytes / self.covered_s * _DAY_S) if self.covered_s is not None else None

    @property
    def expected_bytes(self) -> int | None:
        """The sum when the history covers the retention period; None if it is kept forever or too little is known."""
        keep_s = self.retention.keep_s if self.retention is not None else None
        if keep_s is None or self.covered_s is None:
            return None
        return self.total_bytes + int(self.history_bytes * max(0.0, keep_s / self.covered_s - 1))

    @property
    def full_in_s(self) -> float | None:
        """The time until the history covers the retention period; None if it is kept forever or too little is known."""
        keep_s = self.retention.keep_s if self.retention is not None else None
        return max(0.0, keep_s - self.covered_s) if keep_s is not None and self.covered_s is not None else None


def disk_use(lake: Lake) -> DiskUse:
    """Measure the disk use of a lake and its log. Starts no JVM."""
    current = history = unlisted = 0
    for table in lake.tables().values():
        changes, versions = read_changes(lake.path, table.path, Lsn.ZERO), read_versions(lake.path, table.path)
        history += pc.sum(changes.adds["size_bytes"]).as_py() if changes.adds is not None else 0
        files = versions.files if versions is not None else ()
        current += sum(file.size_bytes for file in files if file.live)
        history += sum(file.size_bytes for file in files if not file.live)
        current += index_bytes(lake.path / table.path / VERSIONS)
        for folder in (lake.path / table.path / CHANGES, lake.path / table.path / VERSIONS):
            unlisted += sum(file.size_bytes for file in unlisted_files(folder)) if folder.is_dir() else 0
    covered_s = _covered_s(read_times(lake.path), read_retained(lake.path))
    free = min(shutil.disk_usage(folder).free for folder in (lake.path, lake.log) if folder.exists())
    return DiskUse(current, history, unlisted, _size(lake.log), free, covered_s, recorded_retention(lake.path))


def _covered_s(cycles: pa.Table, retained: Lsn) -> float | None:
    """The time between the first and the last cycle at or above the retained LSN."""
    times = cycles.filter(pc.field("applied_lsn") >= retained.value)["written_at"]
    if len(times) == 0:
        return None
    first, last = pc.min_max(times).as_py().values()
    covered_s = float((last - first).total_seconds())
    return covered_s if covered_s >= _SHORTEST_S else None


def _size(folder: Path) -> int:
    """The size of the files in a directory; 0 if it cannot be read here."""
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.is_file())
    except OSError:
        return 0
