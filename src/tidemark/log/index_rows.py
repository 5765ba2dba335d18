"""The rows of one index in memory. They grow with the index: what is appended costs the same, however many there are.

Next to the rows, sums and maxima over all commits before each are kept, so that a few commits are found, and their rows
cut out, without reading those of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tidemark.log.summaries import SUMMARIES, add_commits
from tidemark.pgoutput.rows import ABORTED, COMMITS, EXTENTS, RELATIONS, Assembled, Rows
from tidemark.values.kernels import Longs

_COUNTED = ("extents", "aborted", "relations")
_KINDS = {"commits": COMMITS, "extents": EXTENTS, "aborted": ABORTED, "relations": RELATIONS, "standing": RELATIONS}


@dataclass(frozen=True, slots=True)
class IndexRows:
    """The rows of an index up to some commit.

    `before` has, for extents, aborted subtransactions and relations, their number before each commit, and in all. The
    plain transactions up to each commit end at or before `ends`.
    """

    rows: Assembled
    before: dict[str, Longs]
    ends: Rows

    @property
    def size_bytes(self) -> int:
        """The memory that they take."""
        return self.rows.size_bytes + self.ends.nbytes + sum(each.nbytes for each in self.before.values())

    def some(self, first: int, last: int) -> Assembled:
        """Return the transactions with index `first` up to but not including `last`, with their rows."""
        cut = {name: getattr(self.rows, name)[sums[first] : sums[last]] for name, sums in self.before.items()}
        return Assembled(commits=self.rows.commits[first:last], **cut)

    def relations_before(self, commit: int) -> Rows:
        """The relations of all transactions before one."""
        relations: Rows = self.rows.relations[: self.before["relations"][commit]]
        return relations

    def count_from(self) -> Longs:
        """For each standing relation, the index of the first commit that it applies to.

        Only the ends of plain transactions are compared: a streamed transaction sends its own Relation messages.
        """
        return np.searchsorted(self.ends, self.rows.standing["start"], side="right")


class GrowingIndex:
    """Collects the rows of an index."""

    def __init__(self) -> None:
        self._rows = {name: _Growing(kind) for name, kind in _KINDS.items()}
        self._before = {name: _Growing(np.dtype(np.int64), 0) for name in _COUNTED}
        self._ends = _Growing(np.dtype(np.uint64))
        self._summary = np.zeros(1, SUMMARIES)

    def add(self, new: Assembled) -> None:
        """Append the rows of further blocks."""
        for name, rows in self._rows.items():
            rows.add(getattr(new, name))
        for name, sums in self._before.items():
            sums.add(sums.last + np.cumsum(new.commits[name], dtype=np.int64))
        self._ends.add(np.maximum.accumulate(np.maximum(_ends(new), self._ends.last)))
        add_commits(self._summary, new.commits)

    def view(self) -> IndexRows:
        """The rows so far. They do not change when others are appended."""
        rows = Assembled(**{name: each.rows for name, each in self._rows.items()})
        return IndexRows(rows, {name: each.rows for name, each in self._before.items()}, self._ends.rows)

    def closed(self) -> IndexRows:
        """The rows when there will be no others, without spare room."""
        for growing in (*self._rows.values(), *self._before.values(), self._ends):
            growing.trim()
        return self.view()

    def summary(self, number: int, position: int, size_bytes: int) -> Rows:
        """The summary of the index, as an array with one element."""
        summary = self._summary.copy()
        summary["number"], summary["position"], summary["size_bytes"] = number, position, size_bytes
        return summary


class _Growing:
    """An array with spare room at its end, so that appending copies each row a bounded number of times."""

    def __init__(self, kind: np.dtype[Any], *first: int) -> None:
        self._data = np.array(first, kind) if first else np.empty(0, kind)
        self._count = len(first)

    @property
    def rows(self) -> Rows:
        return self._data[: self._count]

    @property
    def last(self) -> Any:
        """The last number; 0 if there is none."""
        return self._data[self._count - 1] if self._count else self._data.dtype.type(0)

    def add(self, rows: Rows) -> None:
        if not len(rows):
            return
        if not self._count:
            self._data, self._count = rows, len(rows)
            return
        needed = self._count + len(rows)
        if needed > len(self._data):
            grown = np.empty(max(needed, 2 * len(self._data)), self._data.dtype)
            _bytes(grown)[: self.rows.nbytes] = _bytes(self.rows)
            self._data = grown
        _bytes(self._data[self._count : needed])[:] = _bytes(rows)
        self._count = needed

    def trim(self) -> None:
        if len(self._data) > self._count:
            self._data = self.rows.copy()


def _ends(new: Assembled) -> Rows:
    """The end of each plain transaction; 0 for the others."""
    ends = np.zeros(len(new), np.uint64)
    plain = (new.commits["streamed"] == 0) & (new.commits["extents"] > 0)
    ends[plain] = new.extents["end"][(np.cumsum(new.commits["extents"], dtype=np.int64) - 1)[plain]]
    return ends


def _bytes(rows: Rows) -> Rows:
    """The bytes of rows: copied as bytes, structured rows take a tenth of the time."""
    return np.ascontiguousarray(rows).view(np.uint8)
