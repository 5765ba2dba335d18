"""Ranges in which source and mirror differ, and the deleted rows that digests alone identify. Pure.

If few rows were deleted from a range and none were added, the digests of the range differ by exactly the contributions
of the deleted rows. The rows are identified if only one combination of that many rows has this sum. Then they need not
be requested.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidemark.pipeline.poll.digests import BITS, Digests, RangeDigest, Totals, added
from tidemark.pipeline.poll.mirrored import Hashes, Kept
from tidemark.values.kernels import Flags, Longs

MOST_GONE = 3  # the most deleted rows that are identified per range
MOST_TRIED, MOST_ROWS = 2000, 256  # limits for several deleted rows: ranges, and rows per range
Side = tuple[Longs, Totals]  # the number of rows and the total of each range


@dataclass(frozen=True, slots=True)
class Apart:
    """The ranges that differ, the digests of both sides in each, and the source's digest of all rows."""

    bits: int
    numbers: Longs
    theirs: Side
    ours: Side
    all_theirs: RangeDigest

    @classmethod
    def between(cls, bits: int, theirs: Digests, ours: Digests, within: Apart | None = None) -> Apart:
        """The ranges that differ, among all or within coarser ranges."""
        numbers = np.union1d(theirs.numbers, ours.numbers)
        (their_rows, their_totals), (our_rows, our_totals) = theirs.at(numbers), ours.at(numbers)
        other = (their_rows != our_rows) | (their_totals != our_totals)
        sides = (their_rows[other], their_totals[other]), (our_rows[other], our_totals[other])
        return cls(bits, numbers[other], *sides, within.all_theirs if within is not None else theirs.whole())

    @property
    def ranges(self) -> tuple[int, frozenset[int]]:
        """The number of bits and the ranges, as used in requests."""
        return self.bits, frozenset(self.numbers.tolist())

    def gone(self, ours: Kept) -> tuple[Hashes, Apart]:
        """The mirror's hashes that must have been deleted, in order; and the ranges where that is ambiguous."""
        has = ours.within(*self.ranges)
        place = np.searchsorted(self.numbers, has.hashes >> np.int64(BITS - self.bits))
        adds = added(has.hashes)
        fewer, less = self.ours[0] - self.theirs[0], self.ours[1] - self.theirs[1]
        chosen = ((fewer == 1)[place] & (adds == less[place])) | (self.theirs[0] == 0)[place]
        several = np.flatnonzero((fewer > 1) & (fewer <= MOST_GONE) & (self.theirs[0] > 0))
        for number in several.tolist() if len(several) <= MOST_TRIED else ():
            begin, end = np.searchsorted(place, [number, number + 1])
            if end - begin <= MOST_ROWS:
                chosen[begin:end] = _chosen(adds[begin:end], int(fewer[number]), less[number : number + 1])
        clear = (fewer > 0) & (np.bincount(place[chosen], minlength=len(self.numbers)) == fewer)
        return has.chosen(chosen & clear[place]), self._some(~clear)

    def _some(self, which: Flags) -> Apart:
        theirs, ours = ((rows[which], totals[which]) for rows, totals in (self.theirs, self.ours))
        return Apart(self.bits, self.numbers[which], theirs, ours, self.all_theirs)


def _chosen(adds: Totals, count: int, total: Totals) -> Flags:
    """The only two or three contributions that have this total; none if there are several combinations."""
    one, other = np.triu_indices(len(adds), 1)
    left = total - adds[one] - adds[other]
    if count == 2:
        fits, choice = left == 0, np.stack([one, other])
    else:
        order = np.argsort(adds)
        third = order[np.minimum(np.searchsorted(adds[order], left), len(adds) - 1)]
        fits, choice = (adds[third] == left) & (third > other), np.stack([one, other, third])
    flags = np.zeros(len(adds), bool)
    if np.count_nonzero(fits) == 1:
        flags[choice[:, fits]] = True
    return flags
