"""Reading the log from any process, also while another one appends to it.

A reader follows the indexes: rows appear there after the bytes they speak of, so what it knows of it can read. Bytes
are read by extent; the block that an extent lies in is checked before anything in it is believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.decode.assembly import COMMITS, Assembled, Rows
from tidemark.decode.changes import ChangeBatch, Limits
from tidemark.decode.extents import Reading, Said, decode_assembled, describe
from tidemark.decode.kernels import Bytes
from tidemark.decode.relations import Scope
from tidemark.decode.types import Types
from tidemark.errors import LogBehind, LogDamaged, LogTrimmed
from tidemark.log.blocks import Kind, block_at, blocks, view
from tidemark.log.disk import Disk
from tidemark.log.index import hidden, unpacked
from tidemark.log.segment import INDEX, index_path, numbers, segment_path


@dataclass(slots=True)
class _Followed:
    """One index as far as it was read: which file, how far, and its rows."""

    inode: int
    end: int = 0
    position: int = 0
    parts: list[Assembled] = field(default_factory=list)

    def rows(self) -> Assembled:
        if len(self.parts) > 1:
            self.parts = [Assembled.joined(self.parts)]
        return self.parts[0] if self.parts else Assembled()


class LogReader:
    """A view of the log that moves only with `refresh`."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self._folder = folder
        self._disk = disk or Disk()
        self._indexes: dict[int, _Followed] = {}
        self.refresh()

    def refresh(self) -> None:
        """Take in what was appended since."""
        found = numbers(self._disk.names(self._folder), INDEX)
        for number in sorted(set(self._indexes) - set(found)):
            del self._indexes[number]
        newest = max((number for number, index in self._indexes.items() if index.end), default=0)
        for number in found:
            if number >= newest:
                self._follow(number)

    @property
    def received(self) -> Lsn:
        """Every commit at or below it is in this view."""
        return Lsn(max((index.position for index in self._indexes.values()), default=0))

    def commits(self) -> Rows:
        """All commits of the index, in order; also those whose bytes are gone."""
        parts = [self._indexes[number].rows().commits for number in sorted(self._indexes)]
        return np.concatenate([np.empty(0, COMMITS), *parts])

    def boundary(self, snapshot: Snapshot, lsn: Lsn) -> Boundary:
        """What a session saw that read this snapshot and, in the same statement, this insert position."""
        if self.received < lsn:
            raise LogBehind(f"the log reaches {self.received}, and {lsn} is asked for", "again when it was received")
        return Boundary(lsn, frozenset(hidden(self.commits(), snapshot, lsn)))

    def transactions(self, after: Lsn, upto: Lsn) -> Iterator[Assembled]:
        """Transactions whose commit lies above `after` and at or below `upto`, a part for each segment's index.

        With each part stand the descriptions of tables that were in force before its first transaction.
        """
        if self.received < upto:
            raise LogBehind(f"the log reaches {self.received}, and {upto} is asked for", "again when it was received")
        for number in sorted(self._indexes):
            rows = self._indexes[number].rows()
            first, last = np.searchsorted(rows.commits["lsn"], np.array([after.value, upto.value], np.uint64), "right")
            if first < last:
                before = rows.some(0, int(first)).relations
                part = rows.some(int(first), int(last))
                standing = np.concatenate([rows.standing, before])
                yield Assembled(part.commits, part.extents, part.aborted, part.relations, _in_order(standing))

    def read(self, after: Lsn, upto: Lsn, types: Types, limits: Limits | None = None) -> Iterator[ChangeBatch | Said]:
        """The changes of these transactions, in commit order."""
        for part in self.transactions(after, upto):
            buffers = self.buffers(part)
            scope = Scope()
            describe(part.standing, buffers, scope)
            bare = Assembled(part.commits, part.extents, part.aborted, part.relations)
            yield from decode_assembled(bare, Reading(buffers, scope, types, limits or Limits()))

    def buffers(self, part: Assembled) -> Mapping[int, Bytes]:
        """The segments that these rows speak of, mapped, with every block that is needed found sound."""
        needed = [part.extents[["place", "block"]], part.standing[["place", "block"]]]
        wanted = sorted({(int(place), int(block)) for rows in needed for place, block in np.unique(rows).tolist()})
        buffers: dict[int, Bytes] = {}
        for place, offset in wanted:
            path = segment_path(self._folder, place)
            if place not in buffers:
                if not path.exists():
                    raise LogTrimmed(f"{path} is gone: the lake has what was in it", "the lake")
                buffers[place] = self._disk.map(path)
            if block_at(view(buffers[place]), place, offset) is None:
                raise LogDamaged(f"{path} is damaged in the block at byte {offset}", "tidemark log, which looks at all")
        return buffers

    def _follow(self, number: int) -> None:
        path = index_path(self._folder, number)
        try:
            inode = path.stat().st_ino
        except FileNotFoundError:
            return
        followed = self._indexes.get(number)
        if followed is None or followed.inode != inode:
            followed = self._indexes[number] = _Followed(inode)
        data = self._disk.read(path, followed.end)
        base = followed.end
        for block in blocks(memoryview(data), number, base, base):
            followed.end, followed.position = block.end, max(followed.position, block.position)
            if block.kind == Kind.INDEX:
                followed.parts.append(unpacked(data[block.start - base : block.end - base], str(path)).rows)


def _in_order(relations: Rows) -> Rows:
    return relations[np.lexsort((relations["start"], relations["place"]))]
