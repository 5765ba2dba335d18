"""Opening a log that another process left, however it ended.

Only the last segment can be torn. It is read block by block from its head; where a block is not sound the segment is
cut, unless something proves that this place was durable once: then it is damage, and we stop. What is kept is written
once more and synced, because after a failed sync the kernel shows what the disk may not have. The index of the last
segment is made anew from its blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tidemark.clock import Lsn
from tidemark.decode.assembly import Assembled, Where
from tidemark.errors import LogDamaged
from tidemark.log.blocks import Block, Kind, Stamp, blocks, packed, stray_blocks, view
from tidemark.log.disk import Disk
from tidemark.log.index import IndexPart, unpacked
from tidemark.log.segment import SEGMENT, Head, index_path, numbers, segment_path, unpacked_head
from tidemark.log.tail import Tail
from tidemark.log.writer import NO_ENDPOS, SEGMENT_BYTES, Lock, LogWriter, Segment, begin_segment

_NEW = ".new"


def open_log(folder: Path, start: Lsn, disk: Disk | None = None, segment_bytes: int = SEGMENT_BYTES) -> LogWriter:
    """Open the log in this folder for writing; one that holds nothing begins at `start`."""
    disk = disk or Disk()
    disk.make_folder(folder)
    lock = Lock(folder)
    try:
        tail = _recovered(folder, disk)
        if tail is None:
            tail = Tail(1, start.value)
            for file in begin_segment(disk, folder, tail, Head(0, 0, (0, 0, 0, 0), b"", 0, Assembled()), 0):
                disk.close(file)
        return LogWriter(folder, disk, lock, tail, _segments(folder, disk, tail.number), segment_bytes)
    except BaseException:
        lock.release()
        raise


def last_position(folder: Path, disk: Disk | None = None) -> Lsn | None:
    """How far a log reaches, without opening it for writing; None if there is none."""
    disk = disk or Disk()
    found = numbers(disk.names(folder), SEGMENT) if folder.exists() else []
    return Lsn(_read_tail(folder, disk, found[-1]).tail.position) if found else None


def _recovered(folder: Path, disk: Disk) -> Tail | None:
    names = disk.names(folder)
    for name in names:
        if name.endswith(_NEW):
            disk.remove(folder / name)
    found = numbers(names, SEGMENT)
    if found and not _begun(folder, disk, found[-1]):
        _remove_unbegun(folder, disk, found.pop(), names)
    _require_row(folder, found)
    if not found:
        return None
    number = found[-1]
    read = _read_tail(folder, disk, number)
    if len(found) > 1:
        _require_previous(folder, disk, number, read.previous_bytes)
    if read.end < disk.size(segment_path(folder, number)):
        disk.truncate(segment_path(folder, number), read.end)
    _write_again(folder, disk, number, read)
    _rebuild_index(folder, disk, number, read)
    disk.sync_folder(folder)
    return read.tail


@dataclass(frozen=True, slots=True)
class _Read:
    """A last segment: its end, what is known there, its index, and how far it is proven to be on the disk."""

    tail: Tail
    parts: list[IndexPart]
    stamp: Stamp
    end: int
    proven: int
    previous_bytes: int


def _read_tail(folder: Path, disk: Disk, number: int) -> _Read:
    path = segment_path(folder, number)
    data = disk.map(path)
    sound = list(blocks(view(data), number))
    if not sound or sound[0].kind != Kind.HEAD:
        _damaged(path, 0)
    end = sound[-1].end
    proven = _proven(folder, disk, number, sound, end)
    if proven > end:
        _damaged(path, end)
    head = unpacked_head(data[sound[0].start : sound[0].end].tobytes(), str(path))
    tail = Tail.from_head(number, sound[0].position, head)
    parts = [IndexPart(Assembled(standing=tail.standing()), sound[0].end)]
    for block in sound[1:]:
        if block.kind == Kind.SESSION:
            tail.begin_session()
            rows = Assembled()
        else:
            where = Where(number, block.offset, block.start)
            frames = data[block.start : block.end]
            rows, _ = tail.take(frames, where, block.position, block.xid, NO_ENDPOS.value)
        parts.append(IndexPart(rows, block.end))
    last = sound[-1]
    return _Read(tail, parts, Stamp(end, last.position, last.xid), end, proven, head.previous_bytes)


def _proven(folder: Path, disk: Disk, number: int, sound: list[Block], end: int) -> int:
    """How far the segment was once durable, by the word of any sound block, also after the place where it breaks."""
    data = view(disk.map(segment_path(folder, number)))
    words = [block.synced for block in (*sound, *stray_blocks(data, number, end))]
    index = index_path(folder, number)
    if index.exists():
        described = view(disk.map(index))
        words += [block.synced for block in stray_blocks(described, number, 0)]
    return max(words)


def _begun(folder: Path, disk: Disk, number: int) -> bool:
    """Whether a segment has its head. One that has not was never used, unless something proves the contrary."""
    data = view(disk.map(segment_path(folder, number)))
    if next(iter(blocks(data, number)), None) is not None:
        return True
    if _proven(folder, disk, number, [Block(Kind.HEAD, 0, 0, 0, 0, 0)], 0) > 0:
        _damaged(segment_path(folder, number), 0)
    return False


def _remove_unbegun(folder: Path, disk: Disk, number: int, names: list[str]) -> None:
    if index_path(folder, number).name in names:
        disk.remove(index_path(folder, number))
    disk.remove(segment_path(folder, number))
    disk.sync_folder(folder)


def _require_row(folder: Path, found: list[int]) -> None:
    missing = set(range(found[0], found[-1])) - set(found) if found else set()
    if missing:
        raise LogDamaged(f"{segment_path(folder, min(missing))} is missing, and later ones are there", _HINT)


def _require_previous(folder: Path, disk: Disk, number: int, previous_bytes: int) -> None:
    path = segment_path(folder, number - 1)
    size = disk.size(path)
    if size != previous_bytes:
        raise LogDamaged(f"{path} has {size} bytes, and had {previous_bytes} when the next one was begun", _HINT)


def _write_again(folder: Path, disk: Disk, number: int, read: _Read) -> None:
    path = segment_path(folder, number)
    if read.end > read.proven:
        disk.rewrite(path, read.proven, disk.read(path, read.proven, read.end))
    file = disk.open(path)
    try:
        disk.sync(file)
    finally:
        disk.close(file)


def _rebuild_index(folder: Path, disk: Disk, number: int, read: _Read) -> None:
    path = index_path(folder, number)
    new = path.with_suffix(_NEW)
    rows = IndexPart(Assembled.joined([part.rows for part in read.parts]), read.end).packed()
    file = disk.create(new)
    try:
        disk.append(file, packed(Kind.INDEX, number, 0, read.stamp, rows), rows)
        disk.sync(file)
    finally:
        disk.close(file)
    disk.replace(new, path)


def _segments(folder: Path, disk: Disk, last: int) -> dict[int, Segment]:
    """What can go when, by the indexes."""
    segments = {}
    for number in numbers(disk.names(folder), SEGMENT):
        segments[number] = segment = Segment(disk.size(segment_path(folder, number)))
        for part in read_index(folder, disk, number, whole=number < last):
            segment.count(part.rows)
    return segments


def read_index(folder: Path, disk: Disk, number: int, *, whole: bool) -> list[IndexPart]:
    """The index of a segment; of one that is closed, `whole` must be sound to its end."""
    path = index_path(folder, number)
    if not path.exists():
        raise LogDamaged(f"{path} is missing", _HINT)
    data = disk.map(path)
    sound = list(blocks(view(data), number))
    end = sound[-1].end if sound else 0
    if whole and end != len(data):
        _damaged(path, end)
    return [unpacked(data[block.start : block.end].tobytes(), str(path)) for block in sound if block.kind == Kind.INDEX]


def _damaged(path: Path, offset: int) -> NoReturn:
    raise LogDamaged(f"{path} is damaged at byte {offset}: it was whole there once", _HINT)


_HINT = (
    "the disk, and a backup of this file; without one, a resync of the mirror. Nothing after that place can be trusted"
)
