"""Appending to the log, by one process that holds the lock of the log while it is open.

A block is written to the segment first, then its rows to the index, so the bytes of every row in the index can be read.
Nothing is durable until `sync`. A segment is closed only after it and its index are synced, so only the last segment
can be torn.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from tidemark.clock import Lsn, Xid8
from tidemark.errors import LogDiskFailed, LogInUse, SourceError, TidemarkError
from tidemark.log.blocks import HEADER_BYTES, BlockKind, BlockStamp, packed, view
from tidemark.log.disk import Disk
from tidemark.log.index import IndexPart
from tidemark.log.segment import INDEX, Head, index_path, numbers, segment_path
from tidemark.log.summaries import NAME as SUMMARIES_NAME
from tidemark.log.summaries import SUMMARIES, add_commits, has_too_many, packed_summaries, repair_summaries
from tidemark.log.tail import LogTail
from tidemark.pgoutput.assembly import Where
from tidemark.pgoutput.rows import Assembled, Rows
from tidemark.storage.disk import File
from tidemark.storage.interface import read_owner
from tidemark.storage.local import LocalStorage
from tidemark.values.kernels import Bytes

LOCK = "lock"
SEGMENT_BYTES = 128 << 20
SEGMENT_BLOCKS = 32_768  # recovery takes 0.1 ms per block
NO_ENDPOS = Lsn(2**63 - 1)
_NONE = 2**63  # greater than any segment number


@dataclass(frozen=True, slots=True)
class Appended:
    """The commits of an appended block; `ended` if frames were left out because they commit above endpos."""

    commits: Rows
    ended: bool


@dataclass(slots=True)
class Segment:
    """A segment, the values that decide when it can be removed, and the summary of its index."""

    size_bytes: int
    last_commit: int = 0
    oldest_extent: int = _NONE
    oldest_description: int = _NONE
    summary: Rows = field(default_factory=lambda: np.zeros(1, SUMMARIES))

    def count(self, rows: Assembled) -> None:
        """Add rows of its index."""
        if len(rows):
            add_commits(self.summary, rows.commits)
            self.last_commit = int(rows.commits["lsn"][-1])
            self.oldest_extent = min(self.oldest_extent, int(rows.extents["place"].min(initial=_NONE)))
            self.oldest_description = min(self.oldest_description, int(rows.relations["place"].min(initial=_NONE)))


class LogLock:
    """The write lock of a log, which the operating system releases when the process ends for any reason."""

    def __init__(self, folder: Path) -> None:
        storage = LocalStorage(folder, Disk())
        lock = storage.lock(LOCK)
        if lock is None:
            owner = read_owner(storage, LOCK)
            pid = owner.pid if owner is not None else "unknown"
            raise LogInUse(f"the log in {folder} is in use by process {pid}", "Stop that process first.")
        self._lock = lock

    def release(self) -> None:
        """Release the lock."""
        self._lock.close()


class LogWriter:
    """The writer at the end of the log.

    After any error except a SourceError in `append`, it refuses all further writes, and the log must be opened again.
    """

    def __init__(
        self, folder: Path, disk: Disk, lock: LogLock, tail: LogTail, segments: dict[int, Segment], segment_bytes: int
    ) -> None:
        self.folder = folder
        self._disk = disk
        self._lock = lock
        self._tail = tail
        self._segments = segments
        self._segment_bytes = segment_bytes
        self._xid = 0
        with ExitStack() as failing:
            self._segment = disk.open(segment_path(folder, tail.number))
            failing.callback(disk.close, self._segment)
            self._index = disk.open(index_path(folder, tail.number))
            failing.callback(disk.close, self._index)
            self._size = self._synced = disk.size(self._segment.path)
            self._index_size = disk.size(self._index.path)
            self._summaries = disk.open(folder / SUMMARIES_NAME)
            failing.pop_all()
        self._durable = tail.position
        self._head_end = 0
        self._broken = False
        self.kept_above = _NONE
        self.last_closed = tail.number - 1

    @property
    def received(self) -> Lsn:
        """The received LSN: every commit at or below it can be read from the log."""
        return Lsn(self._tail.position)

    @property
    def durable(self) -> Lsn:
        """The flushed LSN: every commit at or below it is in the log after any crash."""
        return Lsn(self._durable)

    @property
    def last_commit(self) -> Lsn:
        """The LSN of the last commit in the log."""
        return Lsn(self._tail.last_commit)

    @property
    def unsynced_bytes(self) -> int:
        """The number of bytes written to the segment since the last sync."""
        return self._size - self._synced

    @property
    def size_bytes(self) -> int:
        """The total size of the segments."""
        return sum(segment.size_bytes for segment in self._segments.values())

    @property
    def open_transactions(self) -> int:
        """The number of streamed transactions that have not ended."""
        return len(self._tail.assembler.streamed)

    def begin_session(self, note: bytes, xid: Xid8, approve: Callable[[bytes], None] | None = None) -> None:
        """Record a new connection, and discard open transactions, which the source resends.

        `approve` is called with every Relation message of the session. If it raises a SourceError, nothing of that
        block is written, and a new session must be started.
        """
        self._tail.begin_session(approve)
        self._xid = xid.value
        self._write(BlockKind.SESSION, note, Assembled())

    def set_xid(self, xid: Xid8) -> None:
        """Set a current full transaction ID of the source, by which the 32-bit IDs of the stream are widened."""
        self._xid = xid.value

    def append(self, frames: Bytes, position: Lsn = Lsn.ZERO, endpos: Lsn = NO_ENDPOS) -> Appended:
        """Append frames as one block, with the position that the source reported after them.

        If the frames are refused with an error, nothing is written.
        """
        self._require_sound()
        full = self._size + HEADER_BYTES + len(frames) > self._segment_bytes and self._size > self._head_end
        if full or self._tail.blocks >= SEGMENT_BLOCKS:
            self._roll()
        where = Where(self._tail.number, self._size, self._size + HEADER_BYTES)
        with self._breaking(unless=SourceError):
            try:
                rows, end = self._tail.take(frames, where, position.value, self._xid, endpos.value)
            except SourceError:
                self._tail.begin_session()
                raise
        self._write(BlockKind.MESSAGES, view(frames[:end]), rows)
        return Appended(rows.commits, end < len(frames))

    def sync(self) -> None:
        """Return when all appended data is durable."""
        with self._breaking():
            size, position = self._size, self._tail.position
            if size > self._synced:
                self._disk.sync(self._segment)
                self._synced, self._durable = size, position
                self._append_index(BlockKind.SYNCED, b"")

    def trim(self, applied: Lsn) -> None:
        """Remove the segments that are not required once everything up to `applied` is in the lake; keep their indexes.

        Each removal is synced before the next one: a power failure that undoes some of them leaves no gap.
        """
        with self._breaking():
            first_needed = self._first_needed(applied.value)
            end = min(first_needed, self.kept_above + 1)
            for number in [number for number in sorted(self._segments) if number < end]:
                self._disk.remove(segment_path(self.folder, number))
                self._disk.sync_folder(self.folder)
                del self._segments[number]

    def keep_above(self, number: int) -> None:
        """Do not remove the segments above a number, which are not archived. Another thread may call it."""
        self.kept_above = number

    def close(self) -> None:
        """Close the files without syncing them, and release the lock."""
        self._disk.close(self._segment)
        self._disk.close(self._index)
        self._disk.close(self._summaries)
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None and not self._broken:
            self.sync()
        self.close()

    def _first_needed(self, applied: int) -> int:
        live = self._tail.number
        needed = [live, self._tail.assembler.oldest_place or live]
        for number, segment in self._segments.items():
            if segment.last_commit > applied:
                needed += [number, segment.oldest_extent]
        kept = (segment for number, segment in self._segments.items() if number >= min(needed))
        return min(*needed, *(segment.oldest_description for segment in kept))

    def _write(self, kind: BlockKind, payload: bytes | memoryview, rows: Assembled) -> None:
        with self._breaking():
            header = packed(kind, self._tail.number, self._size, self._stamp(), payload)
            self._disk.append(self._segment, header, payload)
            self._size += len(header) + len(payload)
            live = self._segments[self._tail.number]
            live.size_bytes = self._size
            live.count(rows)
            self._append_index(BlockKind.INDEX, IndexPart(rows, self._size).packed())

    def _append_index(self, kind: BlockKind, payload: bytes) -> None:
        header = packed(kind, self._tail.number, self._index_size, self._stamp(), payload)
        self._disk.append(self._index, header, payload)
        self._index_size += len(header) + len(payload)

    def _stamp(self) -> BlockStamp:
        return BlockStamp(self._synced, self._tail.position, self._xid)

    def _roll(self) -> None:
        """Sync and close the segment, and start the next one."""
        self.sync()
        with self._breaking():
            self._disk.sync(self._index)
            self._summarize()
            head = self._tail.next_head(self._size)
            begun = begin_segment(self._disk, self.folder, self._tail, head, self._xid)
            self._disk.close(self._segment)
            self._disk.close(self._index)
            self._segment, self._index = begun
            self._size = self._synced = self._disk.size(self._segment.path)
            self._index_size = self._disk.size(self._index.path)
            self._head_end = self._size
            self._segments[self._tail.number] = Segment(self._size)
            self.last_closed = self._tail.number - 1

    def _summarize(self) -> None:
        """Append the summary of the index that is being closed."""
        summary = self._segments[self._tail.number].summary
        summary["number"], summary["position"] = self._tail.number, self._tail.position
        summary["size_bytes"] = self._index_size
        indexes = len(numbers(self._disk.names(self.folder), INDEX))
        if has_too_many(self._disk.size(self._summaries.path), indexes):
            self._disk.close(self._summaries)
            repair_summaries(self.folder, self._disk, self._tail.number)
            self._summaries = self._disk.open(self._summaries.path)
        self._disk.append(self._summaries, packed_summaries(summary))

    def _breaking(self, unless: type[TidemarkError] | None = None) -> _Breaking:
        self._require_sound()
        return _Breaking(self, unless)

    def _require_sound(self) -> None:
        if self._broken:
            raise LogDiskFailed(f"a write to the log in {self.folder} failed earlier", "Retry the command.")

    def fail(self) -> None:
        """Refuse all further writes."""
        self._broken = True


class _Breaking:
    """A context in which any error makes the writer unusable, because only recovery can determine the files' contents.

    Errors of type `unless` do not affect the files and leave the writer usable.
    """

    def __init__(self, writer: LogWriter, unless: type[TidemarkError] | None) -> None:
        self._writer = writer
        self._unless = unless

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not None and not (self._unless is not None and issubclass(kind, self._unless)):
            self._writer.fail()


def begin_segment(disk: Disk, folder: Path, tail: LogTail, head: Head, xid: int) -> tuple[File, File]:
    """Create a segment and its index; return when both files and their names are on disk.

    The index is written after the head is synced, and records that the head is durable: if the head is invalid later,
    the index proves that the segment is damaged.
    """
    payload = head.packed()
    end = HEADER_BYTES + len(payload)
    header = packed(BlockKind.HEAD, tail.number, 0, BlockStamp(0, tail.position, xid), payload)
    rows = IndexPart(Assembled(standing=tail.standing()), end).packed()
    first = packed(BlockKind.INDEX, tail.number, 0, BlockStamp(end, tail.position, xid), rows)
    files = []
    with ExitStack() as failing:
        for path, parts in (segment_path, (header, payload)), (index_path, (first, rows)):
            files.append(disk.create(path(folder, tail.number)))
            failing.callback(disk.close, files[-1])
            disk.append(files[-1], *parts)
            disk.sync(files[-1])
        disk.sync_folder(folder)
        failing.pop_all()
    segment, index = files
    return segment, index
