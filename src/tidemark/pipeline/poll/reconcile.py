"""Finds where source and mirror differ: by digests of all rows, then of ranges, until few rows have to be read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidemark.pipeline.poll.apart import Apart
from tidemark.pipeline.poll.digests import Among, Digests, RangeDigest, source_digests
from tidemark.pipeline.poll.mirrored import Kept, MirroredRows
from tidemark.pipeline.poll.table import PolledTable
from tidemark.postgres.shared import SharedSnapshot

RANGE_ROWS = 32  # rows per range when rows are read
MOST_RANGES = 1 << 16  # ranges per request
FEW_ROWS = 10_000  # rows that are read without a request for smaller ranges
MOST_BITS = 48  # rows whose hashes agree in these are most likely equal, and not separated further


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table at the source, in an open snapshot."""

    table: PolledTable
    source: SharedSnapshot
    tasks: int

    def digest(self) -> RangeDigest:
        """The digest of all rows."""
        return self._digests(0, None).whole()

    def differing(self, mirror: Kept | MirroredRows, count: int) -> Apart:
        """The ranges in which the rows differ from those of the mirror; `count` is the number of rows."""
        apart: Apart | None = None
        bits, left = 0, count
        while True:
            ranges = max(1, len(apart.numbers)) if apart is not None else 1
            more = min(_bits(left // (ranges * RANGE_ROWS)), _bits(MOST_RANGES // ranges), MOST_BITS - bits)
            if apart is not None and (more <= 0 or left <= FEW_ROWS):
                return apart
            bits += max(1, more)
            among = apart.ranges if apart is not None else None
            apart = Apart.between(bits, self._digests(bits, among), mirror.digests(bits, among), apart)
            left = int(np.maximum(apart.theirs[0], apart.ours[0]).sum())

    def _digests(self, bits: int, among: Among) -> Digests:
        table = self.table
        return source_digests(self.source, table.fingerprint, table.parts, table.text(), bits, among, self.tasks)


def _bits(count: int) -> int:
    """The largest number of bits that divides the hashes into at most `count` ranges."""
    return max(0, count.bit_length() - 1)
