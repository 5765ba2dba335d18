"""Which row versions are visible at a boundary: one by one in tables with a key, as a sum in tables without a key.

A version is valid in an interval: `begin` is the commit LSN of the transaction that created it, `end` that of the
transaction that removed it, or None.

    visible(v, b)  ⇔  begin ≤ b.lsn ∧ begin ∉ b.excluded ∧ (end is None ∨ end > b.lsn ∨ end ∈ b.excluded)

Without a key, a delete identifies the content of a row, not a row, and which one of several equal rows it ends is
arbitrary. With exclusions no choice is correct for every reader: if the insert of the ended version is excluded and its
delete is not, the reader must get one row less of that content. So contents are summed: each version counts
`[begin visible] − [end visible]`.
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
    """One version of a row; if the same transaction inserted and deleted it, `begin == end` and it is never visible."""

    row: Row
    begin: Lsn
    end: Lsn | None = None


def visible(version: Version[Row], boundary: Boundary) -> bool:
    """Whether this version of a row in a table with a key is visible at `boundary`."""
    return boundary.sees(version.begin) and (version.end is None or not boundary.sees(version.end))


def contents(versions: Iterable[Version[Row]], boundary: Boundary) -> Counter[Row]:
    """The contents of a table without a key at `boundary`, as a multiset: every row and its number of occurrences.

    A negative count means that the history is inconsistent, and raises InvalidValue.
    """
    counts: Counter[Row] = Counter()
    for version in versions:
        counts[version.row] += boundary.sees(version.begin)
        counts[version.row] -= version.end is not None and boundary.sees(version.end)
    for row, count in counts.items():
        if count < 0:
            raise InvalidValue(f"inconsistent history at {boundary}: {-count} more deletes than inserts of row {row!r}")
    return +counts
