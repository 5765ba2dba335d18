"""The schema tracker of the stream: compares catalog snapshots with the recorded definitions, records table events.

A difference found by a catalog snapshot is pending until the log is applied up to it: only then is it known which
changes were made under which definition. Until then the schema LSN of the table, up to which its definition is known,
does not advance, so that no read returns a result that might have to be revised. Nor does it advance while another
transaction may be changing the definition, which its locks show.

The schema LSN of the mirror is the position that `latest` reads. It waits for a table for `GRACE`, so that a short DDL
statement fails no read; after that it passes the table, which is then `behind` and can be read up to its own schema
LSN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tidemark.clock import Lsn, Snapshot, Xid8
from tidemark.lake.generation import Generation
from tidemark.lake.history import TableEvent, TableEventKind, TableHistory, of_events
from tidemark.lake.layout import fitting
from tidemark.lake.paths import table_path
from tidemark.lake.reasons import (
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
from tidemark.lake.registers import Cycle, Tables
from tidemark.log.reader import LogReader
from tidemark.pgoutput.messages import Relation
from tidemark.postgres.look import CatalogSnapshot, Watched
from tidemark.postgres.names import MirrorNames
from tidemark.schema.fingerprint import Effect, Fingerprint, FingerprintComparison, compare
from tidemark.schema.table import PgType

GRACE = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Pending:
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
class Uncertain:
    """A table whose definition is known up to `lsn` and not above, since a time by the source's clock."""

    lsn: Lsn
    since: datetime | None = None

    def is_recent(self, now: datetime) -> bool:
        """Whether the schema LSN of the mirror waits for the table. It does not if an earlier writer passed it."""
        return self.since is not None and now - self.since < GRACE


@dataclass(frozen=True, slots=True)
class Beginning:
    """A table that was empty in a catalog snapshot. It begins there once the log shows which commits are excluded."""

    fingerprint: Fingerprint
    snapshot: Snapshot
    lsn: Lsn


