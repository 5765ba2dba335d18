"""The schema tracker of the stream: compares catalog snapshots with the recorded definitions. Pure.

A difference found by a catalog snapshot is pending until the log is applied up to it: only then is it known which
changes were made under which definition. Until then the schema LSN of the table, up to which its definition is known,
does not advance, so that no read returns a result that might have to be revised. Nor does it advance while another
transaction may be changing the definition, which its locks show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from tidemark.clock import Boundary, Lsn, Snapshot, Xid8
from tidemark.schema.catalog_snapshot import CatalogSnapshot, WatchedObjects
from tidemark.schema.copy_state import CopyState
from tidemark.schema.fingerprint import Effect, Fingerprint, FingerprintComparison, compare
from tidemark.schema.history import TableEvent, TableEventKind, table_path
from tidemark.schema.reasons import (
    NO_REASON,
    NOT_COPIED,
    NOT_YET,
    ONCE_DROPPED,
    UNION_ALTERED,
    UNION_DROPPED,
    Reason,
    altered,
    needs_copy,
    no_replica_identity,
    not_supported,
    open_transactions,
)
from tidemark.schema.relation import Relation, are_certain, fitting
from tidemark.schema.table import PgType
from tidemark.schema.tracker import SchemaLsns, SchemaTracker, Store, changed_roots

_BEGINNING = (TableEventKind.BEGUN, TableEventKind.EMPTIED, TableEventKind.COPIED, TableEventKind.DROPPED)


class CommitLog(Protocol):
    """The received commits, which determine the boundary of a snapshot."""

    @property
    def received(self) -> Lsn:
        """The LSN up to which every commit was received."""

    def boundary(self, snapshot: Snapshot, lsn: Lsn) -> Boundary:
        """The boundary of a snapshot that was taken at or before an LSN."""


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A change of a table's definition, made above `after` and at or below `lsn`.

    `between` contains the definitions found by catalog snapshots in the meantime, `snapshot` is that of the last one.
    """

    old: Fingerprint
    between: tuple[Fingerprint, ...]
    new: Fingerprint | None
    comparison: FingerprintComparison
    after: Lsn
    lsn: Lsn
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Beginning:
    """A table that was empty in a catalog snapshot. It begins there once the log shows which commits are excluded."""

    fingerprint: Fingerprint
    snapshot: Snapshot
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class _WaitingTables:
    """The tables that need a copy, and whether no other table waits, in one state of the tracker."""

    state: tuple[object, ...]
    to_copy: Mapping[int, Fingerprint]
    is_settled: bool


