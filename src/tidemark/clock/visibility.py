"""Which row versions a boundary shows: one at a time where rows have a key, as a sum where they have none.

A version lives in an interval: `begin` is its creator's commit LSN, `end` its remover's or None.

    visible(v, b)  ⇔  begin ≤ b.lsn ∧ begin ∉ b.excluded ∧ (end is None ∨ end > b.lsn ∨ end ∈ b.excluded)

Without a key a delete names a content, not a row, and which of two equal rows it closed is an arbitrary pairing. With
exclusions no pairing is right for every reader: if the closed one's creator is excluded and its remover is not, the
reader has one row fewer of that content, not the same number. So contents are summed: each version counts
`[begin seen] − [end seen]`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidemark.clock.boundary import Boundary
from tidemark.clock.lsn import Lsn
from tidemark.errors import InvalidValue

Row = TypeVar("Row", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Version(Generic[Row]):
    """One version of a row. A row inserted and deleted by one transaction has `begin == end` and is never seen."""

    row: Row
    begin: Lsn
    end: Lsn | None = None


def visible(version: Version[Row], boundary: Boundary) -> bool:
    """Whether a keyed table's reader at `boundary` sees this version."""
    return boundary.sees(version.begin) and (version.end is None or not boundary.sees(version.end))


def contents(versions: Iterable[Version[Row]], boundary: Boundary) -> Counter[Row]:
    """The multiset that a keyless table holds at `boundary`: every row with how often it is there."""
    counts: Counter[Row] = Counter()
    for version in versions:
        counts[version.row] += boundary.sees(version.begin)
        counts[version.row] -= version.end is not None and boundary.sees(version.end)
    for row, count in counts.items():
        if count < 0:
            raise InvalidValue(f"inconsistent history at {boundary}: {-count} more deletes than inserts of row {row!r}")
    return +counts
