"""The hashes of a table's rows in the mirror: kept in memory between polls, or computed by Spark if too many.

Hashes are those of keys, or of whole rows if there is no key; the same hash may occur more than once. A key that is a
single integer is stored with its hash, so that deletes need no search for the row.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from pyspark.sql import DataFrame

from tidemark.pipeline.poll.digests import Among, Digests, mirror_digests
from tidemark.reads.digests import BITS, RowDigest, contributions
from tidemark.values.kernels import Flags, Longs

MOST_KEPT = 20_000_000  # hashes of 8 bytes each, in all tables together
_NONE: Longs = np.empty(0, np.int64)


class Room:
    """The number of hashes that may still be kept in memory; thread-safe."""

    def __init__(self, left: int) -> None:
        self._left, self._lock = left, threading.Lock()

    def take(self, count: int) -> bool:
        """Reserve room for `count` hashes; false if there is not enough."""
        with self._lock:
            fits = count <= self._left
            self._left -= count * fits
            return fits


@dataclass(frozen=True, slots=True)
class Hashes:
    """Hashes, and their keys if these are integers."""

    hashes: Longs
    keys: Longs | None = None

    @classmethod
    def joined(cls, parts: Iterable[Hashes]) -> Hashes:
        """The hashes of all parts, in any order."""
        every = [each for each in parts if len(each.hashes)]
        keys = [each.keys for each in every if each.keys is not None]
        return cls(
            np.concatenate([_NONE, *(each.hashes for each in every)]),
            np.concatenate([_NONE, *keys]) if len(keys) == len(every) else None,
        )

    def chosen(self, which: Flags | Longs) -> Hashes:
        """A selection of the hashes, or all of them in another order."""
        return Hashes(self.hashes[which], None if self.keys is None else self.keys[which])

    def shares_any(self, some: Hashes) -> bool:
        """Whether one of `some` occurs more than once in these hashes, which are sorted."""
        first = np.searchsorted(self.hashes, some.hashes, "left")
        return bool((np.searchsorted(self.hashes, some.hashes, "right") - first > 1).any())

    def digest(self) -> RowDigest:
        """The digest of all hashes."""
        return RowDigest.of(self.hashes)


@dataclass(frozen=True, slots=True)
class Kept:
    """Sorted hashes; `thinned` if some were removed since the last poll, which may happen again."""

    has: Hashes
    thinned: bool = False

    @classmethod
    def of(cls, hashes: Hashes) -> Kept:
        """Sort hashes."""
        return cls(hashes.chosen(np.argsort(hashes.hashes, kind="stable")))

    def __len__(self) -> int:
        return len(self.has.hashes)

    def digest(self) -> RowDigest:
        """The digest of all hashes."""
        return self.has.digest()

    def digests(self, bits: int, among: Among) -> Digests:
        """The digests by ranges of `bits` bits: of all hashes, or of those in coarser ranges."""
        hashes = self.has.hashes if among is None else self.within(*among).hashes
        return Digests.of(hashes >> np.int64(BITS - bits), np.ones(len(hashes), np.int64), contributions(hashes))

    def within(self, bits: int, ranges: frozenset[int]) -> Hashes:
        """The hashes in some ranges, sorted."""
        numbers, wanted = self.has.hashes >> np.int64(BITS - bits), np.array(sorted(ranges), np.int64)
        begins, ends = (np.searchsorted(numbers, wanted, side) for side in ("left", "right"))
        counts = ends - begins
        places = np.repeat(begins - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        return self.has.chosen(places)

    def lacking(self, others: Hashes) -> Hashes:
        """Those of `others` that are not among these hashes."""
        place = np.minimum(np.searchsorted(self.has.hashes, others.hashes), max(0, len(self) - 1))
        there = self.has.hashes[place] == others.hashes if len(self) else np.zeros(len(others.hashes), bool)
        return others.chosen(~there)

    def plus(self, added: Hashes) -> Kept:
        """These hashes and the added ones."""
        return replace(Kept.of(Hashes.joined([self.has, added])), thinned=self.thinned) if len(added.hashes) else self

    def minus(self, removed: Hashes) -> Kept:
        """These hashes without the removed ones, each as often as it occurs in `removed`."""
        found = _found(np.sort(removed.hashes), self.has.hashes)
        return Kept(self.has.chosen(~found), thinned=True) if len(removed.hashes) else self


def only_in(ones: Hashes, others: Longs) -> Hashes:
    """The hashes that occur more often in `ones` than in `others`, as often as they do; both are sorted."""
    return ones.chosen(~_found(others, ones.hashes))


def _found(wanted: Longs, hashes: Longs) -> Flags:
    """Which of some sorted hashes are in `wanted`, also sorted: of equal ones, as many as `wanted` has."""
    at = np.searchsorted(hashes, wanted) + _places(wanted)
    inside = at < len(hashes)
    at, wanted = at[inside], wanted[inside]
    flags = np.zeros(len(hashes), bool)
    flags[at[hashes[at] == wanted]] = True
    return flags


def _places(ordered: Longs) -> Longs:
    """For each of some sorted values, the number of equal values before it."""
    places: Longs = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    return places


@dataclass(frozen=True, slots=True)
class MirroredRows:
    """Rows of the mirror that have a `hash`."""

    rows: DataFrame

    def digests(self, bits: int, among: Among) -> Digests:
        """The digests by ranges of `bits` bits, computed by Spark: of all rows, or of those in coarser ranges."""
        return mirror_digests(self.rows, bits, among)