class WrittenTables:
    """All tables that are or were published. There is one writer, and no schema LSN ever decreases."""

    def __init__(self, register: Tables, events: Iterable[TableEvent], names: MirrorNames, cycle: Cycle) -> None:
        self._register, self._names = register, names
        self._confirmed = self.known = cycle.known
        self.behind = dict(cycle.behind)
        self._uncertain: dict[int, Uncertain] = {oid: Uncertain(lsn) for oid, lsn in cycle.behind.items()}
        safe = cycle.safe
        self._events = {oid: list(each.events) for oid, each in of_events(events).items()}
        histories = self.histories.items()
        tables = {
            oid: each for oid, each in histories if not each.is_union and each.last.kind is not TableEventKind.DROPPED
        }
        self._present = {oid: each.fingerprint for oid, each in tables.items()}
        self._described: dict[int, list[tuple[Lsn, Relation]]] = {}
        self._blind = safe
        self._last: CatalogSnapshot | None = None
        self._published: dict[int, tuple[object, Snapshot]] = {}
        self._beginnings: dict[int, Beginning] = {}
        self._copying: dict[int, Lsn] = {}
        self._whole_since: dict[int, Lsn] = {}  # per copied table: above this the stream is complete
        self._truncated: dict[int, Lsn] = {}
        self._asked_for: set[int] = set()
        self._restarted = {oid for oid, each in histories if each.restarted}
        self._untold: list[TableEvent] = []
        self.pending: dict[int, Pending] = {}

    @property
    def histories(self) -> dict[int, TableHistory]:
        """The history of every table, by OID."""
        return {oid: TableHistory(tuple(events)) for oid, events in self._events.items()}

    def schema_lsn(self, oid: int) -> Lsn:
        """The LSN up to which the definition of a table is known."""
        return self._uncertain[oid].lsn if oid in self._uncertain else self._confirmed

    @property
    def complete(self) -> Lsn:
        """The LSN up to which the definitions of all tables are known."""
        return min([self.known, *self.behind.values()])

    @property
    def types(self) -> Mapping[int, PgType]:
        """Every type that a column has or had, by OID."""
        columns = (c for events in self._events.values() for event in events for c in event.fingerprint.columns)
        seen = {column.type.oid: column.type for column in columns}
        return seen | dict(self._last.types if self._last else {})

    @property
    def limit(self) -> Lsn | None:
        """The LSN of the first pending change, or None. The log is applied up to it before anything above it."""
        return min((pending.lsn for pending in self.pending.values()), default=None)

    @property
    def wanted(self) -> Lsn:
        """The received LSN that is required before everything found by catalog snapshots can be recorded."""
        waiting = [each.lsn for each in self.pending.values()] + [each.lsn for each in self._beginnings.values()]
        return max(waiting, default=Lsn.ZERO)

    @property
    def watched(self) -> Watched:
        """The tables and types whose locks a catalog snapshot must read.

        Children are included: DROP TABLE and NO INHERIT lock the child and not its parent, and a child that is not
        mirrored has no events.
        """
        types = [self.types[oid] for oid in self.types]
        children = {child.oid for events in self._events.values() for child in events[-1].fingerprint.children}
        tables = tuple(self._events.keys() | children)
        return Watched(tables, tuple({each.oid for outer in types for each in outer.whole()}))

    def history(self, oid: int) -> TableHistory:
        """The history of a table."""
        return TableHistory(tuple(self._events[oid]))

    def path(self, oid: int) -> str:
        """The path of a table in the lake."""
        return self._events[oid][-1].path

    def asked(self, look: CatalogSnapshot) -> list[int]:
        """The tables that begin if they are empty: they were published before every running transaction began."""
        return [oid for oid, table in look.tables.items() if self._may_begin(oid, table) and self._ripe(oid, look)]

    def to_copy(self) -> dict[int, Fingerprint]:
        """The tables that need a copy and are not being copied. The caller reports the start of a copy with `copying`.

        Every change that is not visible in a snapshot taken from now on is completely in the stream.
        """
        look = self._last
        if look is None:
            return {}
        return {
            oid: table
            for oid, table in look.tables.items()
            if self._needs_copy(oid, table) and self._ripe(oid, look) and oid not in self._copying
        }

    def unripe(self) -> dict[int, Xid8]:
        """The tables that cannot begin or be copied before every transaction below this xid has ended."""
        look = self._last
        if look is None:
            return {}
        meant = [oid for oid, table in look.tables.items() if self._may_begin(oid, table) or oid in self._asked_for]
        return {oid: self._published[oid][1].xmax for oid in meant if not self._ripe(oid, look)}

    @property
    def restarting(self) -> frozenset[int]:
        """The tables that have not begun again since a restart of the mirror, without those that cannot begin."""
        tables = self._last.tables if self._last is not None else self._present
        return frozenset(oid for oid in self._restarted if oid in tables and self._is_whole(tables[oid]))

    def readable_upto(self, safe: Lsn, look: CatalogSnapshot | None) -> Lsn:
        """The LSN up to which all tables can be read if nothing else is received.

        That is the applied LSN `safe` if the catalog snapshot `look` proves that all definitions are unchanged, and
        otherwise the schema LSN; but not above the position of an earlier restart that is not complete.
        """
        upto = safe if look is not None and self._is_as_told(look) else min(self.complete, safe)
        earlier = [event.after for oid in self.restarting if (event := self.history(oid).restarted) is not None]
        return min([upto, *(lsn for lsn in earlier if lsn >= self.complete)])

    def start_over(self, after: Lsn, reason: Reason) -> None:
        """Record that tables can be read up to a position, and above it only once each of them has begun again."""
        for history in self.histories.values():
            if history.live:
                self._tell(TableEventKind.RESTARTED, history.fingerprint, after, after, reason)
        self._tell_all()

    def _is_as_told(self, look: CatalogSnapshot) -> bool:
        """Whether every readable table has its recorded definition in a catalog snapshot, and none is being altered."""
        live = {oid: each for oid, each in self.histories.items() if each.live}
        tables = {oid: each.fingerprint for oid, each in live.items() if not each.is_union}
        roots = {oid: each.fingerprint for oid, each in live.items() if each.is_union}
        same = all(_but_for_filenode(table, look.tables.get(oid)) for oid, table in tables.items())
        return same and all(look.roots.get(oid) == root for oid, root in roots.items()) and not look.unseen

    def lacking(self) -> dict[int, str]:
        """The tables published with all operations that cannot be read up to the present, with the recorded reasons."""
        tables = self._last.tables if self._last else {}
        lacking = [oid for oid, table in tables.items() if self._is_whole(table) and not self.history(oid).live]
        return {oid: self.history(oid).last.reason for oid in lacking}

    def resync(self, oid: int) -> bool:
        """Request another copy of a table, even if it can be read.

        Return False if the table does not exist or is not published with all operations.
        """
        table = self._present.get(oid)
        if table is not None and self._is_whole(table):
            self._asked_for.add(oid)
        return oid in self._asked_for

    def _needs_copy(self, oid: int, table: Fingerprint) -> bool:
        if oid in self._asked_for:
            return oid not in self.pending and self._is_whole(table)
        return self._may_begin(oid, table) and not self.history(oid).last.reason.startswith(NOT_YET)

    @property
    def all_settled(self) -> bool:
        """Whether every table published with all operations can be read, or is known to need a copy."""
        if self._last is None:
            return False
        undecided = (
            oid
            for oid, table in self._last.tables.items()
            if oid in self.pending or (self._may_begin(oid, table) and not self._needs_copy(oid, table))
        )
        return not self._beginnings and not any(True for _ in undecided)

    def copying(self, oid: int, safe: Lsn) -> None:
        """Record that the copy of a table starts, with everything up to `safe` applied.

        If changes of the table are skipped from now on, the copy becomes invalid.
        """
        self._copying[oid] = safe
        if self._last is not None:
            self._whole_since.setdefault(oid, self._last.lsn)

    def stopped_copying(self, oid: int) -> None:
        """Record that the copy of a table has ended."""
        self._copying.pop(oid, None)

    def needs_copy(self, oid: int) -> bool:
        """Whether a table exists and can be read, or be read further, only after a copy."""
        table = self._present.get(oid)
        return table is not None and self._needs_copy(oid, table)

    def may_be_emptied(self, oid: int) -> bool:
        """Whether a table could begin at a TRUNCATE, without the copy that it waits for."""
        return oid in self._whole_since

    def truncated(self, oid: int, lsn: Lsn) -> None:
        """Record that a commit truncated such a table."""
        if lsn > self._whole_since[oid]:
            self._truncated[oid] = lsn

    def emptied(self) -> dict[int, Lsn]:
        """The tables that can begin at a TRUNCATE: a later catalog snapshot shows their definitions unchanged."""
        upto = self._last.lsn if self._last else Lsn.ZERO
        return {oid: lsn for oid, lsn in self._truncated.items() if lsn <= upto and oid not in self.pending}

    def begin_emptied(self, oid: int, lsn: Lsn) -> None:
        """Record that a table can be read from the commit on that truncated it."""
        self._beginnings.pop(oid, None)
        self._asked_for.discard(oid)
        self._forget_copy(oid)
        after = max(lsn, self.schema_lsn(oid))
        self._tell(TableEventKind.EMPTIED, self._present[oid], after, lsn, excluded=frozenset({lsn}))
        self._tell_all()

    def _forget_copy(self, oid: int) -> None:
        self._copying.pop(oid, None)
        self._whole_since.pop(oid, None)
        self._truncated.pop(oid, None)

    def may_take(self, generation: Generation) -> bool:
        """Whether the table still has the copied definition, and all changes after the copy are in the lake."""
        oid, present = generation.fingerprint.oid, self._present.get(generation.fingerprint.oid)
        same = _but_for_filenode(generation.fingerprint, present)
        if not same or oid not in self._copying or oid in self.pending:
            return False
        return not self._has_gap(oid) or generation.base.floor >= self._copying[oid]

    def _has_gap(self, oid: int) -> bool:
        """Whether changes of a table may have been skipped. A new beginning must include all of them."""
        return oid in self._events and self.history(oid).in_gap

    def taken(self, generation: Generation) -> None:
        """Record that a table can be read from a copy, whose files are in its `versions`."""
        base, oid = generation.base, generation.fingerprint.oid
        before = max(base.lsn, self.schema_lsn(oid))  # reads at or below the schema LSN use the previous state
        self._beginnings.pop(oid, None)
        self._forget_copy(oid)
        self._asked_for.discard(oid)
        held, seen = base.excluded, generation.snapshot
        self._tell(TableEventKind.COPIED, generation.fingerprint, before, base.lsn, excluded=held, snapshot=seen)
        self._tell_all()

    def wait(self, oids: Iterable[int], reason: Reason) -> None:
        """Record why tables cannot be read yet, if the reason has changed."""
        for oid in oids:
            history = self.history(oid)
            if not history.live and history.last.kind is TableEventKind.WAITING and history.last.reason != reason.text:
                table, upto = self._present.get(oid, history.fingerprint), self.schema_lsn(oid)
                self._tell(TableEventKind.WAITING, table, upto, upto, reason)
        self._tell_all()

    def take(self, look: CatalogSnapshot) -> None:
        """Process a catalog snapshot; the schema LSNs of tables that it confirms advance to the previous snapshot."""
        last, self._last = self._last, look
        changed = self._compare_roots(look)
        changed |= {oid for oid in sorted(look.tables.keys() | self._present.keys()) if self._compare(oid, look)}
        for oid in look.empty:
            self._beginnings.setdefault(oid, Beginning(look.tables[oid], look.snapshot, look.lsn))
        for oid, table in look.tables.items():
            if self._published.get(oid, (None,))[0] != table.memberships:
                self._published[oid] = (table.memberships, look.snapshot)
        self._tell_all()
        if last is not None and last.lsn <= look.lsn:
            self._advance(last.lsn, changed | self.pending.keys(), look)

    def _advance(self, upto: Lsn, changed: set[int], look: CatalogSnapshot) -> None:
        """Advance the schema LSNs of all tables whose definitions are certain up to an LSN."""
        if any(lock.table is None and lock.type is None for lock in look.unseen):
            return  # a publication may be changing, and with it any table
        there = look.tables.keys() | look.roots.keys() | self.pending.keys()
        uncertain = (changed | self._locked(look)) & there
        new = Uncertain(self._confirmed, look.time)
        self._uncertain = {oid: self._uncertain.get(oid, new) for oid in uncertain}
        self._confirmed = max(self._confirmed, upto)
        recent = [each.lsn for oid, each in self._uncertain.items() if each.is_recent(look.time) and self._is_live(oid)]
        self.known = max(self.known, min([self._confirmed, *recent]))
        self.behind = {oid: each.lsn for oid, each in self._uncertain.items() if each.lsn < self.known}

    def _is_live(self, oid: int) -> bool:
        return oid in self._events and self.history(oid).live

    def _locked(self, look: CatalogSnapshot) -> set[int]:
        """The tables that a transaction which is not visible in a catalog snapshot may have changed.

        A lock on a child counts for its parent: DROP TABLE and NO INHERIT lock the child alone.
        """
        tables = {lock.table for lock in look.unseen}
        types = {lock.type for lock in look.unseen} - {None}
        if not tables and not types:
            return set()
        found = set()
        for oid, events in self._events.items():
            table = events[-1].fingerprint
            present = {each.oid for column in table.columns for each in column.type.whole()} if types else set()
            if oid in tables or present & types or any(child.oid in tables for child in table.children):
                found.add(oid)
        return found

    def described(self, relations: Iterable[Relation], upto: Lsn) -> None:
        """Record the relations that transactions up to `upto` described: these tables may have been altered before."""
        for oid, said in self._described.items():
            self._described[oid] = [each for each in said if each[0] > self.schema_lsn(oid)]
        for relation in relations:
            self._described.setdefault(relation.oid, []).append((upto, relation))

    def recall(self, relations: Iterable[Relation], safe: Lsn) -> None:
        """Record all descriptions above the schema LSNs in the part of the log that an earlier writer applied."""
        self.described(relations, safe)
        self._blind = self.complete

    def settle(self, safe: Lsn, changed_at: Mapping[int, Lsn], reader: LogReader) -> None:
        """Record the events that are certain at the applied LSN `safe`.

        `changed_at` is, for each table with a pending change, the LSN up to which it may have changes.
        """
        for oid, pending in list(self.pending.items()):
            if pending.lsn <= safe:
                del self.pending[oid]
                changed = changed_at.get(oid, Lsn.ZERO) > pending.after
                self._tell_change(pending, changed and self._could_be_another(oid, pending))
        for oid, beginning in list(self._beginnings.items()):
            if oid in self.pending or self._present.get(oid) != beginning.fingerprint:
                del self._beginnings[oid]
            elif beginning.lsn <= reader.received:
                del self._beginnings[oid]
                base = reader.boundary(beginning.snapshot, beginning.lsn)
                if base.excluded and self._has_gap(oid):
                    continue
                hidden, seen = base.excluded, beginning.snapshot
                self._tell(
                    TableEventKind.BEGUN, beginning.fingerprint, base.lsn, base.lsn, excluded=hidden, snapshot=seen
                )
        self._tell_all()

    def fingerprint_of(self, relation: Relation) -> Fingerprint | None:
        """The definition that a relation of the stream fits, or None."""
        pending, present = self.pending.get(relation.oid), self._present.get(relation.oid)
        recent = (pending.old, pending.new, *pending.between) if pending else (present,)
        return fitting(relation, [each for each in recent if each is not None])

    def flaw(self, oid: int) -> Reason | None:
        """Why a table cannot be mirrored with the definition in the last catalog snapshot, or None."""
        flaw = self._last.flaws.get(oid) if self._last is not None else None
        return not_supported(flaw) if flaw is not None else None

    def give_up(self, oid: int, after: Lsn, reason: Reason) -> None:
        """Record that changes of a table above `after` are skipped, and why.

        A table without events was created and dropped between two catalog snapshots, and is ignored.
        """
        if oid not in self._events:
            return
        pending = self.pending.pop(oid, None)
        if pending is not None:
            after = min(after, pending.after)
        self._forget_copy(oid)
        self._beginnings.pop(oid, None)
        history = self.history(oid)
        if not history.in_gap:
            self._tell(TableEventKind.GAP, self._present.get(oid, history.fingerprint), after, after, reason)
            self._tell_all()

    def _may_begin(self, oid: int, table: Fingerprint) -> bool:
        return (
            self._is_whole(table) and not self._is_live(oid) and oid not in self.pending and oid not in self._beginnings
        )

    def _ripe(self, oid: int, look: CatalogSnapshot) -> bool:
        """Whether a table was published before every running transaction began."""
        seen = self._published.get(oid)
        return seen is not None and seen[0] == look.tables[oid].memberships and look.snapshot.xmin >= seen[1].xmax

    def _is_whole(self, table: Fingerprint) -> bool:
        return table.is_in(self._names.publication)

    def _compare_roots(self, look: CatalogSnapshot) -> set[int]:
        """Compare partitioned tables with their recorded definitions; return those that were altered or dropped."""
        there = {
            oid: events[-1].fingerprint
            for oid, events in self._events.items()
            if events[-1].kind is TableEventKind.UNION
        }
        for oid, root in look.roots.items():
            if oid not in there:
                self._tell(TableEventKind.UNION, root, look.lsn, look.lsn, snapshot=look.snapshot)
            elif there[oid] != root:
                after = self.schema_lsn(oid)
                self._tell(TableEventKind.UNION, root, after, look.lsn, UNION_ALTERED, snapshot=look.snapshot)
        for oid in there.keys() - look.roots.keys():
            self._tell(TableEventKind.DROPPED, there[oid], self.schema_lsn(oid), look.lsn, UNION_DROPPED)
        return {oid for oid, fingerprint in there.items() if look.roots.get(oid) != fingerprint}

    def _compare(self, oid: int, look: CatalogSnapshot) -> bool:
        """Compare a table with its last definition; return whether it changed in a way that affects readers."""
        old, new = self._present.get(oid), look.tables.get(oid)
        if old is None and new is not None:
            self._present[oid] = new
            reason = open_transactions() if self._is_whole(new) else no_replica_identity(new)
            self._tell(TableEventKind.WAITING, new, look.lsn, look.lsn, reason)
            return False
        if old is None or old == new:
            self._say_if_not_empty(oid, look)
            return False
        return self._changed(oid, old, new, look)

    def _changed(self, oid: int, old: Fingerprint, new: Fingerprint | None, look: CatalogSnapshot) -> bool:
        earlier = self.pending.get(oid)
        base = earlier.old if earlier else old
        comparison = compare(base, new)
        live = self.history(oid).live
        if new is None:
            self._present.pop(oid)
        else:
            self._present[oid] = new
        if earlier is None and _but_for_filenode(old, new):
            return False  # TRUNCATE and VACUUM FULL do not affect readers
        self._forget_copy(oid)
        if not live:
            self._tell_unread(oid, old, new, comparison, look)
            return False
        after = earlier.after if earlier else self.schema_lsn(oid)
        between = (*earlier.between, old) if earlier else ()
        self.pending[oid] = Pending(base, between, new, comparison, after, look.lsn, look.snapshot)
        return True

    def _tell_unread(
        self,
        oid: int,
        old: Fingerprint,
        new: Fingerprint | None,
        comparison: FingerprintComparison,
        look: CatalogSnapshot,
    ) -> None:
        """Record a change of a table that is not live. Positions above its schema LSN can no longer be read."""
        ends, after = [span.end for span in self.history(oid).spans()], self.schema_lsn(oid)
        if new is None:
            self._tell(TableEventKind.DROPPED, old, after, look.lsn, self._why_gone(oid))
        elif any(end is not None and end > after for end in ends):
            self._tell(TableEventKind.GAP, new, after, look.lsn, needs_copy("; ".join(comparison.reasons)))
        else:
            self._tell(TableEventKind.SEEN, new, after, look.lsn)

    def _why_gone(self, oid: int) -> Reason:
        return self.flaw(oid) or ONCE_DROPPED

    def _say_if_not_empty(self, oid: int, look: CatalogSnapshot) -> None:
        """Record that a table needs a copy, once it is clear that it cannot begin without one."""
        table = look.tables.get(oid)
        if table is None or oid in look.empty or oid in self._beginnings or not self._may_begin(oid, table):
            return
        if self._ripe(oid, look) and self.history(oid).last.reason.startswith(NOT_YET):
            self._tell(TableEventKind.WAITING, table, look.lsn, look.lsn, NOT_COPIED)

    def _could_be_another(self, oid: int, pending: Pending) -> bool:
        """Whether changes may have been made under an unknown definition with the same description as one of these.

        A description lists columns in the order of their attnums, and an attnum is never reused. So a description that
        matches the old definition belongs to it while none of its columns is dropped, and one that matches the new
        definition belongs to it if no other column was added in between: then the new attnums follow the highest
        previous one.
        """
        if pending.new is None:
            return False
        old, new = ({column.attnum for column in each.columns} for each in (pending.old, pending.new))
        seen = [*pending.between, pending.old, *(event.fingerprint for event in self._events[oid])]
        highest = max((column.attnum for each in seen for column in each.columns), default=0)
        added = sorted(attnum for attnum in new if attnum > highest)
        said = [relation for upto, relation in self._described.get(oid, []) if upto > pending.after]
        blind = self._blind > pending.after
        like_old = blind or any(fitting(relation, [pending.old]) for relation in said)
        like_new = blind or any(fitting(relation, [pending.new]) for relation in said)
        gone, skipped = not old <= new, added != list(range(highest + 1, highest + 1 + len(added)))
        return (like_old and gone) or (like_new and skipped)

    def _tell_change(self, pending: Pending, uncertain: bool) -> None:
        old, new = pending.old, pending.new
        reasons = "; ".join(pending.comparison.reasons)
        if new is None:
            self._tell(TableEventKind.DROPPED, old, pending.after, pending.lsn, self._why_gone(old.oid))
        elif pending.comparison.effect in (Effect.SAME, Effect.METADATA) and not uncertain:
            self._tell(
                TableEventKind.ALTERED, new, pending.after, pending.lsn, altered(reasons), snapshot=pending.snapshot
            )
        else:
            self._tell(TableEventKind.GAP, new, pending.after, pending.lsn, needs_copy(reasons))

    def _tell(
        self,
        kind: TableEventKind,
        fingerprint: Fingerprint,
        after: Lsn,
        lsn: Lsn,
        reason: Reason = NO_REASON,
        excluded: frozenset[Lsn] = frozenset(),
        snapshot: Snapshot | None = None,
    ) -> None:
        """Queue an event. Every public method that queues events ends with `_tell_all`."""
        oid = fingerprint.oid
        path, why, fix = table_path(oid), reason.text, reason.fix
        event = TableEvent(kind, fingerprint, path, after, lsn, excluded, why, snapshot, fix=fix)
        self._untold.append(event)
        if kind is TableEventKind.RESTARTED:
            self._restarted.add(oid)
        elif kind in (TableEventKind.BEGUN, TableEventKind.EMPTIED, TableEventKind.COPIED, TableEventKind.DROPPED):
            self._restarted.discard(oid)
        self._events.setdefault(oid, []).append(event)

    def _tell_all(self) -> None:
        """Record the queued events in one commit, because a database may have thousands of tables."""
        if self._untold:
            self._register.tell(*self._untold)
            self._untold = []


def _but_for_filenode(table: Fingerprint, other: Fingerprint | None) -> bool:
    """Whether two definitions are the same for readers. TRUNCATE and VACUUM FULL change only the filenode."""
    return other is not None and replace(table, filenode=other.filenode) == other
