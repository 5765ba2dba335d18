"""The clock: commit LSNs, transaction ids, snapshots and the boundary at which a read sees the world. All pure."""

from tidemark.clock.boundary import Boundary
from tidemark.clock.lsn import Lsn
from tidemark.clock.snapshot import Snapshot
from tidemark.clock.visibility import Version, contents, visible
from tidemark.clock.xid import Xid8

__all__ = ["Boundary", "Lsn", "Snapshot", "Version", "Xid8", "contents", "visible"]
