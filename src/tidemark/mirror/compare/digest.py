"""Digests of rows that do not depend on their order: how many there are, and the sum of their hashes. Pure.

A hash is the first 60 bits of the md5 of a canonical text: both engines have md5, and neither has the other's own
hashes. Rows that differ are found by their position: the key where it is one integer, so that the source's index finds
a range of it; otherwise the hash of the key, or of the row where there is no key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

WAYS = 64  # parts that a range is cut into
DIGITS = 15  # of a hash, in hexadecimal
WHOLE = 10_000


@dataclass(frozen=True, slots=True)
class Digest:
    """Rows, told by their number and the sum of their hashes; they lie from one position to another."""

    rows: int = 0
    total: int = 0
    low: int = 0
    high: int = 0

    def is_same(self, other: Digest) -> bool:
        """Whether these are the same rows."""
        return (self.rows, self.total) == (other.rows, other.total)

    def __str__(self) -> str:
        return f"{self.total % 2**64:016x}"


@dataclass(frozen=True, slots=True)
class Range:
    """Positions from one to another, both included."""

    low: int
    high: int

    @classmethod
    def around(cls, *digests: Digest) -> Range:
        """Where all of their rows lie."""
        filled = [each for each in digests if each.rows]
        return cls(min(each.low for each in filled), max(each.high for each in filled))

    @property
    def step(self) -> int:
        """How long each of its parts is."""
        return -(-(self.high - self.low + 1) // WAYS)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a range: the text of its key, if it has one, and its hash, or its own text if that was asked for."""

    key: str | None
    said: str


class Side(Protocol):
    """One engine's rows of one table."""

    def whole(self) -> Digest:
        """All of them."""

    def parts(self, within: Range) -> Mapping[int, Digest]:
        """Those of each part of a range that has any, by its number."""

    def rows(self, within: Range, *, values: bool) -> Counter[Row]:
        """Those of a range, one by one."""
