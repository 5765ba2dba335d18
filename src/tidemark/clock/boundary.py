"""The boundary of a read: a position in the commit order, and the commits at or below it that are not visible.

PostgreSQL makes commits visible in a different order than it logs them, so an LSN alone cannot represent a snapshot. A
Boundary represents both kinds of read: *as of LSN* (a prefix of the commit order, nothing excluded) and *as of
SNAPSHOT* (exactly the commits that were visible to a session).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.clock.lsn import Lsn
from tidemark.clock.snapshot import Snapshot
from tidemark.clock.xid import Xid8
from tidemark.errors import InvalidValue


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
