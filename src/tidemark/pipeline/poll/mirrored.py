"""What the mirror has of a table, as hashes: kept here from poll to poll, or asked of Spark where they are too many.

Hashes are of keys, or of whole rows where there is no key; the same one may be there more than once. Where the key is
one integer it is kept beside its hash, so that nobody need look for the row that has it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from pyspark.sql import DataFrame

from tidemark.pipeline.poll.digests import BITS, Among, Digest, Digests, added, mirror_digests
from tidemark.values.kernels import Flags, Longs

MOST_KEPT = 20_000_000  # hashes of 8 bytes, over all tables
_NONE: Longs = np.empty(0, np.int64)


class Room:
    """How many hashes may still be kept. Asked by several threads."""

    def __init__(self, left: int) -> None:
        self._left, self._lock = left, threading.Lock()

    def take(self, count: int) -> bool:
        """Whether there is room for so many; then it is taken."""
        with self._lock:
            fits = count <= self._left
            self._left -= count * fits
            return fits


@dataclass(frozen=True, slots=True)
class Hashes:
    """Hashes, and the keys that have them, if these are integers."""

    hashes: Longs
    keys: Longs | None = None

    @classmethod
    def joined(cls, parts: Iterable[Hashes]) -> Hashes:
        """All of them, in any order."""
        every = [each for each in parts if len(each.hashes)]
        keys = [each.keys for each in every if each.keys is not None]
        return cls(
            np.concatenate([_NONE, *(each.hashes for each in every)]),
            np.concatenate([_NONE, *keys]) if len(keys) == len(every) else None,
        )

    def chosen(self, which: Flags | Longs) -> Hashes:
        """Some of them, or all in another order."""
        return Hashes(self.hashes[which], None if self.keys is None else self.keys[which])

    def shares_any(self, some: Hashes) -> bool:
        """Whether one of some of them, all in order, is there more than once."""
        first = np.searchsorted(self.hashes, some.hashes, "left")
        return bool((np.searchsorted(self.hashes, some.hashes, "right") - first > 1).any())

    def digest(self) -> Digest:
        """All of them."""
        return Digest.of(self.hashes)


@dataclass(frozen=True, slots=True)
class Kept:
    """Hashes, in order. If it was `thinned` some were taken away since the last poll, as may happen again."""

    has: Hashes
    thinned: bool = False

    @classmethod
    def of(cls, hashes: Hashes) -> Kept:
        """Hashes in any order."""
        return cls(hashes.chosen(np.argsort(hashes.hashes, kind="stable")))

    def __len__(self) -> int:
        return len(self.has.hashes)

    def digest(self) -> Digest:
        """All of them."""
        return self.has.digest()

    def digests(self, bits: int, among: Among) -> Digests:
        """By ranges of so many bits: all, or those within coarser ranges."""
        hashes = self.has.hashes if among is None else self.within(*among).hashes
        return Digests.of(hashes >> np.int64(BITS - bits), np.ones(len(hashes), np.int64), added(hashes))

    def within(self, bits: int, ranges: frozenset[int]) -> Hashes:
        """Those that lie in some ranges, in order."""
        numbers, wanted = self.has.hashes >> np.int64(BITS - bits), np.array(sorted(ranges), np.int64)
        begins, ends = (np.searchsorted(numbers, wanted, side) for side in ("left", "right"))
        counts = ends - begins
        places = np.repeat(begins - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        return self.has.chosen(places)

    def lacking(self, others: Hashes) -> Hashes:
        """Those of others that are not among them."""
        place = np.minimum(np.searchsorted(self.has.hashes, others.hashes), max(0, len(self) - 1))
        there = self.has.hashes[place] == others.hashes if len(self) else np.zeros(len(others.hashes), bool)
        return others.chosen(~there)

    def plus(self, added: Hashes) -> Kept:
        """With others."""
        return replace(Kept.of(Hashes.joined([self.has, added])), thinned=self.thinned) if len(added.hashes) else self

    def minus(self, removed: Hashes) -> Kept:
        """Without some of them, each as often as it is said."""
        found = _found(np.sort(removed.hashes), self.has.hashes)
        return Kept(self.has.chosen(~found), thinned=True) if len(removed.hashes) else self


def only_in(ones: Hashes, others: Longs) -> Hashes:
    """Those of some hashes in order that are not among others in order, each as often as it is there more."""
    return ones.chosen(~_found(others, ones.hashes))


def _found(wanted: Longs, hashes: Longs) -> Flags:
    """Which of some hashes in order are wanted: the nth of equal ones, if it is wanted n times."""
    at = np.searchsorted(hashes, wanted) + _places(wanted)
    inside = at < len(hashes)
    at, wanted = at[inside], wanted[inside]
    flags = np.zeros(len(hashes), bool)
    flags[at[hashes[at] == wanted]] = True
    return flags


def _places(ordered: Longs) -> Longs:
    """For each of some values in order, how many of the same come before it."""
    places: Longs = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    return places


@dataclass(frozen=True, slots=True)
class Asked:
    """Rows that have a `hash`."""

    rows: DataFrame

    def digests(self, bits: int, among: Among) -> Digests:
        """By ranges of so many bits: all, or those within coarser ranges."""
        return mirror_digests(self.rows, bits, among)
