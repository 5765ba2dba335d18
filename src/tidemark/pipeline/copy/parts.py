"""The parts of a copy: ranges of pages of a table. Small parts share a task. Pure.

A part is the unit of work, of progress and of retries. One part for each core keeps all cores busy, because the server
process of a part runs next to its task; more parts take more time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PART_BYTES = 256 << 20
LEAST_BYTES = 16 << 20
MOST_TOGETHER = 32  # parts in a task, however small they are


@dataclass(frozen=True, slots=True)
class Part:
    """The pages of a table from `first` to before `end`; the last part has no end."""

    oid: int
    first: int
    end: int | None
    size_bytes: int


def parts_of(oid: int, pages: int, page_bytes: int, tasks: int) -> tuple[Part, ...]:
    """Divide a table into parts."""
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
    """Group parts into tasks: large parts alone, small ones together, the largest first."""
    groups: list[tuple[Part, ...]] = []
    gathered: list[Part] = []
    for part in sorted(parts, key=lambda each: -each.size_bytes):
        gathered.append(part)
        if _size(gathered) >= LEAST_BYTES or len(gathered) == MOST_TOGETHER:
            groups.append(tuple(gathered))
            gathered = []
    return [*groups, tuple(gathered)] if gathered else groups


def _size(parts: Sequence[Part]) -> int:
    return sum(part.size_bytes for part in parts)
