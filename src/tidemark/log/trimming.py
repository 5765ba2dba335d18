"""Expiry of the commit index: removes indexes of removed segments, the oldest first, below the retention LSN.

The writer removes segments as soon as their data is applied to the lake. Their indexes are kept for the whole retention
period, because they have the commit times and the commits that a snapshot excludes. Before an index is removed, the
highest transaction ID and LSN in it are recorded (`forgotten`). A clone keeps indexes as long as segments.
"""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

from tidemark.clock import Lsn
from tidemark.log.disk import Disk
from tidemark.log.forgotten import write_forgotten
from tidemark.log.reader import LogReader
from tidemark.log.segment import SEGMENT, index_path, numbers


def forget(folder: Path, retained: Lsn, *, dry_run: bool) -> dict[Path, int]:
    """Remove the indexes that have only commits below `retained`; returns their paths and sizes.

    Each removal is synced before the next one, so a crash leaves no gap. With `dry_run`, nothing is removed.
    """
    disk = Disk()
    segments = numbers(disk.names(folder), SEGMENT)
    reader = LogReader(folder, disk)
    indexes = reader.last_commits()
    old = list(takewhile(lambda each: segments and each.number < segments[0] and each.lsn < retained, indexes))
    gone = {path: disk.size(path) for path in (index_path(folder, each.number) for each in old)}
    if old and not dry_run:
        write_forgotten(folder, disk, old[-1].xid, old[-1].lsn)
        for path in gone:
            disk.remove(path)
            disk.sync_folder(folder)
    return gone
