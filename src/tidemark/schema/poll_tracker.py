"""The schema tracker of poll mode: compares a snapshot with the recorded definitions. Pure.

A snapshot shows definitions and rows together, so the definition is known at every poll's position, and between two
polls the mirror shows the earlier one. An altered table is altered at the next poll; a table that cannot be followed by
the `xmin` of its rows is copied as a new generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidemark.clock import Lsn, Snapshot
from tidemark.errors import SourceError, TidemarkError
from tidemark.schema.catalog_snapshot import roots_of
from tidemark.schema.fingerprint import Effect, Fingerprint, compare
from tidemark.schema.history import TableEvent, TableEventKind, TableHistory, table_path
from tidemark.schema.reasons import (
    DESELECTED,
    FIRST_POLL,
    NO_REASON,
    NOT_PUBLISHED,
    PUBLISHED_LATE,
    STREAMED,
    UNION_ALTERED,
    Reason,
    altered,
    no_replica_identity,
    not_permitted,
    skipped,
)
from tidemark.schema.selection import Selection, choose
from tidemark.schema.table import Catalog, Table
from tidemark.schema.tracker import SchemaTracker, Store, changed_roots

_WHOLE = frozenset({Effect.RESYNC, Effect.NEW})


@dataclass(frozen=True, slots=True)
class PollPosition:
    """The position and snapshot of a cycle, and the applied LSN.

    Table events above the applied LSN are void: they come from a poll that was interrupted.
    """

    lsn: Lsn
    snapshot: Snapshot
    applied: Lsn

    @property
    def before(self) -> Lsn:
        """The last position at which the mirror shows the previous poll."""
        return Lsn(self.lsn.value - 1)


@dataclass(slots=True)
class PollPlan:
    """The plan of a cycle: tables to copy, with the reason; tables to follow; table events and messages.

    Tables to follow come with the definition that the snapshot shows. Those in `rewritten` have another filenode than
    before.
    """

    copied: dict[int, tuple[TableHistory, str]] = field(default_factory=dict)
    followed: dict[int, tuple[TableHistory, Fingerprint]] = field(default_factory=dict)
    rewritten: set[int] = field(default_factory=set)
    events: list[TableEvent] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


class PollTracker(SchemaTracker):
    """All tables that are or were polled."""

    def __init__(self, events: Iterable[TableEvent], store: Store) -> None:
        super().__init__(events, store)
        self._filenodes = {oid: each[-1].fingerprint.filenode for oid, each in self._events.items()}
        self._is_new = not self._events

    def plan(
        self,
        catalog: Catalog,
        selection: Selection,
        here: PollPosition,
        whole: Mapping[int | None, str],
        unreadable: Mapping[int, Reason],
    ) -> PollPlan:
        """Plan a cycle for a snapshot.

        `whole` contains the tables that are copied in any case, with the reason; the key None stands for all tables.
        Tables in `unreadable` are left out, with the given reason.
        """
        plan = PollPlan()
        chosen = choose(catalog, selection, strict=self._is_new)
        self._is_new = False
        present = {table.oid: table for table in chosen.tables}
        for oid, table in present.items():
            hindrance = not_permitted(table) or unreadable.get(oid)
            self._compare(oid, table, here, whole.get(oid) or whole.get(None), hindrance, plan)
        flaws = {each.table.oid: skipped(each.table, each.reason) for each in chosen.skipped}
        roots = roots_of(catalog, plan.followed.keys() | plan.copied.keys())
        self._compare_roots(roots, here, plan)
        for oid, history in self.histories.items():
            if oid not in present and oid not in roots and history.last.kind is not TableEventKind.DROPPED:
                reason = flaws.get(oid, DESELECTED)
                plan.events.append(self._event(TableEventKind.DROPPED, history.fingerprint, here, reason))
        return plan

    def unreadable(self) -> list[tuple[TableHistory, TidemarkError]]:
        """The selected tables that cannot be read, with the reason."""
        lacking = (
            each for each in self.histories.values() if each.last.kind in (TableEventKind.GAP, TableEventKind.WAITING)
        )
        return [(each, SourceError(each.reason, each.fix)) for each in lacking]

    def copied(self, table: Fingerprint, here: PollPosition) -> TableEvent:
        """The event of a table that was copied."""
        return self._event(TableEventKind.COPIED, table, here)

    def handed_over(
        self,
        plan: PollPlan,
        catalog: Catalog,
        publications: Sequence[str],
        before: Mapping[int, Fingerprint],
        here: PollPosition,
    ) -> list[TableEvent]:
        """The additional events of the last poll: every table as it is published.

        From here on the stream has the table's changes. A table has a gap from here on if the stream does not have all
        of its changes, or may not because its publications differ from those in `before`, read before the snapshot was
        taken. The first of the publications is the one with all operations.
        """
        events: list[TableEvent] = []
        oids = plan.followed.keys() | plan.copied.keys()
        for oid in sorted(oids):
            table = Fingerprint.of(catalog.by_oid[oid], publications)
            events.append(self._event(TableEventKind.ALTERED, table, here, STREAMED))
            if (why := _why_not_streamed(table, before.get(oid), publications[0])) is not None:
                events.append(replace(self._event(TableEventKind.GAP, table, here, why), after=here.lsn))
        events += [self._event(TableEventKind.UNION, root, here) for root in roots_of(catalog, oids).values()]
        return [replace(event, observed=False) for event in events]

    def record(self, events: Iterable[TableEvent], filenodes: Mapping[int, int]) -> None:
        """Store table events, and keep the filenodes of tables for the next plan."""
        for event in events:
            self._add(event)
        self._store_added()
        self._filenodes |= filenodes

    def leave_out(self, plan: PollPlan, unreadable: Mapping[int, Reason], here: PollPosition) -> None:
        """Remove tables that turned out to be unreadable from a plan, and add events that report them."""
        for oid, why in unreadable.items():
            planned = plan.copied.pop(oid, None) or plan.followed.pop(oid)
            history = TableHistory(tuple(self._events[oid])) if oid in self._events else None
            plan.events = [event for event in plan.events if event.fingerprint.oid != oid]
            self._leave_out(planned[0].fingerprint, history, here, why, plan)

    def _compare(
        self, oid: int, table: Table, here: PollPosition, whole: str | None, hindrance: Reason | None, plan: PollPlan
    ) -> None:
        new = Fingerprint.of(table, ())
        history = TableHistory(tuple(self._events[oid])) if oid in self._events else None
        if hindrance is not None:
            self._leave_out(new, history, here, hindrance, plan)
            return
        if history is None or not history.live:
            waiting = self._event(TableEventKind.WAITING, new, here, FIRST_POLL)
            why = whole or ("new table" if history is None else "it could not be read before")
            plan.copied[oid] = (TableHistory((*(history.events if history else ()), waiting)), why)
            return
        if history.last.lsn > here.applied:
            whole = whole or "the previous poll was interrupted"
        filenode = self._filenodes.get(oid, history.fingerprint.filenode)
        comparison = compare(replace(history.fingerprint, filenode=filenode), new)
        if whole is not None or comparison.effect in _WHOLE:
            plan.copied[oid] = (history, whole or "; ".join(comparison.reasons))
            return
        if comparison.effect is Effect.METADATA:
            event = self._event(TableEventKind.ALTERED, new, here, altered("; ".join(comparison.reasons)))
            plan.events.append(event)
            history = TableHistory((*history.events, event))
        if filenode != new.filenode:
            plan.rewritten.add(oid)
        plan.followed[oid] = history, new

    def _leave_out(
        self, new: Fingerprint, history: TableHistory | None, here: PollPosition, why: Reason, plan: PollPlan
    ) -> None:
        if history is not None and history.live:
            plan.events.append(self._event(TableEventKind.GAP, new, here, why))
        elif history is None or history.last.reason != why.text:
            plan.events.append(self._event(TableEventKind.WAITING, new, here, why))
        else:
            return
        plan.messages.append(f"table {new.qualified}: skipped: {why.text}")

    def _compare_roots(self, roots: Mapping[int, Fingerprint], here: PollPosition, plan: PollPlan) -> None:
        recorded = {oid: event.fingerprint for oid, event in self._partitioned().items() if event.observed}
        for root, was_there in changed_roots(roots, recorded):
            reason = UNION_ALTERED if was_there else NO_REASON
            plan.events.append(self._event(TableEventKind.UNION, root, here, reason))

    def _event(
        self, kind: TableEventKind, fingerprint: Fingerprint, here: PollPosition, reason: Reason = NO_REASON
    ) -> TableEvent:
        oid = fingerprint.oid
        unfinished = oid in self._events and self._events[oid][-1].lsn > here.applied
        after = here.applied if unfinished else here.before
        path, why, fix = table_path(oid), reason.text, reason.fix
        return TableEvent(
            kind, fingerprint, path, after, here.lsn, frozenset(), why, here.snapshot, observed=True, fix=fix
        )


def _why_not_streamed(table: Fingerprint, before: Fingerprint | None, publication: str) -> Reason | None:
    """The reason why the stream does not have all changes of a table from now on, if there is one."""
    if not table.memberships:
        return NOT_PUBLISHED
    if not table.is_in(publication):
        return no_replica_identity(table)
    if before is None or before.memberships != table.memberships:
        return PUBLISHED_LATE
    return None
