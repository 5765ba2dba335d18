"""Recovery: opening a log after its previous writer ended in any way, including a crash or a power failure.

Only the last segment can be torn. It is read block by block from its head and truncated at the first invalid block,
unless a later block or the index proves that this offset was durable once: then the log is damaged, and recovery fails.
The remaining data that is not proven durable is written again and synced, because after a failed sync the kernel may
return data that is not on disk. The index of the last segment is rebuilt from its blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tidemark.clock import Lsn
from tidemark.errors import RESYNC_ALL, LogDamaged
from tidemark.log.blocks import Block, BlockKind, BlockStamp, blocks, packed, stray_blocks, view
from tidemark.log.disk import Disk
from tidemark.log.index import IndexPart, unpacked
from tidemark.log.segment import INDEX, SEGMENT, Head, index_path, numbers, segment_path, unpacked_head
from tidemark.log.summaries import repair_summaries
from tidemark.log.tail import LogTail
from tidemark.log.writer import NO_ENDPOS, SEGMENT_BYTES, LogLock, LogWriter, Segment, begin_segment
from tidemark.pgoutput.assembly import Where
from tidemark.pgoutput.rows import Assembled
from tidemark.storage.disk import TEMPORARY


def open_log(
    folder: Path,
    start: Lsn,
    disk: Disk | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    *,
    lock: LogLock | None = None,
    first: int = 1,
) -> LogWriter:
    """Open the log in this directory for writing; an empty log starts at `start`, with segment number `first`.

    The lock, which is acquired here if none is passed, is released when the log is closed or cannot be opened.
    """
    disk = disk or Disk()
    disk.make_folder(folder)
    lock = lock or LogLock(folder)
    try:
        tail = _recovered(folder, disk)
        if tail is None:
            tail = LogTail(first, start.value)
            for file in begin_segment(disk, folder, tail, Head(0, 0, (0, 0, 0, 0), b"", Assembled()), 0):
                disk.close(file)
        repair_summaries(folder, disk, tail.number)
        return LogWriter(folder, disk, lock, tail, _segments(folder, disk, tail.number), segment_bytes)
    except BaseException:
        lock.release()
        raise


def last_position(folder: Path, disk: Disk | None = None) -> Lsn | None:
    """The last position of a log, read without opening it for writing; None if there is no log."""
    disk = disk or Disk()
    found = numbers(disk.names(folder), SEGMENT) if folder.exists() else []
    if found and not _begun(folder, disk, found[-1]):
        found.pop()
    return Lsn(_read_tail(folder, disk, found[-1]).tail.position) if found else None


def _recovered(folder: Path, disk: Disk) -> LogTail | None:
    names = disk.names(folder)
    for name in names:
        if name.endswith(TEMPORARY) and (folder / name).exists():  # expire may be writing one at this moment
            disk.remove(folder / name)
    found = numbers(names, SEGMENT)
    if found and not _begun(folder, disk, found[-1]):
        disk.remove(segment_path(folder, found.pop()))
    _require_row(folder, found)
    _remove_unused(folder, disk, found[-1] if found else 0, numbers(names, INDEX))
    if not found:
        return None
    number = found[-1]
    read = _read_tail(folder, disk, number)
    if len(found) > 1:
        _require_size(folder, disk, number - 1, read.previous_bytes)
    if read.end < disk.size(segment_path(folder, number)):
        disk.truncate(segment_path(folder, number), read.end)
    _write_again(folder, disk, number, read)
    _rebuild_index(folder, disk, number, read)
    disk.sync_folder(folder)
    return read.tail


@dataclass(frozen=True, slots=True)
class _Read:
    """The last segment as read: the state at its end, the rows of its index, and the size proven to be on disk."""

    tail: LogTail
    parts: list[IndexPart]
    stamp: BlockStamp
    end: int
    proven: int
    previous_bytes: int


def _read_tail(folder: Path, disk: Disk, number: int) -> _Read:
    path = segment_path(folder, number)
    described = _proven_by_index(folder, disk, number)  # read before the segment, which may be growing
    data = disk.map(path)
    sound = list(blocks(view(data), number))
    if not sound or sound[0].kind != BlockKind.HEAD:
        _damaged(path, 0)
    end = sound[-1].end
    proven = max(described, _proven(view(data), number, sound))
    if proven > end:
        _damaged(path, end)
    head = unpacked_head(data[sound[0].start : sound[0].end].tobytes(), str(path))
    tail = LogTail.from_head(number, sound[0].position, head)
    parts = [IndexPart(Assembled(standing=tail.standing()), sound[0].end)]
    for block in sound[1:]:
        if block.kind == BlockKind.SESSION:
            tail.begin_session()
            rows = Assembled()
        else:
            where = Where(number, block.offset, block.start)
            frames = data[block.start : block.end]
            rows, _ = tail.take(frames, where, block.position, block.xid, NO_ENDPOS.value)
        parts.append(IndexPart(rows, block.end))
    last = sound[-1]
    return _Read(tail, parts, BlockStamp(end, last.position, last.xid), end, proven, head.previous_bytes)


def proven_bytes(folder: Path, disk: Disk, number: int) -> int:
    """How many bytes of a segment are proven to have been durable, by its index and by any block that is intact."""
    described = _proven_by_index(folder, disk, number)  # first: the segment may be growing
    data = view(disk.map(segment_path(folder, number)))
    return max(described, _proven(data, number, list(blocks(data, number))))


def _proven(data: memoryview, number: int, sound: list[Block]) -> int:
    """The size of the segment that was durable once, according to any valid block, also behind an invalid one."""
    end = sound[-1].end if sound else 0
    return max((block.synced for block in (*sound, *stray_blocks(data, number, end))), default=0)


def _proven_by_index(folder: Path, disk: Disk, number: int) -> int:
    """The size of the segment that was durable once, according to any valid block of its index."""
    path = index_path(folder, number)
    return _proven(view(disk.map(path)), number, []) if path.exists() else 0


def _begun(folder: Path, disk: Disk, number: int) -> bool:
    """Whether a segment has its head.

    A segment without one was never used; if a valid block proves that it was durable once, LogDamaged is raised.
    """
    described = _proven_by_index(folder, disk, number)
    data = view(disk.map(segment_path(folder, number)))
    if next(iter(blocks(data, number)), None) is not None:
        return True
    if max(described, _proven(data, number, [])) > 0:
        _damaged(segment_path(folder, number), 0)
    return False


def _remove_unused(folder: Path, disk: Disk, last: int, described: list[int]) -> None:
    """Remove the index of a segment that was never started.

    Such an index has one block: more are written only after the directory, with the name of the segment, was synced.
    """
    for number in reversed(described):
        if number > last:
            path = index_path(folder, number)
            if number > last + 1 or len(list(stray_blocks(view(disk.map(path)), number, 0))) > 1:
                raise LogDamaged(f"{segment_path(folder, number)} is missing, but its index exists", _HINT)
            disk.remove(path)
    # The rebuilt index will have two blocks, which prove that the name of the last segment is durable: sync it first.
    disk.sync_folder(folder)


def _require_row(folder: Path, found: list[int]) -> None:
    missing = set(range(found[0], found[-1])) - set(found) if found else set()
    if missing:
        raise LogDamaged(f"{segment_path(folder, min(missing))} is missing, but later files exist", _HINT)


def _require_size(folder: Path, disk: Disk, number: int, size_bytes: int) -> None:
    path = segment_path(folder, number)
    size = disk.size(path)
    if size != size_bytes:
        raise LogDamaged(f"{path} has {size} bytes, but had {size_bytes} when it was closed", _HINT)


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
    rows = IndexPart(Assembled.joined([part.rows for part in read.parts]), read.end).packed()
    header = packed(BlockKind.INDEX, number, 0, read.stamp, rows)
    end = packed(BlockKind.SYNCED, number, len(header) + len(rows), read.stamp, b"")
    disk.write_atomically(index_path(folder, number), header, rows, end)


def _segments(folder: Path, disk: Disk, last: int) -> dict[int, Segment]:
    """Read from the indexes what decides when each segment can be removed."""
    segments = {}
    for number in numbers(disk.names(folder), SEGMENT):
        segments[number] = segment = Segment(disk.size(segment_path(folder, number)))
        parts = read_index(folder, disk, number, whole=number < last)
        for part in parts:
            segment.count(part.rows)
        _require_size(folder, disk, number, parts[-1].described if parts else 0)
    return segments


def read_index(folder: Path, disk: Disk, number: int, *, whole: bool) -> list[IndexPart]:
    """Read the index of a segment; with `whole`, for a closed segment, it must be valid to its end."""
    path = index_path(folder, number)
    if not path.exists():
        raise LogDamaged(f"{path} is missing", _HINT)
    data = disk.map(path)
    sound = list(blocks(view(data), number))
    end = sound[-1].end if sound else 0
    if whole and end != len(data):
        _damaged(path, end)
    return [
        unpacked(data[block.start : block.end].tobytes(), str(path)) for block in sound if block.kind == BlockKind.INDEX
    ]


def _damaged(path: Path, offset: int) -> NoReturn:
    raise LogDamaged(f"{path} is damaged at byte {offset}, which was flushed to disk before", _HINT)


_HINT = f"Check the disk and restore the file from a backup. {RESYNC_ALL}"
