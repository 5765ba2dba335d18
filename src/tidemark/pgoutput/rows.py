"""Committed transactions as rows: who committed where, and where the frames of each lie.

A transaction is a chain of *extents*: stretches of frames, each in one block of one place (a buffer, a segment of a
log), each with the ordinal of its first change. An ordinal counts the changes that were sent, those of aborted
subtransactions too: so any extent can be read without those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Rows: TypeAlias = npt.NDArray[Any]

# A committed transaction; how many of the rows below are its own, in order. `streamed` is 1 where it came in blocks.
COMMITS = np.dtype(
    [
        ("lsn", "<u8"), ("xid", "<u8"), ("micros", "<i8"),
        ("extents", "<u4"), ("aborted", "<u4"), ("relations", "<u4"), ("streamed", "<u4"),
    ]
)  # fmt: skip
# A stretch of a transaction's frames and the ordinal of its first change.
EXTENTS = np.dtype([("place", "<u8"), ("block", "<u8"), ("start", "<u8"), ("end", "<u8"), ("ordinal", "<u8")])
# The xid of a subtransaction whose changes do not count.
ABORTED = np.dtype("<u4")
# Where a Relation message lies. A table's description in force is the one that came last of those that count.
RELATIONS = np.dtype(
    [("place", "<u8"), ("block", "<u8"), ("start", "<u8"), ("end", "<u8"), ("oid", "<u4"), ("streamed", "<u4")]
)
# Where a logical message lies that belongs to no transaction.
SAID = np.dtype([("place", "<u8"), ("start", "<u8"), ("end", "<u8")])
KINDS = (COMMITS, EXTENTS, ABORTED, RELATIONS, RELATIONS, SAID)


@dataclass(frozen=True, slots=True)
class Assembled:
    """Transactions in commit order, and their rows in the same order.

    `standing` are descriptions that came outside of any transaction and count for all that follow, `said` the messages
    that did.
    """

    commits: Rows = field(default_factory=lambda: np.empty(0, COMMITS))
    extents: Rows = field(default_factory=lambda: np.empty(0, EXTENTS))
    aborted: Rows = field(default_factory=lambda: np.empty(0, ABORTED))
    relations: Rows = field(default_factory=lambda: np.empty(0, RELATIONS))
    standing: Rows = field(default_factory=lambda: np.empty(0, RELATIONS))
    said: Rows = field(default_factory=lambda: np.empty(0, SAID))

    def __len__(self) -> int:
        return len(self.commits)

    @classmethod
    def joined(cls, parts: Sequence[Assembled]) -> Assembled:
        """Parts that follow each other as one."""
        if len(parts) == 1:
            return parts[0]
        names = ("commits", "extents", "aborted", "relations", "standing", "said")
        return cls(
            *(
                joined_rows([getattr(part, name) for part in parts], kind)
                for name, kind in zip(names, KINDS, strict=True)
            )
        )

    def some(self, first: int, last: int) -> Assembled:
        """The transactions from one to before another, with their rows."""
        counted = ("extents", "aborted", "relations")
        cut = {}
        for name in counted:
            start = int(self.commits[name][:first].sum())
            cut[name] = getattr(self, name)[start : start + int(self.commits[name][first:last].sum())]
        return Assembled(commits=self.commits[first:last], **cut)


def joined_rows(parts: Sequence[Rows], kind: np.dtype[Any]) -> Rows:
    """Rows of one kind, one after the other. np.concatenate takes 12 µs for each part of structured rows."""
    some = [part for part in parts if len(part)]
    if len(some) <= 1:
        return some[0] if some else np.empty(0, kind)
    return np.frombuffer(b"".join([part.tobytes() for part in some]), kind)
