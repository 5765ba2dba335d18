"""Removal of the contents of a log, so that a new log can start in the same directory.

`mirror.json` is first replaced by one without a start position; only then are the files removed. So a reader finds
either the complete log or none, and after a crash the removal can be repeated.
"""

from __future__ import annotations

from pathlib import Path

from tidemark.errors import LogDamaged
from tidemark.log.disk import Disk
from tidemark.log.forgotten import NAME as FORGOTTEN
from tidemark.log.mirror import LogMirror, read_mirror, write_mirror
from tidemark.log.segment import INDEX, SEGMENT, index_path, numbers, segment_path
from tidemark.log.summaries import NAME as SUMMARIES
from tidemark.postgres.identity import Identity


def empty_log(folder: Path, disk: Disk, identity: Identity, name: str) -> None:
    """Remove the contents of a log, and leave an empty log of this mirror that has not started.

    The caller must hold the lock of the log. Segments of the new log get higher numbers than those of the old one.
    """
    names = disk.names(folder)
    segments, indexes = numbers(names, SEGMENT), numbers(names, INDEX)
    first = max([_first(folder, disk), *(number + 1 for number in (*segments, *indexes))])
    write_mirror(folder, disk, LogMirror(identity, name, None, segment=first))
    gone = [segment_path(folder, each) for each in segments] + [index_path(folder, each) for each in indexes]
    gone += [folder / name for name in (FORGOTTEN, SUMMARIES) if name in names]
    for path in gone:
        disk.remove(path)
    disk.sync_folder(folder)


def _first(folder: Path, disk: Disk) -> int:
    try:
        mirror = read_mirror(folder, disk)
    except LogDamaged:
        return 1
    return mirror.segment if mirror is not None else 1
