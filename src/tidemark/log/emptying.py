"""Emptying a log, so that another one can begin in the same directory.

`mirror.json` says first that the log has not begun; only then its files go. So a reader finds the log whole, or finds
that there is none, and an emptying that was cut short can be done again.
"""

from __future__ import annotations

from pathlib import Path

from tidemark.errors import LogDamaged
from tidemark.log.disk import Disk
from tidemark.log.forgotten import NAME as FORGOTTEN
from tidemark.log.mirror import Mirror, read_mirror, write_mirror
from tidemark.log.segment import INDEX, SEGMENT, index_path, numbers, segment_path
from tidemark.postgres.identity import Identity


def empty_log(folder: Path, disk: Disk, identity: Identity, name: str) -> None:
    """Leave a log of this mirror that holds nothing and has not begun. The caller holds its lock."""
    names = disk.names(folder)
    segments, indexes = numbers(names, SEGMENT), numbers(names, INDEX)
    first = max([_first(folder, disk), *(number + 1 for number in (*segments, *indexes))])
    write_mirror(folder, disk, Mirror(identity, name, None, segment=first))
    gone = [segment_path(folder, each) for each in segments] + [index_path(folder, each) for each in indexes]
    if FORGOTTEN in names:
        gone.append(folder / FORGOTTEN)
    for path in gone:
        disk.remove(path)
    disk.sync_folder(folder)


def _first(folder: Path, disk: Disk) -> int:
    try:
        mirror = read_mirror(folder, disk)
    except LogDamaged:
        return 1
    return mirror.segment if mirror is not None else 1
