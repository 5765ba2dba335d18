"""Reading the log from any process, also while another process appends to it.

A reader follows the last index. Rows are added to an index after the bytes that they refer to, so the bytes of every
row that a reader finds can be read. Closed indexes are read when a search needs them according to their summaries; the
rows of the last ones used stay in memory, up to `CACHE_BYTES`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from tidemark.clock import Boundary, Lsn, Snapshot, Xid8
from tidemark.errors import RESYNC_ALL, LogBehind, LogDamaged, NotAnswerable
from tidemark.log.blocks import BlockKind, blocks, view
from tidemark.log.commits import CommitIndex
from tidemark.log.disk import Disk
from tidemark.log.forgotten import read_forgotten
from tidemark.log.index import unpacked_rows
from tidemark.log.index_rows import GrowingIndex, IndexRows
from tidemark.log.mapped import changed_tables, decoded, mapped_file, mapped_segments
from tidemark.log.mirror import read_mirror
from tidemark.log.segment import INDEX, index_path, numbers
from tidemark.log.summaries import SUMMARIES, read_summaries
from tidemark.pgoutput.changes import ChangeBatch, Limits, Undecodable
from tidemark.pgoutput.rows import COMMITS, Assembled, Rows, joined_rows
from tidemark.values.kernels import Bytes
from tidemark.values.types import Types

CACHE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class LastCommit:
    """The number of an index, and the last commit and the highest transaction ID in it and all indexes before it."""

    number: int
    lsn: Lsn
    xid: Xid8


@dataclass(slots=True)
class _Followed:
    """One index file, and its rows up to the offset `end`.

    While recovery may still replace the file, `held` keeps its memory map, so that no other file gets the same inode.
    """

    inode: int
    held: Bytes | None = None
    end: int = 0
    position: int = 0
    rows: GrowingIndex = field(default_factory=GrowingIndex)

    def summary(self, number: int) -> Rows:
        return self.rows.summary(number, self.position, self.end)


class LogReader:
    """A view of the log that advances only with `refresh`; threads may share it.

    If a refresh fails, what it has read may be incomplete. Then the log is read again at the next use of the view.
    """

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self._folder = folder
        self._disk = disk or Disk()
        self._complete = Lsn.ZERO
        self._start: Lsn | None = None
        self._lock = threading.RLock()
        self._failed = False
        self._forget_all()
        self.refresh()

    def _forget_all(self) -> None:
        self._closed: Rows = np.empty(0, SUMMARIES)
        self._live: tuple[int, _Followed] | None = None
        self._rows: OrderedDict[int, IndexRows] = OrderedDict()  # of closed indexes, the last used at the end

    def refresh(self) -> None:
        """Read what was appended since the last refresh."""
        with self._lock:
            if self._failed:
                self._forget_all()
            self._failed = True
            self._refresh()
            self._failed = False

    def _require_whole(self) -> None:
        if self._failed:
            self.refresh()

    def _refresh(self) -> None:
        mirror = read_mirror(self._folder, self._disk)
        self._complete = mirror.complete if mirror is not None else Lsn.ZERO
        start = mirror.start if mirror is not None else None
        if start != self._start:  # a new log was started in the directory of the previous one
            self._forget_all()
            self._start = start
        self._drop_expired()
        if not self._is_continued():
            self._forget_all()
            self._list()
        while self._live is not None:
            number, followed = self._live
            closed = index_path(self._folder, number + 1).exists()  # before the index is read, which is then complete
            followed = self._follow(number, followed, closed=closed)
            if not closed:
                self._live = (number, followed)
                break
            self._close(number, followed)
            self._live = (number + 1, self._follow(number + 1, _Followed(0), closed=False))

    def _drop_expired(self) -> None:
        """Leave out the indexes that expiry has removed: the first ones."""
        while len(self._closed) and not index_path(self._folder, int(self._closed["number"][0])).exists():
            self._rows.pop(int(self._closed["number"][0]), None)
            self._closed = self._closed[1:]

    def _is_continued(self) -> bool:
        """Whether the log has what was read of it, and perhaps more.

        Recovery replaces the last one, and removes one whose segment was never started;
        then the index before it is the last one again.
        """
        if self._live is None:
            return False
        number, followed = self._live
        try:
            inode = index_path(self._folder, number).stat().st_ino
        except FileNotFoundError:
            return False
        return inode == followed.inode

    def _list(self) -> None:
        """Find the indexes in the directory, and the summaries of all but the last."""
        found = self._numbers()
        if not found:
            return
        first, last = found[0], found[-1]
        known, _ = read_summaries(self._folder, self._disk)
        self._closed = known[(known["number"] >= first) & (known["number"] < last)]
        for number in sorted({*range(first, last)} - set(self._closed["number"].tolist())):
            self._close(number, self._follow(number, _Followed(0), closed=True))
        self._closed = np.sort(self._closed, order="number")
        self._live = (last, _Followed(0))

    def _numbers(self) -> list[int]:
        """The numbers of the indexes. One that is missing was just removed by expiry, or the log is damaged."""
        for _ in range(2):
            found = numbers(self._disk.names(self._folder), INDEX)
            missing = {*range(found[0], found[-1])} - {*found} if found else {*()}
            if not missing:
                return found
        raise LogDamaged(f"{index_path(self._folder, min(missing))} is missing, but later files exist", _HINT)

    def _close(self, number: int, followed: _Followed) -> None:
        """Keep the summary of a closed index that was read to its end."""
        self._closed = np.concatenate([self._closed, followed.summary(number)])
        self._keep(number, followed.rows.closed())

    @property
    def received(self) -> Lsn:
        """The received LSN of this view: it contains every commit at or below."""
        with self._lock:
            self._require_whole()
            positions = [int(self._closed["position"].max(initial=0)), self._live[1].position if self._live else 0]
            return max(Lsn(max(positions)), self._complete)

    @property
    def start(self) -> Lsn | None:
        """The start of the log; commits below are not listed."""
        with self._lock:
            self._require_whole()
            return self._start

    @property
    def index(self) -> CommitIndex:
        """The commits of this view, including those whose bytes were removed."""
        return CommitIndex(self._summaries(), lambda number: self._rows_of(number).rows.commits)

    def commits(self) -> Rows:
        """All commits of the index in order, including those whose bytes were removed."""
        return joined_rows([self._rows_of(int(number)).rows.commits for number in self._summaries()["number"]], COMMITS)

    def last_commits(self) -> list[LastCommit]:
        """The last commit and the highest transaction ID up to the end of each index, in order."""
        every = self._summaries()
        lasts, xids = np.maximum.accumulate(every["last"]), np.maximum.accumulate(every["greatest_xid"])
        found = zip(every["number"].tolist(), lasts.tolist(), xids.tolist(), strict=True)
        return [LastCommit(number, Lsn(lsn), Xid8(xid)) for number, lsn, xid in found]

    def count(self, after: Lsn, upto: Lsn) -> int:
        """The number of commits above `after` and at or below `upto`."""
        return self.index.count(after, upto)

    def boundary(self, snapshot: Snapshot, lsn: Lsn) -> Boundary:
        """The boundary of a session that read this snapshot and, in the same statement, this insert position."""
        if self.received < lsn:
            raise LogBehind(f"{lsn} has not been received: the received LSN is {self.received}", _BEHIND)
        self._require_listed(lsn)
        return Boundary(lsn, self.index.hidden(snapshot, lsn))

    def boundary_on_standby(self, snapshot: Snapshot, before: Lsn, after: Lsn) -> Boundary | None:
        """The boundary of a session on a standby, from the replay LSNs before and after its snapshot was taken.

        None if the snapshot does not determine it. The received LSN must be above `after`, since a commit is visible
        slightly before the replay LSN passes it.
        """
        if self.received <= after:
            raise LogBehind(f"nothing above {after} has been received: the received LSN is {self.received}", _BEHIND)
        self._require_listed(before)
        upto = self.index.shown_by_standby(snapshot, before, after)
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
        boundary, index = self.boundary(snapshot, lsn), self.index
        # Read this file after the index: it is written before commits are removed from the index.
        forgotten = read_forgotten(self._folder, self._disk)
        running = [xid for xid in snapshot.xip if xid <= forgotten and not index.has(xid)]
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
        summaries = self._summaries()
        concerned = (summaries["last"] > after.value) & (summaries["first"] <= upto.value)
        for number in summaries["number"][concerned]:
            found = self._rows_of(int(number))
            commits = found.rows.commits
            first, last = np.searchsorted(commits["lsn"], np.array([after.value, upto.value], np.uint64), "right")
            if first == last:
                continue
            count_from, some = found.count_from(), commits[first:last]
            streamed = np.flatnonzero((some["streamed"] != 0) & (some["relations"] != 0))
            cuts = np.unique(np.clip([first, *count_from, *streamed + first + 1, last], first, last)).tolist()
            for start, end in pairwise(cuts):
                part = found.some(start, end)
                standing = np.concatenate([found.rows.standing[count_from <= start], found.relations_before(start)])
                yield Assembled(part.commits, part.extents, part.aborted, part.relations, _in_order(standing))

    def read(
        self, after: Lsn, upto: Lsn, types: Types, limits: Limits | None = None
    ) -> Iterator[ChangeBatch | Undecodable]:
        """Decode the changes of the transactions above `after` and at or below `upto`, in commit order."""
        for part in self.transactions(after, upto):
            yield from decoded(part, self._folder, types, limits, self._disk)

    def buffers(self, part: Assembled) -> Mapping[int, Bytes]:
        """Map the segments that these rows refer to, and verify the checksums of their blocks."""
        return mapped_segments(part, self._folder, self._disk)

    def changed_tables(self, part: Assembled) -> frozenset[int]:
        """The OIDs of the tables that these transactions change."""
        return changed_tables(part, self._folder, self._disk)

    def _summaries(self) -> Rows:
        """The summary of every index, in order, as of the last refresh."""
        with self._lock:
            self._require_whole()
            if self._live is None:
                return self._closed
            number, followed = self._live
            return np.concatenate([self._closed, followed.summary(number)])

    def _rows_of(self, number: int) -> IndexRows:
        """The rows of an index. A closed one must have what its summary states."""
        with self._lock:
            self._require_whole()
            if self._live is not None and number == self._live[0]:
                return self._live[1].rows.view()
            if (rows := self._rows.get(number)) is not None:
                self._rows.move_to_end(number)
                return rows
            try:
                followed = self._follow(number, _Followed(0), closed=True)
            except LogDamaged:
                if self._numbers()[0] > number:
                    raise NotAnswerable(*_expired(number)) from None
                raise
            known = self._closed[self._closed["number"] == number]  # none, if another thread has refreshed meanwhile
            if len(known) and known[0] != followed.summary(number)[0]:
                raise LogDamaged(f"{index_path(self._folder, number)} differs from its summary", _HINT)
            rows = followed.rows.closed()
            self._keep(number, rows)
            return rows

    def _keep(self, number: int, rows: IndexRows) -> None:
        self._rows[number] = rows
        self._rows.move_to_end(number)
        while len(self._rows) > 1 and sum(each.size_bytes for each in self._rows.values()) > CACHE_BYTES:
            self._rows.popitem(last=False)

    def _follow(self, number: int, followed: _Followed, *, closed: bool) -> _Followed:
        """Read the new blocks of an index.

        A closed index must be valid to its end; otherwise rows would be missing without an error.
        """
        path = index_path(self._folder, number)
        found = mapped_file(path, self._disk)
        if found is None:
            if closed:
                raise LogDamaged(f"{path} is missing, but later files exist", _HINT)
            return followed
        inode, data = found
        if followed.inode != inode:
            followed = _Followed(inode)
        followed.held = None if closed else data
        payloads, end, position, readable = [], followed.end, followed.position, view(data)
        for block in blocks(readable, number, followed.end):
            end, position = block.end, max(position, block.position)
            if block.kind == BlockKind.INDEX:
                payloads.append(readable[block.start : end])
        followed.rows.add(unpacked_rows(payloads, str(path)))
        followed.end, followed.position = end, position
        if closed and followed.end != len(data):
            raise LogDamaged(f"{path} is damaged at byte {followed.end}", _HINT)
        return followed


def _in_order(relations: Rows) -> Rows:
    return relations[np.lexsort((relations["start"], relations["place"]))]


def _expired(number: int) -> tuple[str, str]:
    return f"the commits of index {number} have just expired", "Use a later snapshot, LSN or time."


_HINT = f"Check the disk and restore the file from a backup. {RESYNC_ALL}"
_BEHIND = "Check that `tidemark sync` or `tidemark receive` is running, and retry the command."
