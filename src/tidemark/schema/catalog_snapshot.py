"""Catalog snapshots: table definitions as one database snapshot shows them. Pure.

A database snapshot is not an LSN, so a single catalog snapshot does not determine how the tables were defined at a
position: DDL may be logged below it and not be visible yet. Two catalog snapshots do. A transaction that changes a
definition holds its lock until it is visible, so `held`, which is read between the two, contains every such transaction
that could be invisible to both. If all transactions in `held` that may change a table are visible to the second, every
change of that table's definition that was committed up to the first one's LSN is visible to the second. If the
definition is also equal in both, it is that of every position up to that LSN.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tidemark.clock import Lsn, Snapshot, Xid8
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import Catalog, PgType


@dataclass(frozen=True, slots=True)
class WatchedObjects:
    """The oids of the tables that were known before, and of every type in them."""

    tables: Collection[int] = ()
    types: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class DefinitionLock:
    """A lock with which a transaction may change a table, a type, or both; without either, any table."""

    xid: Xid8
    table: int | None = None
    type: int | None = None


@dataclass(frozen=True, slots=True)
class CatalogSnapshot:
    """A catalog snapshot. `roots` contains the partitioned tables above the published ones.

    `empty` contains those of the requested tables that have no rows; for `held` see the module. On a standby `lsn` is
    the LSN replayed after the snapshot was taken and `replayed` the LSN replayed before it; on a primary `replayed` is
    None. Tables with `flaws` are not in `tables`.
    """

    snapshot: Snapshot
    lsn: Lsn
    time: datetime
    tables: Mapping[int, Fingerprint]
    roots: Mapping[int, Fingerprint]
    types: Mapping[int, PgType]
    empty: frozenset[int]
    held: tuple[DefinitionLock, ...]
    replayed: Lsn | None = None
    flaws: Mapping[int, str] = field(default_factory=dict)

    @property
    def unseen(self) -> tuple[DefinitionLock, ...]:
        """The locks of transactions that are not visible here. A definition is confirmed unless one of them is on it.

        A confirmed definition that is equal in an earlier catalog snapshot holds at every position up to its LSN.
        """
        return tuple(lock for lock in self.held if not self.snapshot.sees(lock.xid))


def roots_of(catalog: Catalog, tables: Iterable[int]) -> dict[int, Fingerprint]:
    """Return the partitioned tables above the given tables."""
    found = {root.oid: root for oid in tables for root in catalog.ancestors(catalog.by_oid[oid])}
    return {oid: Fingerprint.of(root, ()) for oid, root in found.items()}
