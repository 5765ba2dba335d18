"""Reading the log from any process, also while another process appends to it.

A reader follows the indexes. Rows are added to an index after the bytes that they refer to, so the bytes of every row
that a reader finds can be read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.errors import RESYNC_ALL, LogBehind, LogDamaged, NotAnswerable
from tidemark.log.blocks import BlockKind, blocks, view
from tidemark.log.disk import Disk
from tidemark.log.forgotten import read_forgotten
from tidemark.log.index import hidden, shown_by_standby, unpacked
from tidemark.log.mapped import decoded, mapped_file, mapped_segments
from tidemark.log.mirror import read_mirror
from tidemark.log.segment import INDEX, index_path, numbers
from tidemark.pgoutput.changes import ChangeBatch, Limits, Undecodable
from tidemark.pgoutput.extents import Said
from tidemark.pgoutput.rows import COMMITS, Assembled, Rows, joined_rows
from tidemark.values.kernels import Bytes, Longs
from tidemark.values.types import Types


@dataclass(slots=True)
class _Followed:
    """One index file, and its rows up to the offset `end`.

    While recovery may still replace the file, `held` keeps its memory map, so that no other file gets the same inode.
    """

    inode: int
    held: Bytes | None = None
    end: int = 0
    position: int = 0
    parts: list[Assembled] = field(default_factory=list)

    def rows(self) -> Assembled:
        if len(self.parts) > 1:
            self.parts = [Assembled.joined(self.parts)]
        return self.parts[0] if self.parts else Assembled()


class LogReader:
    """A view of the log that advances only with `refresh`; threads may share it."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self._folder = folder
        self._disk = disk or Disk()
        self._indexes: dict[int, _Followed] = {}
        self._complete = Lsn.ZERO
        self._start: Lsn | None = None
        self._lock = threading.RLock()
        self.refresh()

    def refresh(self) -> None:
        """Read what was appended since the last refresh."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        mirror = read_mirror(self._folder, self._disk)
        self._complete = mirror.complete if mirror is not None else Lsn.ZERO
        start = mirror.start if mirror is not None else None
        if start != self._start:  # a new log was started in the directory of the previous one
            self._indexes, self._start = {}, start
        found = numbers(self._disk.names(self._folder), INDEX)
        first, last = (found[0], found[-1]) if found else (0, -1)
        self._indexes = {number: index for number, index in self._indexes.items() if first <= number <= last}
        newest = max((number for number, index in self._indexes.items() if index.end), default=first)
        for number in range(newest, last + 1):
            self._follow(number, closed=number < last)

    @property
    def received(self) -> Lsn:
        """The received LSN of this view: it contains every commit at or below."""
        with self._lock:
            return max(Lsn(max((index.position for index in self._indexes.values()), default=0)), self._complete)

    @property
    def start(self) -> Lsn | None:
        """The start of the log; commits below are not listed."""
        with self._lock:
            return self._start

    def commits(self) -> Rows:
        """All commits of the index in order, including those whose bytes were removed."""
        return joined_rows([rows.commits for _, rows in self._rows()], COMMITS)

    def last_commits(self) -> list[tuple[int, Lsn]]:
        """The number and the last commit of each index, in order.

        An index without commits has the last commit of the previous one.
        """
        found, last = [], Lsn.ZERO
        for number, rows in self._rows():
            last = Lsn(int(rows.commits["lsn"][-1])) if len(rows.commits) else last
            found.append((number, last))
        return found

    def count(self, after: Lsn, upto: Lsn) -> int:
        """The number of commits above `after` and at or below `upto`."""
        border = np.array([after.value, upto.value], np.uint64)
        found = 0
        for _, rows in self._rows():
            first, last = np.searchsorted(rows.commits["lsn"], border, "right")
            found += int(last - first)
        return found

    def boundary(self, snapshot: Snapshot, lsn: Lsn) -> Boundary:
        """The boundary of a session that read this snapshot and, in the same statement, this insert position."""
        if self.received < lsn:
            raise LogBehind(f"{lsn} has not been received: the received LSN is {self.received}", _BEHIND)
        self._require_listed(lsn)
        return Boundary(lsn, frozenset(hidden(self.commits(), snapshot, lsn)))

    def boundary_on_standby(self, snapshot: Snapshot, before: Lsn, after: Lsn) -> Boundary | None:
        """The boundary of a session on a standby, from the replay LSNs before and after its snapshot was taken.

        None if the snapshot does not determine it. The received LSN must be above `after`, since a commit is visible
        slightly before the replay LSN passes it.
        """
        if self.received <= after:
            raise LogBehind(f"nothing above {after} has been received: the received LSN is {self.received}", _BEHIND)
        self._require_listed(before)
        upto = shown_by_standby(self.commits(), snapshot, before, after)
        return None if upto is None else Boundary(upto)

    def _require_listed(self, lsn: Lsn) -> None:
        if self.start is not None and lsn < self.start:
            raise NotAnswerable(
                f"the log starts at {self.start} and does not list the commits that a snapshot at {lsn} excludes",
                f"Read at the LSN with `--at {lsn}`, or use a snapshot taken at or after {self.start}.",
            )

    def given(self, snapshot: Snapshot, lsn: Lsn) -> Boundary:
        """The boundary of a snapshot of any age.

        Raises NotAnswerable if the snapshot may exclude a commit that was removed from the index.
        """
        boundary = self.boundary(snapshot, lsn)
        xids = self.commits()["xid"]
        # Read this file after the index: it is written before commits are removed from the index.
        forgotten = read_forgotten(self._folder, self._disk)
        running = [xid for xid in snapshot.xip if xid <= forgotten and np.uint64(xid.value) not in xids]
        if snapshot.xmax <= forgotten or running:
            raise NotAnswerable(
                f"snapshot {snapshot} has expired: the commits up to transaction {forgotten} are no longer listed, "
                "and the snapshot may exclude one of them",
                "Use a later snapshot, or an LSN.",
            )
        return boundary

    def transactions(self, after: Lsn, upto: Lsn) -> Iterator[Assembled]:
        """Transactions with a commit above `after` and at or below `upto`, in one or more parts per segment index.

        `standing` of each part has the relations that were in force before its first transaction. A part ends where a
        relation comes into force that the frames of the part do not have in the right order: one outside of any
        transaction, or one of a streamed transaction, which may be older than the head of the segment of its commit.
        """
        if self.received < upto:
            raise LogBehind(f"{upto} has not been received: the received LSN is {self.received}", _BEHIND)
        for _, rows in self._rows():
            first, last = np.searchsorted(rows.commits["lsn"], np.array([after.value, upto.value], np.uint64), "right")
            if first == last:
                continue
            count_from = _count_from(rows)
            streamed = (rows.commits["streamed"] != 0) & (rows.commits["relations"] != 0)
            cuts = np.unique(np.clip([first, *count_from, *np.flatnonzero(streamed) + 1, last], first, last)).tolist()
            described = np.concatenate([[0], np.cumsum(rows.commits["relations"], dtype=np.int64)])
            for start, end in pairwise(cuts):
                part = rows.some(start, end)
                standing = np.concatenate([rows.standing[count_from <= start], rows.relations[: described[start]]])
                yield Assembled(part.commits, part.extents, part.aborted, part.relations, _in_order(standing))

    def read(
        self, after: Lsn, upto: Lsn, types: Types, limits: Limits | None = None
    ) -> Iterator[ChangeBatch | Undecodable | Said]:
        """Decode the changes of the transactions above `after` and at or below `upto`, in commit order."""
        for part in self.transactions(after, upto):
            yield from decoded(part, self._folder, types, limits, self._disk)

    def buffers(self, part: Assembled) -> Mapping[int, Bytes]:
        """Map the segments that these rows refer to, and verify the checksums of their blocks."""
        return mapped_segments(part, self._folder, self._disk)

    def _rows(self) -> list[tuple[int, Assembled]]:
        """The number and the rows of every index, in order, as of the last refresh."""
        with self._lock:
            return [(number, self._indexes[number].rows()) for number in sorted(self._indexes)]

    def _follow(self, number: int, closed: bool) -> None:
        """Read the new blocks of an index.

        A closed index must be valid to its end; otherwise rows would be missing without an error.
        """
        path = index_path(self._folder, number)
        found = mapped_file(path, self._disk)
        if found is None:
            if closed:
                raise LogDamaged(f"{path} is missing, but later files exist", _HINT)
            return
        inode, data = found
        followed = self._indexes.get(number)
        if followed is None or followed.inode != inode:
            followed = self._indexes[number] = _Followed(inode)
        followed.held = None if closed else data
        for block in blocks(view(data), number, followed.end):
            followed.end, followed.position = block.end, max(followed.position, block.position)
            if block.kind == BlockKind.INDEX:
                followed.parts.append(unpacked(data[block.start : block.end].tobytes(), str(path)).rows)
        if closed and followed.end != len(data):
            raise LogDamaged(f"{path} is damaged at byte {followed.end}", _HINT)


def _count_from(rows: Assembled) -> Longs:
    """For each standing relation, the index of the first commit that it applies to.

    Only the ends of plain transactions are compared: a streamed transaction sends its own Relation messages.
    """
    plain = rows.commits["streamed"] == 0
    ends = np.zeros(len(rows), np.uint64)
    ends[plain] = rows.extents["end"][(np.cumsum(rows.commits["extents"], dtype=np.int64) - 1)[plain]]
    return np.searchsorted(np.maximum.accumulate(ends), rows.standing["start"], side="right")


def _in_order(relations: Rows) -> Rows:
    return relations[np.lexsort((relations["start"], relations["place"]))]


_HINT = f"Check the disk and restore the file from a backup. {RESYNC_ALL}"
_BEHIND = "Check that `tidemark sync` or `tidemark receive` is running, and retry the command."
