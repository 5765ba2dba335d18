"""Searches in the commit index that read only the indexes they need, which the summaries of all indexes determine.

Transaction IDs and commit LSNs increase with time, though not strictly: a snapshot or a time concerns few indexes,
however many there are. Pure: the caller loads the commits of an index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tidemark.clock import Lsn, Snapshot, Xid8
from tidemark.log.index import hidden, shown_by_standby
from tidemark.pgoutput.rows import COMMITS, Rows, joined_rows
from tidemark.values.kernels import Longs


@dataclass(frozen=True, slots=True)
class FoundCommit:
    """A commit, and the greatest commit time up to it, in microseconds since 2000."""

    lsn: Lsn
    xid: int
    micros: int
    latest: int


class CommitIndex:
    """The commits of the log at one time: a summary of each index in order, and a function that loads its commits."""

    def __init__(self, summaries: Rows, load: Callable[[int], Rows]) -> None:
        self._all = summaries[summaries["commits"] > 0]
        self._load = load

    def hidden(self, snapshot: Snapshot, lsn: Lsn) -> frozenset[Lsn]:
        """The commits at or below `lsn` that are not visible in a snapshot."""
        least = min([snapshot.xmax, *snapshot.xip]).value
        some = self._some((self._all["greatest_xid"] >= least) & (self._all["first"] <= lsn.value))
        return frozenset(found for commits in some for found in hidden(commits, snapshot, lsn))

    def has(self, xid: Xid8) -> bool:
        """Whether a transaction is listed."""
        among = (self._all["least_xid"] <= xid.value) & (xid.value <= self._all["greatest_xid"])
        return any(np.uint64(xid.value) in commits["xid"] for commits in self._some(among))

    def shown_by_standby(self, snapshot: Snapshot, before: Lsn, after: Lsn) -> Lsn | None:
        """The last commit that is visible in a snapshot of a standby; see `index.shown_by_standby`."""
        parts = []
        for commits in self._some(self._all["last"] > before.value):
            parts.append(commits)
            if int(commits["lsn"][-1]) > after.value:
                break
        return shown_by_standby(joined_rows(parts, COMMITS), snapshot, before, after)

    def count(self, after: Lsn, upto: Lsn) -> int:
        """The number of commits above `after` and at or below `upto`."""
        inside = (self._all["first"] > after.value) & (self._all["last"] <= upto.value)
        border = np.array([after.value, upto.value], np.uint64)
        found = int(self._all["commits"][inside].sum())
        for commits in self._some(~inside & (self._all["last"] > after.value) & (self._all["first"] <= upto.value)):
            first, last = np.searchsorted(commits["lsn"], border, "right")
            found += int(last - first)
        return found

    def first(self, above: Lsn) -> FoundCommit | None:
        """The first commit above an LSN."""
        places, _ = self._above(above)
        return _found(self._cut(places[0], above), 0, None) if len(places) else None

    def last_before(self, micros: int, above: Lsn) -> tuple[Lsn | None, bool]:
        """The last commit above an LSN up to which no commit is later than a time, and whether commits follow it."""
        places, latest = self._above(above)
        whole = int(np.searchsorted(latest, micros, side="right"))
        last = Lsn(int(self._all["last"][places[whole - 1]])) if whole else None
        if whole == len(places):
            return last, False
        commits = self._cut(places[whole], above)
        before = int(np.searchsorted(np.maximum.accumulate(commits["micros"]), micros, side="right"))
        return Lsn(int(commits["lsn"][before - 1])) if before else last, True

    def at(self, lsn: Lsn, above: Lsn) -> FoundCommit | None:
        """The last commit at or below `lsn` and above `above`."""
        places, latest = self._above(above)
        below = int(np.count_nonzero(self._all["first"][places] <= lsn.value))
        if not below:
            return None
        commits = self._cut(places[below - 1], above)
        count = int(np.searchsorted(commits["lsn"], np.uint64(lsn.value), side="right"))
        return _found(commits, count - 1, int(latest[below - 2]) if below > 1 else None) if count else None

    def _above(self, lsn: Lsn) -> tuple[Longs, Longs]:
        """The indexes with commits above an LSN, and the greatest time of these commits up to the end of each."""
        places = np.flatnonzero(self._all["last"] > lsn.value)
        latest = self._all["latest"][places].astype(np.int64)
        if len(places) and int(self._all["first"][places[0]]) <= lsn.value:
            latest[0] = self._cut(places[0], lsn)["micros"].max()
        return places, np.maximum.accumulate(latest)

    def _some(self, which: Rows) -> Iterator[Rows]:
        return (self._load(int(number)) for number in self._all["number"][which])

    def _cut(self, place: int, above: Lsn) -> Rows:
        """The commits of an index above an LSN."""
        commits = self._load(int(self._all["number"][place]))
        return commits[int(np.searchsorted(commits["lsn"], np.uint64(above.value), side="right")) :]


def _found(commits: Rows, at: int, latest: int | None) -> FoundCommit:
    """A commit; `latest` is the greatest time of the commits before these, if there are any."""
    commit, times = commits[at], commits["micros"][: at + 1]
    greatest = int(times.max()) if latest is None else max(latest, int(times.max()))
    return FoundCommit(Lsn(int(commit["lsn"])), int(commit["xid"]), int(commit["micros"]), greatest)
