"""Digests of the rows in a range of positions. Pure.

Rows that differ are found by their position: the key if it is one integer, so that a server can use its index for a
range; otherwise the hash of the key, or of the row if there is no key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tidemark.reads.digests import RowDigest

WAYS = 64  # parts that a range is divided into
WHOLE = 10_000


@dataclass(frozen=True, slots=True)
class LocatedDigest:
    """The digest of rows, and their lowest and highest position."""

    digest: RowDigest
    low: int
    high: int

    @classmethod
    def of(cls, rows: int, high_sum: int | None, low_sum: int | None, *ends: int | None) -> LocatedDigest:
        """The digest from the aggregates of either engine; those of no rows are null."""
        return cls(RowDigest.of_sums(rows, high_sum, low_sum), *(int(end or 0) for end in ends))


NO_ROWS = LocatedDigest(RowDigest(), 0, 0)


@dataclass(frozen=True, slots=True)
class Range:
    """A range of positions, both ends included."""

    low: int
    high: int

    @classmethod
    def around(cls, *digests: LocatedDigest) -> Range:
        """Return the smallest range that contains all rows of these digests."""
        filled = [each for each in digests if each.digest.rows]
        return cls(min(each.low for each in filled), max(each.high for each in filled))

    @property
    def step(self) -> int:
        """The number of positions in each of its `WAYS` parts."""
        return -(-(self.high - self.low + 1) // WAYS)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a range: the text of its key, if it has one, and its hash, or its own text if values are requested."""

    key: str | None
    content: str


class Side(Protocol):
    """The rows of one table in one engine."""

    def whole(self) -> LocatedDigest:
        """Return the digest of all rows."""

    def parts(self, within: Range) -> Mapping[int, LocatedDigest]:
        """Return the digest of each part of a range that has rows, by the number of the part."""

    def rows(self, within: Range, *, values: bool) -> Counter[Row]:
        """Return the rows of a range, with the number of times that each occurs."""
