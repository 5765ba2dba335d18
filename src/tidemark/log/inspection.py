"""Read-only inspection of a log or an archive of one: the blocks of every segment, and the commits in its index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue, LogDamaged
from tidemark.log.blocks import blocks, view
from tidemark.log.disk import Disk
from tidemark.log.recovery import proven_bytes, read_index
from tidemark.log.segment import INDEX, SEGMENT, index_path, numbers, segment_path

_HINT = "Use the directory that was given to `tidemark receive` or `tidemark sync` with `--log`."


@dataclass(frozen=True, slots=True)
class Inspected:
    """One segment; `segment_bytes` is None if the segment was removed and only its index remains."""

    number: int
    segment_bytes: int | None
    blocks: int
    commits: int
    first: Lsn | None
    last: Lsn | None
    position: Lsn
    torn_bytes: int


def inspect(folder: Path, disk: Disk | None = None) -> Iterator[Inspected]:
    """Check every block of the log, segment by segment.

    An invalid block in a closed segment or its index raises LogDamaged with the offset. In the last segment, the bytes
    from the first invalid block on are counted as `torn_bytes`.
    """
    disk = disk or Disk()
    if not folder.is_dir():
        raise InvalidValue(f"{folder} is not a directory", _HINT)
    names = disk.names(folder)
    segments, indexes = numbers(names, SEGMENT), numbers(names, INDEX)
    if not indexes:
        raise InvalidValue(f"{folder} is not a log: it has no index files", _HINT)
    present = sorted({*segments, *indexes})
    for before, number in pairwise(present):
        if number > before + 1:
            raise LogDamaged(f"{index_path(folder, before + 1)} is missing", "Restore the file from a backup.")
    for number in present:
        yield _inspected(folder, disk, number, number in segments, last=number == max(indexes))


def _inspected(folder: Path, disk: Disk, number: int, has_bytes: bool, *, last: bool) -> Inspected:
    rows = [part.rows for part in read_index(folder, disk, number, whole=not last)]
    lsns = [int(lsn) for part in rows if len(part) for lsn in part.commits["lsn"][[0, -1]]]
    count, end, size, position = 0, 0, 0, max(lsns, default=0)
    if has_bytes:
        proven = proven_bytes(folder, disk, number)
        data = disk.map(segment_path(folder, number))
        size = len(data)
        for block in blocks(view(data), number):
            count, end, position = count + 1, block.end, max(position, block.position)
        if end < (proven if last else size):
            path = segment_path(folder, number)
            raise LogDamaged(f"{path} is damaged at byte {end}", "Restore the file from a backup.")
    first, last_commit = (Lsn(lsns[0]), Lsn(lsns[-1])) if lsns else (None, None)
    commits = sum(map(len, rows))
    return Inspected(number, size if has_bytes else None, count, commits, first, last_commit, Lsn(position), size - end)
