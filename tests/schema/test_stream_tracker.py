"""The schema tracker of the stream, on values alone: which definitions are certain at which LSN."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.clock import Boundary, Lsn, Snapshot, Xid8
from tidemark.schema.catalog_snapshot import CatalogSnapshot, DefinitionLock
from tidemark.schema.copy_state import CopyState
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableEvent, TableEventKind
from tidemark.schema.reasons import NOT_COPIED, Reason
from tidemark.schema.relation import Relation, RelationColumn
from tidemark.schema.stream_tracker import StreamTracker
from tidemark.schema.table import Child, Column, Generated, Membership, Persistence, PgType
from tidemark.schema.tracker import GRACE, SchemaLsns

pytestmark = pytest.mark.quick

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PUBLICATION = "tidemark_default"
MOOD = PgType(900, "public.mood", "e")
OPEN = Xid8(50)  # a transaction that is running in every snapshot below


class Log:
    """A log that has received everything, and in which no snapshot excludes a commit."""

    received = Lsn(10**9)

    def boundary(self, snapshot: Snapshot, lsn: Lsn) -> Boundary:  # noqa: ARG002 - part of the protocol
        return Boundary(lsn)


def table(oid: int, *columns: PgType, children: tuple[int, ...] = ()) -> Fingerprint:
    found = tuple(
        Column(number, f"c{number}", kind, -1, False, Generated.NO, None, None, 0)
        for number, kind in enumerate(columns, 1)
    )
    below = tuple(Child(child, f"public.t{child}") for child in children)
    membership = (Membership(PUBLICATION, ""),)
    return Fingerprint(
        oid, "public", f"t{oid}", oid, Persistence.PERMANENT, (1,), found, None, None, (), membership, below
    )


INT = PgType(23, "pg_catalog.int4", "b")
A, B, FELT, PARENT = table(1, INT), table(2, INT), table(3, INT, MOOD), table(4, INT, children=(2,))


class Source:
    """A source at increasing LSNs, a second apart; the transaction OPEN never ends."""

    def __init__(self, *tables: Fingerprint) -> None:
        self.tables = {each.oid: each for each in tables}
        self.lsn = 100
        self.stored: list[TableEvent] = []
        self.tracker = StreamTracker((), self.stored.extend, PUBLICATION, SchemaLsns(Lsn(0), {}), Lsn(0))
        for _ in range(3):
            self.observe(empty=True)

    def observe(
        self,
        *held: DefinitionLock,
        empty: bool = False,
        running: Xid8 | None = None,
        table: int | None = None,
        applied: bool = True,
    ) -> list[TableEvent]:
        """Take a catalog snapshot, and apply everything up to it unless `applied` is false.

        `running` is a transaction with a lock on a table.
        """
        self.lsn += 10
        snapshot = Snapshot(OPEN, Xid8(60), (OPEN,)) if held else Snapshot(Xid8(60), Xid8(60))
        if running is not None:
            snapshot, held = Snapshot(running, Xid8(60), (running,)), (DefinitionLock(running, table),)
        asked = CatalogSnapshot(
            snapshot, Lsn(self.lsn), NOW + timedelta(seconds=self.lsn / 10), self.tables, {}, {},
            frozenset(), held,
        )  # fmt: skip
        begins = frozenset(self.tracker.to_check_for_rows(asked)) if empty else frozenset[int]()
        events = self.tracker.observe(replace(asked, empty=begins))
        if applied:
            self.tracker.settle(Lsn(self.lsn), {}, Log())
        return events

    def alter(self, *definitions: Fingerprint, described: Fingerprint) -> TableEventKind:
        """Show a table under one definition after another, with a change in between that one of them describes.

        Nothing is applied meanwhile. Return the event that is recorded when all of it is.
        """
        columns = tuple(
            RelationColumn(each.name, each.type.oid, each.typmod, each.attnum in (described.marked or ()))
            for each in described.columns
        )
        for definition in definitions:
            self.tables[definition.oid] = definition
            self.observe(applied=False)
        relation = Relation(described.oid, described.schema, described.name, "d", columns)
        assert self.tracker.fingerprint_of(relation) is not None
        self.tracker.describe([relation], Lsn(self.lsn))
        self.tracker.settle(Lsn(self.lsn), {described.oid: Lsn(self.lsn)}, Log())
        return self.stored[-1].kind


def test_a_table_that_is_confirmed_twice_is_known_up_to_the_first_snapshot() -> None:
    source = Source(A, B)
    source.observe()
    assert source.tracker.lsns.mirror == Lsn(source.lsn - 10)
    assert not source.tracker.lsns.behind


@pytest.mark.parametrize(
    ("lock", "held_back"),
    [
        (DefinitionLock(OPEN, table=1), {1}),
        (DefinitionLock(OPEN, type=900), {3}),
        (DefinitionLock(OPEN, table=2), {2, 4}),
        (DefinitionLock(OPEN, table=77), set()),
    ],
    ids=["table", "type", "child", "unrelated"],
)
def test_a_lock_holds_back_the_tables_that_depend_on_it_and_after_a_while_no_others(
    lock: DefinitionLock, held_back: set[int]
) -> None:
    source = Source(A, B, FELT, PARENT)
    lsns = source.tracker.lsns
    source.observe()
    before = lsns.mirror
    source.observe(lock)
    assert lsns.mirror == (before if held_back else Lsn(source.lsn - 10)), "it waits for a short statement"
    assert all(lsns.of(oid) == before for oid in held_back)
    while held_back and not lsns.behind:
        source.observe(lock)
    assert lsns.behind.keys() == held_back
    assert lsns.mirror == Lsn(source.lsn - 10)
    assert all(lsns.of(oid) == before for oid in held_back)
    source.observe()
    assert not lsns.behind


def test_a_lock_on_a_publication_holds_back_all_tables() -> None:
    source = Source(A, B)
    source.observe()
    before = source.tracker.lsns.mirror
    for _ in range(10):
        source.observe(DefinitionLock(OPEN))
    assert source.tracker.lsns.mirror == source.tracker.lsns.of(1) == before


def test_an_altered_table_is_recorded_as_of_its_own_schema_lsn() -> None:
    source = Source(A, B)
    source.observe()
    known = source.tracker.lsns.of(1)
    for _ in range(6):
        source.observe(DefinitionLock(OPEN, table=1))
    source.tables[1] = table(1, INT, INT)
    source.observe()
    (event,) = (each for each in source.stored if each.kind is TableEventKind.ALTERED)
    assert (event.fingerprint.oid, event.after, event.lsn) == (1, known, Lsn(source.lsn))
    assert source.tracker.lsns.of(2) > known
    source.observe()
    assert source.tracker.lsns.of(1) == source.tracker.lsns.mirror == Lsn(source.lsn - 10)


def column(attnum: int, name: str) -> Column:
    return Column(attnum, name, INT, -1, False, Generated.NO, None, None, 0)


ID, U, C, AGAIN, OTHER = column(1, "id"), column(2, "u"), column(3, "c"), column(4, "c"), column(4, "d")
PLAIN = replace(A, columns=(ID, U), marked=(1,))


@pytest.mark.parametrize(
    ("definitions", "described", "recorded"),
    [
        pytest.param(
            [replace(PLAIN, columns=(ID, U, C)), replace(PLAIN, columns=(ID, U, AGAIN))],
            replace(PLAIN, columns=(ID, U, C)),
            TableEventKind.GAP,
            id="a column that another one of its name replaces",
        ),
        pytest.param(
            [
                replace(PLAIN, columns=(ID, U, C)),
                replace(PLAIN, columns=(ID, U, C, OTHER)),
                replace(PLAIN, columns=(ID, U, column(5, "c"))),
            ],
            replace(PLAIN, columns=(ID, U, C)),
            TableEventKind.GAP,
            id="the same, with a definition in between that does not match",
        ),
        pytest.param(
            [replace(PLAIN, key=(2,), marked=(2,)), PLAIN],
            replace(PLAIN, key=(2,), marked=(2,)),
            TableEventKind.GAP,
            id="another key for some time",
        ),
        pytest.param(
            [replace(PLAIN, columns=(ID, U, C)), PLAIN],
            PLAIN,
            TableEventKind.ALTERED,
            id="a column that was added and dropped, and no change has it",
        ),
        pytest.param(
            [replace(PLAIN, columns=(ID, U, C)), replace(PLAIN, columns=(ID, U, C, OTHER))],
            replace(PLAIN, columns=(ID, U, C)),
            TableEventKind.ALTERED,
            id="columns that were added one after the other",
        ),
    ],
)
def test_changes_between_two_alterations_are_mirrored_if_their_definition_is_certain(
    definitions: list[Fingerprint], described: Fingerprint, recorded: TableEventKind
) -> None:
    source = Source(PLAIN)
    assert source.tracker.is_live(1)
    source.observe()
    assert source.alter(*definitions, described=described) is recorded


def test_a_table_that_was_dropped_is_recorded_as_dropped_though_its_changes_are_skipped() -> None:
    source = Source(PLAIN)
    source.observe()
    del source.tables[1]
    source.observe(applied=False)
    source.tracker.add_gap(1, Lsn(source.lsn), Reason("a value cannot be decoded"))
    assert source.stored[-1].kind is TableEventKind.DROPPED


def test_a_tracker_continues_from_the_recorded_watermarks() -> None:
    source = Source(A, B)
    for _ in range(6):
        source.observe(DefinitionLock(OPEN, table=1))
    lsns = source.tracker.lsns
    again = SchemaLsns(lsns.mirror, lsns.behind)
    tracker = StreamTracker(source.stored, source.stored.extend, PUBLICATION, again, Lsn(source.lsn))
    assert again.of(1) == lsns.of(1) < again.of(2) == lsns.mirror
    source.tracker = tracker
    source.observe(DefinitionLock(OPEN, table=1))
    source.observe(DefinitionLock(OPEN, table=1))
    assert again.behind == {1: lsns.of(1)}
    assert again.mirror > lsns.mirror


def test_a_table_that_is_locked_by_one_transaction_after_another_is_known_up_to_the_end_of_each() -> None:
    """At every catalog snapshot some transaction has a lock on it, and none has altered it."""
    source = Source(A, B)
    source.observe()
    lsns, before = source.tracker.lsns, source.tracker.lsns.of(1)
    reached = []
    for xid in range(40, 60):
        source.observe(running=Xid8(xid), table=1)
        reached.append(lsns.of(1))
    assert reached[0] == before
    assert reached == sorted(reached)
    assert Lsn(source.lsn).value - reached[-1].value <= 30
    assert lsns.mirror >= reached[-1]
    source.tables[1] = table(1, INT, INT)
    source.observe(running=Xid8(59), table=1)
    assert lsns.of(1) == reached[-1], "not above, because it was altered"
    source.observe()
    source.observe()
    (event,) = (each for each in source.stored if each.kind is TableEventKind.ALTERED)
    assert event.after == reached[-1]
    assert lsns.of(1) == Lsn(source.lsn - 10)


def test_a_restart_ends_a_table_that_is_behind_at_its_own_schema_lsn_and_others_at_the_mirrors() -> None:
    source = Source(A, B)
    source.observe()
    for _ in range(6):
        source.observe(DefinitionLock(OPEN, table=1))
    lsns, applied = source.tracker.lsns, Lsn(source.lsn)
    assert lsns.behind.keys() == {1}
    after = source.tracker.readable_upto(applied, None)
    assert after == lsns.mirror
    source.tracker.restart(after, lambda upto: Reason(f"after {upto}"))
    ends = {each.fingerprint.oid: each.after for each in source.stored if each.kind is TableEventKind.RESTARTED}
    assert ends == {1: lsns.of(1), 2: lsns.mirror}
    assert lsns.of(1) < lsns.mirror


@given(st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(1, 3)), st.floats(0, 5))))
def test_no_schema_lsn_ever_decreases_and_the_mirror_waits_only_for_a_while(
    steps: list[tuple[int, set[int], float]],
) -> None:
    lsns, upto, now = SchemaLsns(Lsn(0), {}), 0, NOW
    since: dict[int, datetime] = {}
    for ahead, uncertain, seconds in steps:
        before = {oid: lsns.of(oid) for oid in (1, 2, 3)} | {0: lsns.mirror}
        upto, now = upto + ahead, now + timedelta(seconds=seconds)
        since = {oid: since.get(oid, now) for oid in uncertain}
        seen = CatalogSnapshot(Snapshot(OPEN, OPEN), Lsn(upto), now, {}, {}, {}, frozenset(), ())
        lsns.advance(Lsn(upto), dict.fromkeys(uncertain, frozenset({OPEN})), seen, lambda _: True)
        after = {oid: lsns.of(oid) for oid in (1, 2, 3)} | {0: lsns.mirror}
        assert all(after[oid] >= before[oid] for oid in after)
        assert all(after[oid] == Lsn(upto) for oid in {1, 2, 3} - uncertain)
        assert all(after[oid] == before[oid] for oid in uncertain)
        assert all(lsns.behind.get(oid, lsns.mirror) <= after[oid] for oid in (1, 2, 3)), "a reader is given no more"
        if all(now - began >= GRACE for began in since.values()):
            assert lsns.mirror == Lsn(upto)


def test_which_tables_wait_is_found_again_after_each_change_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    source, found, count = Source(A, B), StreamTracker._find_to_copy, Counter[str]()

    def counted(tracker: StreamTracker) -> dict[int, Fingerprint]:
        count["found"] += 1
        return found(tracker)

    def copied() -> set[int]:
        for _ in range(3):
            assert source.tracker.is_settled
            assert source.tracker.to_copy() == found(source.tracker)
        return set(source.tracker.to_copy())

    monkeypatch.setattr(StreamTracker, "_find_to_copy", counted)
    assert copied() == set()
    source.tracker.request_copy(1)
    assert copied() == {1}
    source.tracker.start_copy(1, Lsn(source.lsn))
    assert copied() == set()
    source.tracker.stop_copy(1)
    assert copied() == {1}
    source.tracker.add_gap(2, Lsn(source.lsn), NOT_COPIED)
    assert copied() == {1, 2}
    source.observe()
    assert copied() == {1, 2}
    source.tracker.add_copy(A, Boundary(Lsn(source.lsn)), Snapshot(Xid8(60), Xid8(60)))
    assert copied() == {2}
    del source.tables[2]
    source.observe()
    assert copied() == set()
    assert count["found"] <= 9


def test_a_table_that_returns_is_not_copied_while_a_transaction_from_before_its_return_runs() -> None:
    def seen(running: int, tables: dict[int, Fingerprint]) -> CatalogSnapshot:
        snapshot = Snapshot(Xid8(running), Xid8(running + 5), (Xid8(running),))
        return CatalogSnapshot(snapshot, Lsn(running), NOW, tables, {}, {}, frozenset(), ())

    state = CopyState()
    for snapshot in (seen(10, {1: A}), seen(20, {})):
        state.observe(snapshot)
    returned = seen(30, {1: A})
    state.observe(returned)
    assert not state.is_ripe(1, returned)
    assert state.is_ripe(1, seen(35, {1: A}))


def test_an_empty_table_does_not_begin_with_changes_that_have_expired() -> None:
    source = Source(A)
    source.tables[2] = B
    for _ in range(2):
        source.observe(empty=True, applied=False)
    source.tracker.settle(Lsn(source.lsn), {}, Log(), retained=Lsn(source.lsn + 1))
    assert not source.tracker.is_live(2)
    source.observe(empty=True)
    assert source.tracker.is_live(2)


def test_a_table_that_returns_before_its_removal_is_applied_waits_for_a_copy() -> None:
    source = Source(A, B)
    source.observe()
    del source.tables[1]
    source.observe(applied=False)
    source.tables[1] = A
    source.observe(applied=False)
    source.tracker.settle(Lsn(source.lsn), {}, Log())
    kinds = [event.kind for event in source.tracker.history(1).events]
    assert kinds[-3:] == [TableEventKind.WAITING, TableEventKind.DROPPED, TableEventKind.WAITING]
    assert [event.lsn.value for event in source.tracker.history(1).events[-2:]] == [source.lsn - 10, source.lsn]
    source.observe()
    assert source.tracker.unreadable().keys() == {1}
