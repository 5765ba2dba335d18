"""Digests of rows that do not depend on their order: the number of rows, and the sum of their hashes. Pure.

A hash is the first 60 bits of the md5 of a canonical text: both engines have md5, and neither has the other's own hash
functions. Rows that differ are found by their position: the key if it is one integer, so that the source can use its
index for a range; otherwise the hash of the key, or of the row if there is no key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

WAYS = 64  # parts that a range is divided into
DIGITS = 15  # hexadecimal digits of a hash
WHOLE = 10_000


@dataclass(frozen=True, slots=True)
class RowDigest:
    """The digest of rows: their number, the sum of their hashes, and their lowest and highest position."""

    rows: int = 0
    total: int = 0
    low: int = 0
    high: int = 0

    def is_same(self, other: RowDigest) -> bool:
        """Return whether the number of rows and the sum of their hashes are equal."""
        return (self.rows, self.total) == (other.rows, other.total)

    def __str__(self) -> str:
        return f"{self.total % 2**64:016x}"


@dataclass(frozen=True, slots=True)
class Range:
    """A range of positions, both ends included."""

    low: int
    high: int

    @classmethod
    def around(cls, *digests: RowDigest) -> Range:
        """Return the smallest range that contains all rows of these digests."""
        filled = [each for each in digests if each.rows]
        return cls(min(each.low for each in filled), max(each.high for each in filled))

    @property
    def step(self) -> int:
        """The number of positions in each of its `WAYS` parts."""
        return -(-(self.high - self.low + 1) // WAYS)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a range: the text of its key, if it has one, and its hash, or its own text if values are requested."""

    key: str | None
    said: str


class Side(Protocol):
    """The rows of one table in one engine."""

    def whole(self) -> RowDigest:
        """Return the digest of all rows."""

    def parts(self, within: Range) -> Mapping[int, RowDigest]:
        """Return the digest of each part of a range that has rows, by the number of the part."""

    def rows(self, within: Range, *, values: bool) -> Counter[Row]:
        """Return the rows of a range, with the number of times that each occurs."""
