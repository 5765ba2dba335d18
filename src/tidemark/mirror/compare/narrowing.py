"""From two digests that differ to the keys that do: ranges are cut until they are few rows, and these are listed. Pure.

Where nearly everything differs, listing it would move the whole table: it ends at a number of differences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tidemark.mirror.compare.digest import Digest, Range, Row, Side

FEW = 10_000  # rows that are listed rather than cut again


class Difference(Enum):
    """How a row differs."""

    MISSING = "missing"
    EXTRA = "extra"
    OTHER = "different"


@dataclass(frozen=True, slots=True)
class Differing:
    """A key, or a row that has none, that is not in the mirror as it is at the source; its rows as they were listed."""

    how: Difference
    key: str | None
    source: tuple[str, ...]
    mirror: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """What differs, in the order of its ranges; `more` says that there is more."""

    differing: tuple[Differing, ...]
    more: bool


def narrowed(source: Side, mirror: Side, totals: tuple[Digest, Digest], limit: int, *, values: bool) -> Found:
    """Find at most so many rows that differ."""
    found: list[Differing] = []
    waiting = [(Range.around(*totals), totals)]
    while waiting and len(found) <= limit:
        within, both = waiting.pop(0)
        if max(each.rows for each in both) <= FEW or within.step == 0 or within.low == within.high:
            found += _listed(source.rows(within, values=values), mirror.rows(within, values=values))
        else:
            there, here = source.parts(within), mirror.parts(within)
            pairs = ((there.get(n, Digest()), here.get(n, Digest())) for n in sorted(there.keys() | here.keys()))
            parts = [(Range.around(*pair), pair) for pair in pairs if not pair[0].is_same(pair[1])]
            waiting = [*parts, *waiting]
    return Found(tuple(found[:limit]), bool(waiting) or len(found) > limit)


def _listed(source: Counter[Row], mirror: Counter[Row]) -> Iterator[Differing]:
    missing, extra = source - mirror, mirror - source
    keyless = [row for row in (*missing, *extra) if row.key is None]
    for row in sorted(set(keyless), key=lambda each: each.said):
        here, there = (row.said,) * extra[row], (row.said,) * missing[row]
        yield Differing(Difference.EXTRA if here else Difference.MISSING, None, there, here)
    for key in sorted({row.key for row in (*missing, *extra) if row.key is not None}):
        there = tuple(sorted(row.said for row in missing.elements() if row.key == key))
        here = tuple(sorted(row.said for row in extra.elements() if row.key == key))
        how = Difference.OTHER if there and here else Difference.MISSING if there else Difference.EXTRA
        yield Differing(how, key, there, here)
