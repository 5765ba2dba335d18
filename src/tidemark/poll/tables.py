"""The tables of a mirror that polls: what a snapshot shows, held against what the lake has told. Pure but for telling.

A snapshot shows definitions and rows together, so a definition is known at every poll's position, and between polls the
mirror is what the last one saw. What is altered is altered at the next poll; what cannot be followed by its rows' own
`xmin` is read whole, as a new generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tidemark.apply.tables import INSERTS_ONLY
from tidemark.clock import Lsn, Snapshot
from tidemark.lake.generation import Generation
from tidemark.lake.history import Event, Kind, TableHistory, of_events
from tidemark.lake.paths import table_path
from tidemark.lake.registers import Tables
from tidemark.schema.fingerprint import Effect, Fingerprint, compare
from tidemark.schema.table import Catalog, PgType, Table
from tidemark.source.look import roots_of
from tidemark.source.names import MirrorNames
from tidemark.source.selection import Selection, choose

_WHOLE = frozenset({Effect.RESYNC, Effect.NEW})


@dataclass(frozen=True, slots=True)
class Here:
    """Where a cycle stands, and up to where the mirror has everything.

    What was told of tables above that was told for nothing: that poll did not come to its end.
    """

    lsn: Lsn
    snapshot: Snapshot
    safe: Lsn

    @property
    def before(self) -> Lsn:
        """The last position that shows what the poll before it saw."""
        return Lsn(self.lsn.value - 1)


@dataclass(slots=True)
class Plan:
    """What a cycle does: tables that are read whole, and why; those that are followed; and what is told of them.

    Those that are followed come with the definition that the snapshot shows; the rows of those that were `rewritten`
    lie in another file than before.
    """

    copied: dict[int, tuple[TableHistory, str]] = field(default_factory=dict)
    followed: dict[int, tuple[TableHistory, Fingerprint]] = field(default_factory=dict)
    rewritten: set[int] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


class PolledTables:
    """All that are mirrored, or were."""

    def __init__(self, register: Tables, events: Iterable[Event]) -> None:
        self._register = register
        self._events = {oid: list(each.events) for oid, each in of_events(events).items()}
        self._filenodes = {oid: each[-1].fingerprint.filenode for oid, each in self._events.items()}

    @property
    def histories(self) -> dict[int, TableHistory]:
        """What became of every table."""
        return {oid: TableHistory(tuple(events)) for oid, events in self._events.items()}

    @property
    def types(self) -> Mapping[int, PgType]:
        """Every type that a table has or had."""
        columns = (c for events in self._events.values() for event in events for c in event.fingerprint.columns)
        return {column.type.oid: column.type for column in columns}

    def plan(
        self,
        catalog: Catalog,
        selection: Selection,
        here: Here,
        whole: Mapping[int | None, str],
        unreadable: Mapping[int, str],
    ) -> Plan:
        """What is to be done in a snapshot. `whole` has tables that are read whole whatever they are, or None: all.

        Those that are `unreadable` are left out, for these reasons.
        """
        plan = Plan()
        chosen = choose(catalog, selection, strict=not self._events)
        present = {table.oid: table for table in chosen.tables}
        for oid, table in present.items():
            hindrance = _hindrance(table) or unreadable.get(oid)
            self._look_at(oid, table, here, whole.get(oid) or whole.get(None), hindrance, plan)
        flaws = {skipped.table.oid: skipped.reason for skipped in chosen.skipped}
        roots = roots_of(catalog, plan.followed.keys() | plan.copied.keys())
        self._look_at_roots(roots, here, plan)
        for oid, history in self.histories.items():
            if oid not in present and oid not in roots and history.last.kind is not Kind.DROPPED:
                reason = flaws.get(oid, "it was dropped, or is not chosen any more")
                plan.events.append(self._event(Kind.DROPPED, history.fingerprint, here, reason))
        return plan

    def copied(self, generation: Generation, here: Here) -> Event:
        """What is told of a table that was read whole."""
        return self._event(Kind.COPIED, generation.fingerprint, here)

    def handed_over(
        self, plan: Plan, catalog: Catalog, names: MirrorNames, before: Mapping[int, Fingerprint], here: Here
    ) -> list[Event]:
        """What is told beside what a poll tells when it was the last one: every table as it is published.

        From here on the stream tells what happens to it. Where it does not tell all, or may not because the table was
        published otherwise `before` the snapshot was begun, the table ends here.
        """
        told: list[Event] = []
        oids = plan.followed.keys() | plan.copied.keys()
        for oid in sorted(oids):
            table = Fingerprint.of(catalog.by_oid[oid], names.all_publications)
            told.append(self._event(Kind.ALTERED, table, here, "from here on it is told by the stream"))
            if (why := _ended(table, before.get(oid), names)) is not None:
                told.append(replace(self._event(Kind.GAP, table, here, why), after=here.lsn))
        told += [self._event(Kind.UNION, root, here) for root in roots_of(catalog, oids).values()]
        return [replace(event, observed=False) for event in told]

    def tell(self, events: Iterable[Event], filenodes: Mapping[int, int]) -> None:
        """Tell what became of tables, all at once; and take note of where their rows lie."""
        told = list(events)
        for event in told:
            self._events.setdefault(event.fingerprint.oid, []).append(event)
        if told:
            self._register.tell(*told)
        self._filenodes |= filenodes

    def path(self, oid: int) -> str:
        """Where a table lies."""
        return self._events[oid][-1].path

    def leave_out(self, plan: Plan, unreadable: Mapping[int, str], here: Here) -> None:
        """Plan nothing for tables that turned out to be unreadable, but for telling so."""
        for oid, why in unreadable.items():
            planned = plan.copied.pop(oid, None) or plan.followed.pop(oid)
            history = TableHistory(tuple(self._events[oid])) if oid in self._events else None
            plan.events = [event for event in plan.events if event.fingerprint.oid != oid]
            self._leave_out(planned[0].fingerprint, history, here, why, plan)

    def _look_at(
        self, oid: int, table: Table, here: Here, whole: str | None, hindrance: str | None, plan: Plan
    ) -> None:
        new = Fingerprint.of(table, ())
        history = TableHistory(tuple(self._events[oid])) if oid in self._events else None
        if hindrance is not None:
            self._leave_out(new, history, here, hindrance, plan)
            return
        if history is None or not history.live:
            waiting = self._event(Kind.WAITING, new, here, "it is read whole by the first poll that shows it")
            plan.copied[oid] = (TableHistory((*(history.events if history else ()), waiting)), "new")
            return
        if history.last.lsn > here.safe:
            whole = whole or "a poll that told of it did not come to its end"
        filenode = self._filenodes.get(oid, history.fingerprint.filenode)
        comparison = compare(replace(history.fingerprint, filenode=filenode), new)
        if whole is not None or comparison.effect in _WHOLE:
            plan.copied[oid] = (history, whole or "; ".join(comparison.reasons))
            return
        if comparison.effect is Effect.METADATA:
            altered = self._event(Kind.ALTERED, new, here, "; ".join(comparison.reasons))
            plan.events.append(altered)
            history = TableHistory((*history.events, altered))
        if filenode != new.filenode:
            plan.rewritten.add(oid)
        plan.followed[oid] = history, new

    def _leave_out(self, new: Fingerprint, history: TableHistory | None, here: Here, why: str, plan: Plan) -> None:
        if history is not None and history.live:
            plan.events.append(self._event(Kind.GAP, new, here, why))
        elif history is None or history.last.reason != why:
            plan.events.append(self._event(Kind.WAITING, new, here, why))
        else:
            return
        plan.said.append(f"{new.schema}.{new.name} is left out: {why}")

    def _look_at_roots(self, roots: Mapping[int, Fingerprint], here: Here, plan: Plan) -> None:
        last = {oid: events[-1] for oid, events in self._events.items() if events[-1].kind is Kind.UNION}
        there = {oid: event.fingerprint for oid, event in last.items() if event.observed}
        for oid, root in roots.items():
            if there.get(oid) != root:
                reason = "its partitions or columns changed" if oid in there else ""
                plan.events.append(self._event(Kind.UNION, root, here, reason))

    def _event(self, kind: Kind, fingerprint: Fingerprint, here: Here, reason: str = "") -> Event:
        oid = fingerprint.oid
        unfinished = oid in self._events and self._events[oid][-1].lsn > here.safe
        after = here.safe if unfinished else here.before
        return Event(kind, fingerprint, table_path(oid), after, here.lsn, frozenset(), reason, here.snapshot, True)


def _ended(table: Fingerprint, before: Fingerprint | None, names: MirrorNames) -> str | None:
    """Why a stream does not tell all that happens to a table from now on."""
    if not table.memberships:
        return "it is not published, so no stream tells what happens to it"
    if not table.is_in(names.publication):
        return INSERTS_ONLY
    if before is None or before.memberships != table.memberships:
        return "it was published just now: what transactions did before that is in no stream"
    return None


def _hindrance(table: Table) -> str | None:
    """Why our role cannot read a table whole."""
    if not table.readable:
        return "our role may not SELECT from it"
    if table.row_security:
        return "row-level security hides rows of it from our role: it needs BYPASSRLS, or ownership"
    return None
