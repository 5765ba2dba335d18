"""The commit index: the transaction ID and LSN of every commit, and the locations of its bytes.

The payload of an index block, little-endian: uint64 the offset in the segment up to which the index is complete with
this block, five uint32 with the number of rows of each kind, then the rows of each kind (see `pgoutput.rows`). The
transaction IDs of commits are full IDs here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
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
_SIZES = tuple(kind.itemsize for _, kind in _KINDS)
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


def unpacked(payload: bytes | memoryview, what: str) -> IndexPart:
    """Parse the payload of an index block."""
    pieces = _Pieces(what)
    described = pieces.add(payload)
    return IndexPart(pieces.joined(), described)


def unpacked_rows(payloads: Iterable[memoryview], what: str) -> Assembled:
    """Return the rows of consecutive index blocks; a receiver writes one for each commit if it has the time."""
    pieces = _Pieces(what)
    for payload in payloads:
        pieces.add(payload)
    return pieces.joined()


class _Pieces:
    """The bytes of the rows of index blocks, by kind.

    Their checksums were valid, so a payload of the wrong size was written by another version of Tidemark.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._found: tuple[list[bytes | memoryview], ...] = tuple([] for _ in _KINDS)

    def add(self, payload: bytes | memoryview) -> int:
        """Add a block; return the offset in the segment up to which the index is complete with it."""
        if len(payload) < _HEAD.size:
            raise LogDamaged(f"{self._what}: index block of only {len(payload)} bytes", _VERSION)
        described, *counts = _HEAD.unpack_from(payload)
        begin = _HEAD.size
        for pieces, count, size in zip(self._found, counts, _SIZES, strict=True):
            if count:
                end = begin + count * size
                pieces.append(payload[begin:end])
                begin = end
        if begin != len(payload):
            raise LogDamaged(f"{self._what}: index block whose size does not match its row counts {counts}", _VERSION)
        return int(described)

    def joined(self) -> Assembled:
        """All rows."""
        found = zip(_KINDS, self._found, strict=True)
        return Assembled(**{name: np.frombuffer(b"".join(pieces), kind) for (name, kind), pieces in found})


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
    least = min([snapshot.xmax, *snapshot.xip])
    late = below[np.flatnonzero(below["xid"] >= np.uint64(least.value))]
    running = np.array([xid.value for xid in snapshot.xip], np.uint64)
    unseen = (late["xid"] >= np.uint64(snapshot.xmax.value)) | np.isin(late["xid"], running)
    return tuple(Lsn(int(value)) for value in late["lsn"][unseen])


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
