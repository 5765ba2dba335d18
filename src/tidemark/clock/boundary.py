"""The boundary of a read: a position in the commit order, and the commits at or below it that are not visible.

PostgreSQL makes commits visible in a different order than it logs them, so an LSN alone cannot represent a snapshot. A
Boundary represents both kinds of read: *as of LSN* (a prefix of the commit order, nothing excluded) and *as of
SNAPSHOT* (exactly the commits that were visible to a session).

Row versions are visible at a boundary one by one in tables with a key, and as a sum in tables without a key. A version
is valid in an interval: `begin` is the commit LSN of the transaction that created it, `end` that of the transaction
that removed it, or None.

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

from tidemark.clock.lsn import Lsn
from tidemark.clock.snapshot import Snapshot
from tidemark.clock.xid import Xid8
from tidemark.errors import InvalidValue

Row = TypeVar("Row", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Boundary:
    """The position of a read: every commit at or below `lsn` is visible, except those in `excluded`."""

    lsn: Lsn
    excluded: frozenset[Lsn] = frozenset()

    def __post_init__(self) -> None:
        beyond = [lsn for lsn in self.excluded if lsn > self.lsn]
        if beyond:
            raise InvalidValue(f"excluded LSN {min(beyond)} is above the boundary at {self.lsn}")

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot, lsn: Lsn, commits: Iterable[tuple[Xid8, Lsn]]) -> Boundary:
        """The boundary of a session that read `snapshot` and the insert position `lsn` in one statement.

        `commits` are pairs of a top-level xid and a commit LSN, and must include *every* commit at or below `lsn`: a
        missing commit would be visible at the boundary even if it was not visible to the session.
        """
        return cls(lsn, frozenset(commit for xid, commit in commits if commit <= lsn and not snapshot.sees(xid)))

    @property
    def floor(self) -> Lsn:
        """The highest LSN at or below which no commit is excluded."""
        return min(self.excluded).before() if self.excluded else self.lsn

    def sees(self, commit: Lsn) -> bool:
        """Whether the transaction with this commit LSN is visible."""
        return commit <= self.lsn and commit not in self.excluded

    def __str__(self) -> str:
        if not self.excluded:
            return str(self.lsn)
        return f"{self.lsn} without {', '.join(map(str, sorted(self.excluded)))}"

    def __repr__(self) -> str:
        return f"Boundary({self})"


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
