"""Which tables of a stream need a copy, are being copied, or can begin without one. Pure.

A table may begin or be copied once it is ripe: it was published, and its types were as they are, before every running
transaction began. So every change that is not visible in a snapshot taken from now on is completely in the stream, and
its values have the text that they have in that snapshot: the stream prints them as the types were when the transaction
began, and DDL on a type does not wait for the transactions that write the tables which use it.
"""

from __future__ import annotations

from tidemark.clock import Boundary, Lsn, Snapshot, Xid8
from tidemark.schema.catalog_snapshot import CatalogSnapshot
from tidemark.schema.fingerprint import Fingerprint


class CopyState:
    """The copies of all tables: requested, running, and made unnecessary by a TRUNCATE."""

    def __init__(self) -> None:
        self.requested: set[int] = set()
        self._unchanged: dict[int, tuple[object, Snapshot]] = {}
        self._running: dict[int, Lsn] = {}
        self._whole_since: dict[int, Lsn] = {}  # per copied table: above this the stream is complete
        self._truncated: dict[int, Lsn] = {}

    def observe(self, snapshot: CatalogSnapshot) -> None:
        """Record since when each table has its publications and types. One that returns has them since then."""
        self._unchanged = {oid: since for oid, since in self._unchanged.items() if oid in snapshot.tables}
        for oid, table in snapshot.tables.items():
            if self._unchanged.get(oid, (None,))[0] != _conditions(table):
                self._unchanged[oid] = (_conditions(table), snapshot.snapshot)

    def is_ripe(self, oid: int, snapshot: CatalogSnapshot) -> bool:
        """Whether a table and its types were as they are before every transaction that ran at the snapshot began."""
        seen = self._unchanged.get(oid)
        same = seen is not None and seen[0] == _conditions(snapshot.tables[oid])
        return same and seen is not None and snapshot.snapshot.xmin >= seen[1].xmax

    def ripe_after(self, oid: int) -> Xid8:
        """The xid below which every transaction must end before a table is ripe."""
        return self._unchanged[oid][1].xmax

    @property
    def copies(self) -> tuple[frozenset[int], frozenset[int]]:
        """The tables with a requested, and with a running copy."""
        return frozenset(self.requested), frozenset(self._running)

    def is_running(self, oid: int) -> bool:
        """Whether a table is being copied."""
        return oid in self._running

    def start(self, oid: int, applied: Lsn, snapshot: CatalogSnapshot | None) -> None:
        """Record that the copy of a table starts, with everything up to `applied` in the lake."""
        self._running[oid] = applied
        if snapshot is not None:
            self._whole_since.setdefault(oid, snapshot.lsn)

    def stop(self, oid: int) -> None:
        """Record that the copy of a table has ended."""
        self._running.pop(oid, None)

    def forget(self, oid: int) -> None:
        """Make a running copy of a table invalid."""
        self.stop(oid)
        self._whole_since.pop(oid, None)
        self._truncated.pop(oid, None)

    def covers_gap(self, oid: int, base: Boundary) -> bool:
        """Whether a copy includes all changes that may have been skipped before it started."""
        return base.floor >= self._running[oid]

    def may_be_truncated(self, oid: int) -> bool:
        """Whether a table could begin at a TRUNCATE, without the copy that it waits for."""
        return oid in self._whole_since

    def truncated_at(self, oid: int, lsn: Lsn) -> None:
        """Record that a commit truncated such a table."""
        if lsn > self._whole_since[oid]:
            self._truncated[oid] = lsn

    def truncated_upto(self, lsn: Lsn) -> dict[int, Lsn]:
        """The tables that were truncated up to an LSN, and where."""
        return {oid: truncated for oid, truncated in self._truncated.items() if truncated <= lsn}


def _conditions(table: Fingerprint) -> tuple[object, ...]:
    """What must not have changed since running transactions began: publications, and types that DDL can alter."""
    types = {each.oid: each for column in table.columns for each in column.type.whole()}
    return table.memberships, tuple(each for each in types.values() if each.labels or each.parts)
