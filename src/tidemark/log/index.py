"""The commit index: the transaction ID and LSN of every commit, and the locations of its bytes.

The payload of an index block, little-endian: uint64 the offset in the segment up to which the index is complete with
this block, five uint32 with the number of rows of each kind, then the rows of each kind (see `pgoutput.rows`). The
transaction IDs of commits are full IDs here.
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
    """The rows of one index block, and the offset in the segment up to which the index is complete with them."""

    rows: Assembled
    described: int

    def packed(self) -> bytes:
        """The payload of an index block."""
        parts = [getattr(self.rows, name) for name, _ in _KINDS]
        return _HEAD.pack(self.described, *map(len, parts)) + b"".join(part.tobytes() for part in parts)


def unpacked(payload: bytes, what: str) -> IndexPart:
    """Parse the payload of an index block.

    Its checksum was valid, so a payload of the wrong size was written by another version of Tidemark.
    """
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
    """Commits with full transaction IDs, each within 2^31 of `reference`, a full ID that is known to be near."""
    full = commits.copy()
    near = np.uint64(reference)
    ahead = (commits["xid"].astype(np.uint32) - near.astype(np.uint32)).view(np.int32).astype(np.int64)
    full["xid"] = near + ahead.view(np.uint64)
    return full


def hidden(commits: Rows, snapshot: Snapshot, lsn: Lsn) -> tuple[Lsn, ...]:
    """The commits at or below `lsn` that are not visible in this snapshot."""
    below = commits[: int(np.searchsorted(commits["lsn"], np.uint64(lsn.value), side="right"))]
    running = np.array([xid.value for xid in snapshot.xip], np.uint64)
    unseen = (below["xid"] >= np.uint64(snapshot.xmax.value)) | np.isin(below["xid"], running)
    return tuple(Lsn(int(value)) for value in below["lsn"][unseen])


def shown_by_standby(commits: Rows, snapshot: Snapshot, before: Lsn, after: Lsn) -> Lsn | None:
    """The last commit that is visible in a snapshot of a standby, or `before` if none above `before` is.

    `before` and `after` are the replay LSNs read before and after the snapshot was taken. A standby makes commits
    visible in WAL order, each slightly before its replay LSN passes it. So the commits above `before`, up to the first
    one above `after`, may be visible or not. The snapshot does not list running transactions: None if its xmin and xmax
    do not determine which of these commits are visible.
    """
    start, end = np.searchsorted(commits["lsn"], np.array([before.value, after.value], np.uint64), "right")
    unsure = commits[int(start) : int(end) + 1]
    seen = np.flatnonzero(unsure["xid"] < np.uint64(snapshot.xmin.value))
    unseen = np.flatnonzero(unsure["xid"] >= np.uint64(snapshot.xmax.value))
    upto = int(seen[-1]) + 1 if len(seen) else 0
    if upto != (int(unseen[0]) if len(unseen) else len(unsure)):
        return None
    return Lsn(int(unsure["lsn"][upto - 1])) if upto else before