class StreamTracker(SchemaTracker):
    """All tables that are or were published, with all operations if they are in `publication`.

    `applied` is the applied LSN of the lake when the tracker is created.
    """

    def __init__(
        self, events: Iterable[TableEvent], store: Store, publication: str, lsns: SchemaLsns, applied: Lsn
    ) -> None:
        super().__init__(events, store)
        self.lsns, self._publication = lsns, publication
        histories = self.histories
        tables = {oid: each for oid, each in histories.items() if not each.is_union}
        self._present = {
            oid: each.fingerprint for oid, each in tables.items() if each.last.kind is not TableEventKind.DROPPED
        }
        self._described: dict[int, list[tuple[Lsn, Relation]]] = {}
        self._described_from = applied
        self._last: CatalogSnapshot | None = None
        self._beginnings: dict[int, Beginning] = {}
        self._copies = CopyState()
        self._restarted = {oid for oid, each in histories.items() if each.restarted}
        self.pending: dict[int, PendingChange] = {}
        self._snapshots = 0
        self._waiting: _WaitingTables | None = None

    @property
    def types(self) -> Mapping[int, PgType]:
        """Every type that a column has or had, by OID."""
        return {**super().types, **(self._last.types if self._last else {})}

    @property
    def pending_lsn(self) -> Lsn | None:
        """The LSN of the first pending change, or None. The log is applied up to it before anything above it."""
        return min((pending.lsn for pending in self.pending.values()), default=None)

    @property
    def wanted_lsn(self) -> Lsn:
        """The received LSN that is required before everything found by catalog snapshots can be recorded."""
        waiting = [each.lsn for each in self.pending.values()] + [each.lsn for each in self._beginnings.values()]
        return max(waiting, default=Lsn.ZERO)

    @property
    def watched(self) -> WatchedObjects:
        """The tables and types whose locks a catalog snapshot must read.

        Children are included: DROP TABLE and NO INHERIT lock the child and not its parent, and a child that is not
        mirrored has no events.
        """
        children = {child.oid for events in self._events.values() for child in events[-1].fingerprint.children}
        types = {inner.oid for outer in self.types.values() for inner in outer.whole()}
        return WatchedObjects(tuple(self._events.keys() | children), tuple(types))

    def observe(self, snapshot: CatalogSnapshot) -> list[TableEvent]:
        """Process a catalog snapshot and return its events.

        The schema LSNs of the tables that it confirms advance to the previous snapshot.
        """
        last, self._last = self._last, snapshot
        self._snapshots += 1
        changed = self._compare_roots(snapshot)
        oids = sorted(snapshot.tables.keys() | self._present.keys())
        changed |= {oid for oid in oids if self._compare(oid, snapshot)}
        for oid in snapshot.empty:
            self._beginnings.setdefault(oid, Beginning(snapshot.tables[oid], snapshot.snapshot, snapshot.lsn))
        self._copies.observe(snapshot)
        added = self._store_added()
        all_locked = any(lock.table is None and lock.type is None for lock in snapshot.unseen)
        if last is not None and last.lsn <= snapshot.lsn and not all_locked:
            there = snapshot.tables.keys() | snapshot.roots.keys() | self.pending.keys()
            uncertain = {**self._locked(snapshot), **dict.fromkeys(changed | self.pending.keys(), None)}
            among = {oid: holders for oid, holders in uncertain.items() if oid in there}
            self.lsns.advance(last.lsn, among, snapshot, self.is_live)
        else:
            self.lsns.suspend(changed | self.pending.keys())
        return added

    def _locked(self, snapshot: CatalogSnapshot) -> dict[int, frozenset[Xid8] | None]:
        """The tables that transactions which are not visible in a catalog snapshot may have changed, with these.

        A lock on a child counts for its parent: DROP TABLE and NO INHERIT lock the child alone.
        """
        on_tables, on_types = defaultdict[int, set[Xid8]](set), defaultdict[int, set[Xid8]](set)
        for lock in snapshot.unseen:
            if lock.table is not None:
                on_tables[lock.table].add(lock.xid)
            if lock.type is not None:
                on_types[lock.type].add(lock.xid)
        found: dict[int, frozenset[Xid8] | None] = {}
        for oid, events in self._events.items() if on_tables or on_types else ():
            table = events[-1].fingerprint
            types = {inner.oid for column in table.columns for inner in column.type.whole()} if on_types else set[int]()
            tables = {oid, *(child.oid for child in table.children)}
            holders = [*(on_tables[each] for each in tables & on_tables.keys())]
            holders += [on_types[each] for each in types & on_types.keys()]
            if holders:
                found[oid] = frozenset[Xid8]().union(*holders)
        return found

    def _compare_roots(self, snapshot: CatalogSnapshot) -> set[int]:
        """Compare partitioned tables with their recorded definitions; return those that were altered or dropped."""
        recorded = {oid: event.fingerprint for oid, event in self._partitioned().items()}
        for root, was_there in changed_roots(snapshot.roots, recorded):
            after, reason = snapshot.lsn, NO_REASON
            if was_there:
                after, reason = self.lsns.of(root.oid), UNION_ALTERED
            self._event(TableEventKind.UNION, root, after, snapshot.lsn, reason, snapshot=snapshot.snapshot)
        for oid in recorded.keys() - snapshot.roots.keys():
            self._event(TableEventKind.DROPPED, recorded[oid], self.lsns.of(oid), snapshot.lsn, UNION_DROPPED)
        return {oid for oid, fingerprint in recorded.items() if snapshot.roots.get(oid) != fingerprint}

    def _compare(self, oid: int, snapshot: CatalogSnapshot) -> bool:
        """Compare a table with its last definition; return whether it changed in a way that affects readers."""
        old, new = self._present.get(oid), snapshot.tables.get(oid)
        if old is None and new is not None:
            self._present[oid] = new
            reason = open_transactions() if self._is_whole(new) else no_replica_identity(new)
            self._event(TableEventKind.WAITING, new, snapshot.lsn, snapshot.lsn, reason)
            return False
        if old is None or old == new:
            self._record_if_not_empty(oid, snapshot)
            return False
        return self._changed(oid, old, new, snapshot)

    def _changed(self, oid: int, old: Fingerprint, new: Fingerprint | None, snapshot: CatalogSnapshot) -> bool:
        earlier = self.pending.get(oid)
        base = earlier.old if earlier else old
        comparison = compare(base, new)
        live = self.is_live(oid)
        if new is None:
            self._present.pop(oid)
        else:
            self._present[oid] = new
        if earlier is None and _equal_but_for_filenode(old, new):
            return False  # TRUNCATE and VACUUM FULL do not affect readers
        self._copies.forget(oid)
        if not live:
            self._record_unread(oid, old, new, comparison, snapshot)
            return False
        after = earlier.after if earlier else self.lsns.of(oid)
        between = (*earlier.between, old) if earlier else ()
        self.pending[oid] = PendingChange(base, between, new, comparison, after, snapshot.lsn, snapshot.snapshot)
        return True

    def _record_unread(
        self,
        oid: int,
        old: Fingerprint,
        new: Fingerprint | None,
        comparison: FingerprintComparison,
        snapshot: CatalogSnapshot,
    ) -> None:
        """Record a change of a table that is not live. Positions above its schema LSN can no longer be read."""
        ends, after = [span.end for span in self.history(oid).spans()], self.lsns.of(oid)
        if new is None:
            self._event(TableEventKind.DROPPED, old, after, snapshot.lsn, self._why_gone(oid))
        elif any(end is not None and end > after for end in ends):
            self._event(TableEventKind.GAP, new, after, snapshot.lsn, needs_copy("; ".join(comparison.reasons)))
        else:
            self._event(TableEventKind.SEEN, new, after, snapshot.lsn)

    def _record_if_not_empty(self, oid: int, snapshot: CatalogSnapshot) -> None:
        """Record that a table needs a copy, once it is clear that it cannot begin without one."""
        table = snapshot.tables.get(oid)
        if table is None or oid in snapshot.empty or oid in self._beginnings or not self._may_begin(oid, table):
            return
        if self._copies.is_ripe(oid, snapshot) and self.history(oid).last.reason.startswith(NOT_YET):
            self._event(TableEventKind.WAITING, table, snapshot.lsn, snapshot.lsn, NOT_COPIED)

    def describe(self, relations: Iterable[Relation], upto: Lsn) -> None:
        """Record the relations that transactions up to `upto` described: these tables may have been altered before."""
        above = {oid: [d for d in each if d[0] > self.lsns.of(oid)] for oid, each in self._described.items()}
        self._described = {oid: described for oid, described in above.items() if described}
        for relation in relations:
            self._described.setdefault(relation.oid, []).append((upto, relation))

    def describe_applied(self, relations: Iterable[Relation], since: Lsn, applied: Lsn) -> None:
        """Record all descriptions above an LSN in the part of the log that an earlier writer applied."""
        self.describe(relations, applied)
        self._described_from = since

    @property
    def is_beginning(self) -> bool:
        """Whether `settle` may record that an empty table can be read."""
        return bool(self._beginnings)

    def settle(self, applied: Lsn, changed_at: Mapping[int, Lsn], log: CommitLog, retained: Lsn = Lsn.ZERO) -> None:
        """Record the events that are certain at the applied LSN.

        `changed_at` is, for each table with a pending change, the LSN up to which it may have changes. Those at or
        below `retained` may have expired.
        """
        for oid, pending in list(self.pending.items()):
            if pending.lsn <= applied:
                del self.pending[oid]
                changed = changed_at.get(oid, Lsn.ZERO) > pending.after
                self._record_change(pending, changed and self._could_be_another(oid, pending))
        for oid, beginning in list(self._beginnings.items()):
            if oid in self.pending or self._present.get(oid) != beginning.fingerprint:
                del self._beginnings[oid]
            elif beginning.lsn <= log.received:
                del self._beginnings[oid]
                base = log.boundary(beginning.snapshot, beginning.lsn)
                if base.floor >= retained:  # otherwise a later catalog snapshot shows it again
                    self._begin(oid, beginning, base)
        self._store_added()

    def _begin(self, oid: int, beginning: Beginning, base: Boundary) -> None:
        """Record that an empty table can be read, unless a gap may have been caused by a commit that is excluded."""
        if not (base.excluded and self._has_gap(oid)):
            excluded, snapshot = base.excluded, beginning.snapshot
            self._event(TableEventKind.BEGUN, beginning.fingerprint, base.lsn, base.lsn, NO_REASON, excluded, snapshot)

    def _record_change(self, pending: PendingChange, uncertain: bool) -> None:
        old, new = pending.old, pending.new
        reasons = "; ".join(pending.comparison.reasons)
        if new is None:
            self._drop(old, pending.after, pending.lsn)
        elif pending.comparison.effect in (Effect.SAME, Effect.METADATA) and not uncertain:
            why = altered(reasons)
            self._event(TableEventKind.ALTERED, new, pending.after, pending.lsn, why, snapshot=pending.snapshot)
        else:
            self._event(TableEventKind.GAP, new, pending.after, pending.lsn, needs_copy(reasons))

    def _drop(self, table: Fingerprint, after: Lsn, lsn: Lsn) -> None:
        """Record that a table was dropped. If it has returned since, it waits for its copy again."""
        last = self._events[table.oid][-1]
        self._event(TableEventKind.DROPPED, table, after, lsn, self._why_gone(table.oid))
        if (present := self._present.get(table.oid)) is not None:
            self._event(TableEventKind.WAITING, present, last.lsn, last.lsn, Reason(last.reason, last.fix))

    def _could_be_another(self, oid: int, pending: PendingChange) -> bool:
        """Whether changes may have been made under another definition than the one that their description matches."""
        if pending.new is None:
            return False
        described = [relation for upto, relation in self._described.get(oid, []) if upto > pending.after]
        relations = None if self._described_from > pending.after else described
        earlier = [event.fingerprint for event in self._events[oid]]
        return not are_certain(relations, earlier, (pending.old, *pending.between, pending.new))

    def fingerprint_of(self, relation: Relation) -> Fingerprint | None:
        """The definition that a relation of the stream fits, or None."""
        pending, present = self.pending.get(relation.oid), self._present.get(relation.oid)
        recent = (pending.old, pending.new, *pending.between) if pending else (present,)
        return fitting(relation, [each for each in recent if each is not None])

    def flaw(self, oid: int) -> Reason | None:
        """Why a table cannot be mirrored with the definition in the last catalog snapshot, or None."""
        flaw = self._last.flaws.get(oid) if self._last is not None else None
        return not_supported(flaw) if flaw is not None else None

    def add_gap(self, oid: int, after: Lsn, reason: Reason) -> None:
        """Record that changes of a table above `after` are skipped, and why.

        A table without events was created and dropped between two catalog snapshots, and is ignored.
        """
        if oid not in self._events:
            return
        pending = self.pending.pop(oid, None)
        if pending is not None:
            after = min(after, pending.after)
        self._copies.forget(oid)
        self._beginnings.pop(oid, None)
        history = self.history(oid)
        if pending is not None and pending.new is None:
            self._drop(pending.old, after, pending.lsn)
            self._store_added()
        elif not history.in_gap:
            self._event(TableEventKind.GAP, self._present.get(oid, history.fingerprint), after, after, reason)
            self._store_added()

    def wait(self, oids: Iterable[int], reason: Reason) -> None:
        """Record why tables cannot be read yet, if the reason has changed."""
        for oid in oids:
            history, upto = self.history(oid), self.lsns.of(oid)
            if not history.live and history.last.kind is TableEventKind.WAITING and history.last.reason != reason.text:
                table = self._present.get(oid, history.fingerprint)
                self._event(TableEventKind.WAITING, table, upto, upto, reason)
        self._store_added()

    def to_check_for_rows(self, snapshot: CatalogSnapshot) -> list[int]:
        """The tables that begin if they are empty: no transaction from before the last DDL runs."""
        tables = snapshot.tables.items()
        return [oid for oid, table in tables if self._may_begin(oid, table) and self._copies.is_ripe(oid, snapshot)]

    def to_copy(self) -> Mapping[int, Fingerprint]:
        """The tables that need a copy and are not being copied. The caller reports the start of a copy."""
        return self._waiting_tables().to_copy

    def _waiting_tables(self) -> _WaitingTables:
        """The tables that wait, found again only if something has changed: a mirror may have thousands of tables."""
        state = self._snapshots, self._changes, self._copies.copies, tuple(self.pending), tuple(self._beginnings)
        if self._waiting is None or self._waiting.state != state:
            self._waiting = _WaitingTables(state, self._find_to_copy(), self._find_settled())
        return self._waiting

    def _find_to_copy(self) -> dict[int, Fingerprint]:
        last = self._last
        if last is None:
            return {}
        return {
            oid: table
            for oid, table in last.tables.items()
            if self._needs_copy(oid, table) and self._copies.is_ripe(oid, last) and not self._copies.is_running(oid)
        }

    def unripe(self) -> dict[int, Xid8]:
        """The tables that cannot begin or be copied before every transaction below this xid has ended."""
        last = self._last
        if last is None:
            return {}
        requested = self._copies.requested
        wanted = [oid for oid, table in last.tables.items() if self._may_begin(oid, table) or oid in requested]
        return {oid: self._copies.ripe_after(oid) for oid in wanted if not self._copies.is_ripe(oid, last)}

    def request_copy(self, oid: int) -> bool:
        """Request another copy of a table, even if it can be read.

        Return False if the table does not exist or is not published with all operations.
        """
        table = self._present.get(oid)
        if table is not None and self._is_whole(table):
            self._copies.requested.add(oid)
        return oid in self._copies.requested

    def needs_copy(self, oid: int) -> bool:
        """Whether a table exists and can be read, or be read further, only after a copy."""
        table = self._present.get(oid)
        return table is not None and self._needs_copy(oid, table)

    def start_copy(self, oid: int, applied: Lsn) -> None:
        """Record that the copy of a table starts. If changes of it are skipped from now on, the copy is invalid."""
        self._copies.start(oid, applied, self._last)

    def stop_copy(self, oid: int) -> None:
        """Record that the copy of a table has ended."""
        self._copies.stop(oid)

    def accepts(self, copied: Fingerprint, base: Boundary) -> bool:
        """Whether a table still has the copied definition, and all changes after the copy are in the lake."""
        oid = copied.oid
        same = _equal_but_for_filenode(copied, self._present.get(oid))
        if not same or not self._copies.is_running(oid) or oid in self.pending:
            return False
        return not self._has_gap(oid) or self._copies.covers_gap(oid, base)

    def add_copy(self, copied: Fingerprint, base: Boundary, snapshot: Snapshot) -> None:
        """Record that a table can be read from a copy, whose files are in its `versions`."""
        before = max(base.lsn, self.lsns.of(copied.oid))  # reads at or below the schema LSN use the previous state
        self._end_copy(copied.oid)
        self._event(TableEventKind.COPIED, copied, before, base.lsn, NO_REASON, base.excluded, snapshot)
        self._store_added()

    def may_be_truncated(self, oid: int) -> bool:
        """Whether a table could begin at a TRUNCATE, without the copy that it waits for."""
        return self._copies.may_be_truncated(oid)

    def add_truncate(self, oid: int, lsn: Lsn) -> None:
        """Record that a commit truncated such a table."""
        self._copies.truncated_at(oid, lsn)

    def truncated(self) -> dict[int, Lsn]:
        """The tables that can begin at a TRUNCATE: a later catalog snapshot shows their definitions unchanged."""
        upto = self._last.lsn if self._last else Lsn.ZERO
        return {oid: lsn for oid, lsn in self._copies.truncated_upto(upto).items() if oid not in self.pending}

    def begin_truncated(self, oid: int, lsn: Lsn) -> None:
        """Record that a table can be read from the commit on that truncated it."""
        self._end_copy(oid)
        after = max(lsn, self.lsns.of(oid))
        self._event(TableEventKind.EMPTIED, self._present[oid], after, lsn, NO_REASON, frozenset({lsn}))
        self._store_added()

    def _end_copy(self, oid: int) -> None:
        self._beginnings.pop(oid, None)
        self._copies.requested.discard(oid)
        self._copies.forget(oid)

    @property
    def restarting(self) -> frozenset[int]:
        """The tables that have not begun again since a restart of the mirror, without those that cannot begin."""
        tables = self._last.tables if self._last is not None else self._present
        return frozenset(oid for oid in self._restarted if oid in tables and self._is_whole(tables[oid]))

    def readable_upto(self, applied: Lsn, snapshot: CatalogSnapshot | None) -> Lsn:
        """The LSN up to which tables can be read if nothing else is received.

        That is the applied LSN if the catalog snapshot proves that all definitions are unchanged, and otherwise the
        schema LSN of the mirror, for tables that are not behind; but not above the position of an earlier restart that
        is not complete.
        """
        known = self.lsns.mirror
        upto = applied if snapshot is not None and self._is_unchanged(snapshot) else min(known, applied)
        earlier = [event.after for oid in self.restarting if (event := self.history(oid).restarted) is not None]
        return min([upto, *(lsn for lsn in earlier if lsn >= known)])

    def restart(self, after: Lsn, reason: Callable[[Lsn], Reason]) -> None:
        """Record that tables can be read up to a position, and above it only once each of them has begun again.

        A table that is behind can be read up to its own schema LSN, unless its definition was proved above it.
        """
        for oid, history in self.histories.items():
            if history.live:
                upto = after if after > self.lsns.mirror else min(after, self.lsns.of(oid))
                self._event(TableEventKind.RESTARTED, history.fingerprint, upto, upto, reason(upto))
        self._store_added()

    def _is_unchanged(self, snapshot: CatalogSnapshot) -> bool:
        """Whether every readable table has its recorded definition in a catalog snapshot, and none is being altered."""
        live = {oid: each for oid, each in self.histories.items() if each.live}
        tables = {oid: each.fingerprint for oid, each in live.items() if not each.is_union}
        roots = {oid: each.fingerprint for oid, each in live.items() if each.is_union}
        same = all(_equal_but_for_filenode(table, snapshot.tables.get(oid)) for oid, table in tables.items())
        return same and all(snapshot.roots.get(oid) == root for oid, root in roots.items()) and not snapshot.unseen

    def unreadable(self) -> dict[int, str]:
        """The tables published with all operations that cannot be read up to the present, with the recorded reasons."""
        tables = self._last.tables if self._last else {}
        found = [oid for oid, table in tables.items() if self._is_whole(table) and not self.is_live(oid)]
        return {oid: self.history(oid).last.reason for oid in found}

    @property
    def is_settled(self) -> bool:
        """Whether every table published with all operations can be read, or be copied now."""
        return self._waiting_tables().is_settled

    def _find_settled(self) -> bool:
        last = self._last
        if last is None or self._beginnings:
            return False
        return not any(
            oid in self.pending
            or (self._may_begin(oid, table) and not self._needs_copy(oid, table))
            or (self._needs_copy(oid, table) and not self._copies.is_ripe(oid, last))
            for oid, table in last.tables.items()
        )

    def _needs_copy(self, oid: int, table: Fingerprint) -> bool:
        if oid in self._copies.requested:
            return oid not in self.pending and self._is_whole(table)
        return self._may_begin(oid, table) and not self.history(oid).last.reason.startswith(NOT_YET)

    def _may_begin(self, oid: int, table: Fingerprint) -> bool:
        waits = oid in self.pending or oid in self._beginnings
        return self._is_whole(table) and not self.is_live(oid) and not waits

    def _is_whole(self, table: Fingerprint) -> bool:
        """Whether a table is published with all operations."""
        return table.is_in(self._publication)

    def _has_gap(self, oid: int) -> bool:
        """Whether changes of a table may have been skipped. A new beginning must include all of them."""
        return oid in self._events and self.history(oid).in_gap

    def _why_gone(self, oid: int) -> Reason:
        return self.flaw(oid) or ONCE_DROPPED

    def _event(
        self,
        kind: TableEventKind,
        table: Fingerprint,
        after: Lsn,
        lsn: Lsn,
        reason: Reason = NO_REASON,
        excluded: frozenset[Lsn] = frozenset(),
        snapshot: Snapshot | None = None,
    ) -> None:
        oid = table.oid
        self._add(TableEvent(kind, table, table_path(oid), after, lsn, excluded, reason.text, snapshot, fix=reason.fix))
        if kind is TableEventKind.RESTARTED:
            self._restarted.add(oid)
        elif kind in _BEGINNING:
            self._restarted.discard(oid)


def _equal_but_for_filenode(table: Fingerprint, other: Fingerprint | None) -> bool:
    """Whether two definitions are the same for readers. TRUNCATE and VACUUM FULL change only the filenode."""
    return other is not None and replace(table, filenode=other.filenode) == other
