"""The clock: commit LSNs, transaction IDs, snapshots, and the boundary of a read; without I/O."""

from tidemark.clock.boundary import Boundary, Version, contents, visible
from tidemark.clock.lsn import Lsn
from tidemark.clock.snapshot import Snapshot
from tidemark.clock.xid import Xid8

__all__ = ["Boundary", "Lsn", "Snapshot", "Version", "Xid8", "contents", "visible"]
