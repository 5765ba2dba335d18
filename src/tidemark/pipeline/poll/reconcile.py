"""Where the source and the mirror differ: by digests of all rows, then of ranges, until few rows are left to move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidemark.pipeline.poll.apart import Apart
from tidemark.pipeline.poll.digests import Among, Digest, Digests, source_digests
from tidemark.pipeline.poll.mirrored import Asked, Kept
from tidemark.pipeline.poll.table import PolledTable
from tidemark.postgres.shared import SharedSnapshot

RANGE_ROWS = 32  # that a range should have when rows of it are moved
MOST_RANGES = 1 << 16  # that are asked for at a time
FEW_ROWS = 10_000  # that are moved without asking for more
MOST_BITS = 48  # rows that these do not tell apart are equal ones


@dataclass(frozen=True, slots=True)
class Source:
    """A table at the source, in a snapshot that someone holds."""

    table: PolledTable
    source: SharedSnapshot
    tasks: int

    def digest(self) -> Digest:
        """All rows."""
        return self._digests(0, None).whole()

    def differing(self, mirror: Kept | Asked, count: int) -> Apart:
        """The ranges in which there are other rows than in the mirror."""
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
    """So many bits tell no more than this apart."""
    return max(0, count.bit_length() - 1)
