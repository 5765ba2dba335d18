"""The schema tracker: the events of all tables of a mirror, and how a new definition is recorded. Pure.

Stream and poll mode derive their trackers from it: both turn what they read at the source into table events, which are
stored by a function that the caller supplies, and keep the definitions that hold at each LSN.

`SchemaLsns` keeps up to which LSN the definition of each table is known. The schema LSN of the mirror is the position
that `latest` reads. It waits for a table for `GRACE`, so that a short DDL statement fails no read; after that it passes
the table, which is then behind and can be read up to its own schema LSN. No schema LSN ever decreases.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tidemark.clock import Lsn, Xid8
from tidemark.schema.catalog_snapshot import CatalogSnapshot
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableEvent, TableEventKind, TableHistory, needed_events, of_events
from tidemark.schema.table import PgType

Store = Callable[[Sequence[TableEvent]], None]
GRACE = timedelta(seconds=2)


class SchemaTracker:
    """All tables that are or were mirrored, with their events in order. There is one tracker per mirror at a time."""

    def __init__(self, events: Iterable[TableEvent], store: Store) -> None:
        self._store = store
        self._events = {oid: list(history.events) for oid, history in of_events(events).items()}
        self._unstored: list[TableEvent] = []
        self._changes = 0  # of the events

    @property
    def histories(self) -> dict[int, TableHistory]:
        """The history of every table, by OID."""
        return {oid: TableHistory(tuple(events)) for oid, events in self._events.items()}

    def history(self, oid: int) -> TableHistory:
        """The history of a table."""
        return TableHistory(tuple(self._events[oid]))

    def path(self, oid: int) -> str:
        """The path of a table in the lake."""
        return self._events[oid][-1].path

    @property
    def types(self) -> Mapping[int, PgType]:
        """Every type that a column has or had, by OID."""
        columns = (c for events in self._events.values() for event in events for c in event.fingerprint.columns)
        return {column.type.oid: column.type for column in columns}

    def is_live(self, oid: int) -> bool:
        """Whether a table can be read up to the present."""
        return oid in self._events and self.history(oid).live

    def forget(self, retained: Lsn, gone: Collection[int]) -> None:
        """Forget the events that no read at or above an LSN needs, and dropped tables, as the sink has done before."""
        kept = {oid: events for oid, events in self._events.items() if oid not in gone}
        self._events = {oid: list(needed_events(events, retained)) for oid, events in kept.items()}
        self._changes += 1

    def _add(self, event: TableEvent) -> None:
        """Add an event. Every public method that adds events stores them with `_store_added` before it returns."""
        self._changes += 1
        self._unstored.append(event)
        self._events.setdefault(event.fingerprint.oid, []).append(event)

    def _store_added(self) -> list[TableEvent]:
        """Store the added events together, because a database may have thousands of tables; return them."""
        added, self._unstored = self._unstored, []
        if added:
            self._store(added)
        return added

    def _partitioned(self) -> dict[int, TableEvent]:
        """The last event of every partitioned table that is not dropped."""
        last = {oid: events[-1] for oid, events in self._events.items()}
        return {oid: event for oid, event in last.items() if event.kind is TableEventKind.UNION}


def changed_roots(
    roots: Mapping[int, Fingerprint], recorded: Mapping[int, Fingerprint]
) -> Iterator[tuple[Fingerprint, bool]]:
    """Return the partitioned tables that differ from their recorded definitions, and whether each has one."""
    return ((root, oid in recorded) for oid, root in roots.items() if recorded.get(oid) != root)


@dataclass(frozen=True, slots=True)
class Uncertain:
    """A table whose definition is known up to `lsn` and not above, since a time by the source's clock.

    Once the transactions in `holders` are visible and the definition is unchanged, it is known up to `upto`, even if
    other transactions have locks on the table by then. `holders` is None while it is not known to be unchanged.
    """

    lsn: Lsn
    since: datetime | None = None
    holders: frozenset[Xid8] | None = None
    upto: Lsn = Lsn.ZERO

    def is_recent(self, now: datetime) -> bool:
        """Whether the schema LSN of the mirror waits for the table. It does not if an earlier writer passed it."""
        return self.since is not None and now - self.since < GRACE

    def again(self, holders: frozenset[Xid8] | None, upto: Lsn, snapshot: CatalogSnapshot) -> Uncertain:
        """The table after another catalog snapshot, in which these transactions have locks on it, or it has changed."""
        if holders is None:
            return replace(self, holders=None)
        if self.holders is None:
            return replace(self, holders=holders, upto=upto)
        if all(snapshot.snapshot.sees(xid) for xid in self.holders):
            return Uncertain(max(self.lsn, self.upto), snapshot.time, holders, upto)
        return self


class SchemaLsns:
    """The schema LSN of the mirror, and those of the tables that are behind it."""

    def __init__(self, mirror: Lsn, behind: Mapping[int, Lsn]) -> None:
        self.mirror = self._confirmed = mirror
        self.behind = dict(behind)
        self._uncertain = {oid: Uncertain(lsn) for oid, lsn in behind.items()}

    def of(self, oid: int) -> Lsn:
        """The LSN up to which the definition of a table is known."""
        return self._uncertain[oid].lsn if oid in self._uncertain else self._confirmed

    @property
    def complete(self) -> Lsn:
        """The LSN up to which the definitions of all tables are known."""
        return min([self.mirror, *self.behind.values()])

    def suspend(self, oids: Collection[int]) -> None:
        """Record that tables have changed, in a catalog snapshot that confirms no table."""
        self._uncertain = {
            oid: replace(table, holders=None) if oid in oids else table for oid, table in self._uncertain.items()
        }

    def advance(
        self,
        upto: Lsn,
        uncertain: Mapping[int, frozenset[Xid8] | None],
        snapshot: CatalogSnapshot,
        is_live: Callable[[int], bool],
    ) -> None:
        """Advance the schema LSNs of all tables to an LSN, except those whose definitions are uncertain there.

        These come with the transactions that have locks on them, or None if they have changed.
        """
        now, before = snapshot.time, self._uncertain
        self._uncertain = {
            oid: before[oid].again(holders, upto, snapshot)
            if oid in before
            else Uncertain(self._confirmed, now, holders, upto)
            for oid, holders in uncertain.items()
        }
        self._confirmed = max(self._confirmed, upto)
        recent = [table.lsn for oid, table in self._uncertain.items() if table.is_recent(now) and is_live(oid)]
        self.mirror = max(self.mirror, min([self._confirmed, *recent]))
        self.behind = {oid: table.lsn for oid, table in self._uncertain.items() if table.lsn < self.mirror}
