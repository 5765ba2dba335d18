"""The commit index: who committed where, and where the bytes are.

An index block's payload, little-endian: uint64 how far the segment is described by the index up to here, uint32 how
many rows there are of each kind, then the rows of each kind (`decode.rows` says what they are). Transaction ids of
commits are full ids here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from tidemark.clock import Lsn, Snapshot
from tidemark.errors import LogDamaged
from tidemark.pgoutput.rows import ABORTED, COMMITS, EXTENTS, RELATIONS, Assembled, Rows

_HEAD = struct.Struct("<Q5I")
_KINDS = (
    ("commits", COMMITS),
    ("extents", EXTENTS),
    ("aborted", ABORTED),
    ("relations", RELATIONS),
    ("standing", RELATIONS),
)
_VERSION = "Use the version of Tidemark that wrote the log."


@dataclass(frozen=True, slots=True)
class IndexPart:
    """The rows of one index block, and how far they describe the segment."""

    rows: Assembled
    described: int

    def packed(self) -> bytes:
        """As a payload."""
        parts = [getattr(self.rows, name) for name, _ in _KINDS]
        return _HEAD.pack(self.described, *map(len, parts)) + b"".join(part.tobytes() for part in parts)


def unpacked(payload: bytes, what: str) -> IndexPart:
    """Read a payload. Its checksum was right, so one that does not fit was not written by us."""
    if len(payload) < _HEAD.size:
        raise LogDamaged(f"{what}: index block of only {len(payload)} bytes", _VERSION)
    described, *counts = _HEAD.unpack_from(payload)
    at, rows = _HEAD.size, {}
    for (name, kind), count in zip(_KINDS, counts, strict=True):
        end = at + count * kind.itemsize
        if end > len(payload):
            break
        rows[name] = np.frombuffer(payload[at:end], kind)
        at = end
    if at != len(payload) or len(rows) != len(_KINDS):
        raise LogDamaged(f"{what}: index block whose size does not match its row counts {counts}", _VERSION)
    return IndexPart(Assembled(**rows), described)


def widened(commits: Rows, reference: int) -> Rows:
    """Commits with full transaction ids: those within 2^31 of one that is known to be near."""
    full = commits.copy()
    near = np.uint64(reference)
    ahead = (commits["xid"].astype(np.uint32) - near.astype(np.uint32)).view(np.int32).astype(np.int64)
    full["xid"] = near + ahead.view(np.uint64)
    return full


def hidden(commits: Rows, snapshot: Snapshot, lsn: Lsn) -> tuple[Lsn, ...]:
    """The commits at or below `lsn` that a session with this snapshot does not see."""
    below = commits[: int(np.searchsorted(commits["lsn"], np.uint64(lsn.value), side="right"))]
    running = np.array([xid.value for xid in snapshot.xip], np.uint64)
    unseen = (below["xid"] >= np.uint64(snapshot.xmax.value)) | np.isin(below["xid"], running)
    return tuple(Lsn(int(value)) for value in below["lsn"][unseen])


def shown_by_standby(commits: Rows, snapshot: Snapshot, before: Lsn, after: Lsn) -> Lsn | None:
    """The last commit that a standby's session sees, or `before`: so far it had replayed before it took its snapshot.

    A standby shows commits in the log's order, each a little before it says that it has replayed it. So those above
    `before`, up to the first one above `after`, which it had replayed afterwards, may be seen or not. A standby's
    snapshot has no list of running ids: None if it does not tell.
    """
    start, end = np.searchsorted(commits["lsn"], np.array([before.value, after.value], np.uint64), "right")
    unsure = commits[int(start) : int(end) + 1]
    seen = np.flatnonzero(unsure["xid"] < np.uint64(snapshot.xmin.value))
    unseen = np.flatnonzero(unsure["xid"] >= np.uint64(snapshot.xmax.value))
    upto = int(seen[-1]) + 1 if len(seen) else 0
    if upto != (int(unseen[0]) if len(unseen) else len(unsure)):
        return None
    return Lsn(int(unsure["lsn"][upto - 1])) if upto else before
