"""Letting go of the commit index: of segments that are gone, from the oldest on, as far as nobody asks for them.

The bytes of segments are trimmed by the one who appends (`writer`), as soon as the lake has them. Their index is kept
for the whole window, since it tells times and what a snapshot does not see.
"""

from __future__ import annotations

from pathlib import Path

from tidemark.clock import Lsn
from tidemark.log.disk import Disk
from tidemark.log.reader import LogReader
from tidemark.log.segment import SEGMENT, index_path, numbers


def forget(folder: Path, retained: Lsn, *, dry_run: bool) -> dict[Path, int]:
    """Remove indexes that hold commits below `retained` only; each with its size. One goes after the other for good."""
    disk = Disk()
    segments = numbers(disk.names(folder), SEGMENT)
    gone: dict[Path, int] = {}
    for number, last in LogReader(folder, disk).last_commits():
        if not segments or number >= segments[0] or last >= retained:
            break
        path = index_path(folder, number)
        gone[path] = disk.size(path)
        if not dry_run:
            disk.remove(path)
            disk.sync_folder(folder)
    return gone
