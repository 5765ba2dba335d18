"""Letting go of the commit index: of segments that are gone, from the oldest on, as far as nobody asks for them.

The bytes of segments are trimmed by the one who appends (`writer`), as soon as the lake has them. Their index is kept
for the whole window, since it tells times and what a snapshot does not see. What goes is told first (`forgotten`).
"""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import numpy as np

from tidemark.clock import Lsn, Xid8
from tidemark.log.disk import Disk
from tidemark.log.forgotten import write_forgotten
from tidemark.log.reader import LogReader
from tidemark.log.segment import SEGMENT, index_path, numbers


def forget(folder: Path, retained: Lsn, *, dry_run: bool) -> dict[Path, int]:
    """Remove indexes that hold commits below `retained` only; each with its size. One goes after the other for good."""
    disk = Disk()
    segments = numbers(disk.names(folder), SEGMENT)
    reader = LogReader(folder, disk)
    old = list(takewhile(lambda each: segments and each[0] < segments[0] and each[1] < retained, reader.last_commits()))
    gone = {path: disk.size(path) for path in (index_path(folder, number) for number, _ in old)}
    if old and not dry_run:
        commits = reader.commits()
        xids = commits["xid"][commits["lsn"] <= np.uint64(old[-1][1].value)]
        write_forgotten(folder, disk, Xid8(int(xids.max(initial=0))))
        for path in gone:
            disk.remove(path)
            disk.sync_folder(folder)
    return gone
