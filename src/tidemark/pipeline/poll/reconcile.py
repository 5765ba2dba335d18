"""Finds where a source and its copy differ: by digests of all rows, then of ranges, until few rows have to be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tidemark.pipeline.copy.parts import Part
from tidemark.pipeline.poll.digests import Among, Digests, Ranges, Text, source_digests
from tidemark.postgres.shared import SharedSnapshot
from tidemark.reads.digests import RowDigest
from tidemark.schema.fingerprint import Fingerprint
from tidemark.values.kernels import Longs

RANGE_ROWS = 32  # rows per range when rows are read
MOST_RANGES = 1 << 16  # ranges per request
FEW_ROWS = 10_000  # rows that are read without a request for smaller ranges
MOST_BITS = 48  # rows whose hashes agree in these are most likely equal, and not separated further


@dataclass(frozen=True, slots=True)
class DifferingRanges:
    """The ranges whose digests differ, the number of rows of each side in them, and the source's digest of all rows."""

    bits: int
    numbers: Longs
    source_rows: Longs
    mirror_rows: Longs
    source_whole: RowDigest

    @classmethod
    def between(
        cls, bits: int, source: Digests, mirror: Digests, within: DifferingRanges | None = None
    ) -> DifferingRanges:
        """The ranges that differ, among all or within coarser ranges."""
        numbers = np.union1d(source.numbers, mirror.numbers)
        (source_rows, source_totals), (mirror_rows, mirror_totals) = source.at(numbers), mirror.at(numbers)
        differs = (source_rows != mirror_rows) | (source_totals != mirror_totals)
        whole = within.source_whole if within is not None else source.whole()
        return cls(bits, numbers[differs], source_rows[differs], mirror_rows[differs], whole)

    @property
    def all(self) -> Ranges:
        """All ranges that differ."""
        return self.bits, frozenset(self.numbers.tolist())

    @property
    def emptied(self) -> Ranges:
        """The ranges without rows at the source: all rows of the mirror in them were deleted."""
        return self.bits, frozenset(self.numbers[self.source_rows == 0].tolist())

    @property
    def rows(self) -> int:
        """The number of rows in these ranges, on the side that has more in each."""
        return int(np.maximum(self.source_rows, self.mirror_rows).sum())


class DigestedRows(Protocol):
    """The rows of a copy: a lake's, or those of a table of another server."""

    def digests(self, bits: int, among: Among) -> Digests:
        """The digests by ranges of `bits` bits: of all rows, or of those in coarser ranges."""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table at the source, in an open snapshot."""

    fingerprint: Fingerprint
    parts: tuple[Part, ...]
    text: Text
    source: SharedSnapshot
    tasks: int

    def digest(self) -> RowDigest:
        """The digest of all rows."""
        return self._digests(0, None).whole()

    def differing(self, copy: DigestedRows, count: int) -> DifferingRanges:
        """The ranges in which the rows differ from those of the copy; `count` is the number of rows."""
        found: DifferingRanges | None = None
        bits, left = 0, count
        while True:
            ranges = max(1, len(found.numbers)) if found is not None else 1
            more = min(_bits(left // (ranges * RANGE_ROWS)), _bits(MOST_RANGES // ranges), MOST_BITS - bits)
            if found is not None and (more <= 0 or left <= FEW_ROWS):
                return found
            bits += max(1, more)
            among = found.all if found is not None else None
            found = DifferingRanges.between(bits, self._digests(bits, among), copy.digests(bits, among), found)
            left = found.rows

    def _digests(self, bits: int, among: Among) -> Digests:
        return source_digests(self.source, self.fingerprint, self.parts, self.text, bits, among, self.tasks)


def _bits(count: int) -> int:
    """The largest number of bits that divides the hashes into at most `count` ranges."""
    return max(0, count.bit_length() - 1)
