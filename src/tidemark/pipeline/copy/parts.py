"""What a copy is cut into: ranges of a table's pages, and small tables together. Pure.

Parts are what is done at a time, told of, and done again where one fails. One for each core keeps all of them busy, as
its server process works beside the task; more of them cost time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemark.pipeline.fold.layout import BUCKET_BYTES

PART_BYTES = 256 << 20
LEAST_BYTES = 16 << 20
MOST_TOGETHER = 32  # parts that a task is given, however small they are
_SHRINKS = 3  # times smaller than its pages is what becomes of a table


@dataclass(frozen=True, slots=True)
class Part:
    """Pages of a table from one to before another; the last part has no end."""

    oid: int
    first: int
    end: int | None
    size_bytes: int


def parts_of(oid: int, pages: int, page_bytes: int, tasks: int) -> tuple[Part, ...]:
    """A table in parts."""
    size = pages * page_bytes
    wanted = min(PART_BYTES, max(LEAST_BYTES, -(-size // tasks)))
    step = max(1, -(-wanted // page_bytes))
    firsts = list(range(0, pages, step)) or [0]
    ends = [*firsts[1:], None]
    return tuple(
        Part(oid, first, end, ((end if end is not None else pages) - first) * page_bytes)
        for first, end in zip(firsts, ends, strict=True)
    )


def together(parts: Iterable[Part]) -> list[tuple[Part, ...]]:
    """Parts for one task each: large ones alone, small ones in company; the largest first."""
    groups: list[tuple[Part, ...]] = []
    gathered: list[Part] = []
    for part in sorted(parts, key=lambda each: -each.size_bytes):
        gathered.append(part)
        if _size(gathered) >= LEAST_BYTES or len(gathered) == MOST_TOGETHER:
            groups.append(tuple(gathered))
            gathered = []
    return [*groups, tuple(gathered)] if gathered else groups


def buckets_for(size_bytes: int) -> int:
    """How many buckets a table of this size is copied into."""
    return max(1, round(size_bytes / _SHRINKS / BUCKET_BYTES))


def _size(parts: Sequence[Part]) -> int:
    return sum(part.size_bytes for part in parts)
