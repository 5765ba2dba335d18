"""The search for the rows that differ: ranges are divided until they have few rows, which are then listed. Pure.

If nearly all rows differ, listing them would transfer the whole table, so the search ends at a number of differences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tidemark.mirror.compare.digest import NO_ROWS, LocatedDigest, Range, Row, Side

FEW = 10_000  # a range with at most so many rows is listed and not divided


class Verdict(Enum):
    """The result of the comparison of a table."""

    EQUAL = "equal"
    DIFFERENT = "different"
    NOT_COMPARED = "not compared"


class Difference(Enum):
    """How a row differs."""

    MISSING = "missing"
    EXTRA = "extra"
    OTHER = "different"


@dataclass(frozen=True, slots=True)
class Differing:
    """A key, or a row without one, that differs, with its rows on both sides as listed.

    `other` are the rows of the mirror or of the target. `columns` are the names of those that differ, if they were
    determined.
    """

    how: Difference
    key: str | None
    source: tuple[str, ...]
    other: tuple[str, ...]
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundDifferences:
    """The differences in the order of their ranges; `more` is True if there are others."""

    differing: tuple[Differing, ...]
    more: bool


def narrowed(
    source: Side, other: Side, totals: tuple[LocatedDigest, LocatedDigest], limit: int, *, values: bool
) -> FoundDifferences:
    """Return at most `limit` rows that differ."""
    found: list[Differing] = []
    waiting = [(Range.around(*totals), totals)]
    while waiting and len(found) <= limit:
        within, both = waiting.pop(0)
        if max(each.digest.rows for each in both) <= FEW or within.step == 0 or within.low == within.high:
            found += _listed(source.rows(within, values=values), other.rows(within, values=values))
        else:
            there, here = source.parts(within), other.parts(within)
            pairs = ((there.get(n, NO_ROWS), here.get(n, NO_ROWS)) for n in sorted(there.keys() | here.keys()))
            parts = [(Range.around(*pair), pair) for pair in pairs if pair[0].digest != pair[1].digest]
            waiting = [*parts, *waiting]
    return FoundDifferences(tuple(found[:limit]), bool(waiting) or len(found) > limit)


def _listed(source: Counter[Row], other: Counter[Row]) -> Iterator[Differing]:
    missing, extra = source - other, other - source
    keyless = [row for row in (*missing, *extra) if row.key is None]
    for row in sorted(set(keyless), key=lambda each: each.content):
        here, there = (row.content,) * extra[row], (row.content,) * missing[row]
        yield Differing(Difference.EXTRA if here else Difference.MISSING, None, there, here)
    for key in sorted({row.key for row in (*missing, *extra) if row.key is not None}):
        there = tuple(sorted(row.content for row in missing.elements() if row.key == key))
        here = tuple(sorted(row.content for row in extra.elements() if row.key == key))
        how = Difference.OTHER if there and here else Difference.MISSING if there else Difference.EXTRA
        yield Differing(how, key, there, here)
