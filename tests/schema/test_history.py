"""Histories: where a table can be read, as what, and what a reader elsewhere is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.clock import Boundary, Lsn
from tidemark.errors import NotAnswerable
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import Span, TableEvent, TableEventKind, TableHistory, needed_events, of_events
from tidemark.schema.table import Child, Column, Generated, Persistence, PgType

pytestmark = pytest.mark.quick

INT4 = PgType(23, "pg_catalog.int4", "b")


def column(attnum: int, name: str, missing: str | None = None) -> Column:
    return Column(attnum, name, INT4, -1, False, Generated.NO, None, missing, 700)


OLD = Fingerprint(16384, "public", "t", 16384, Persistence.PERMANENT, (1,), (column(1, "id"),), None, None, (), ())
NEW = replace(OLD, columns=(column(1, "id"), column(2, "a", "7")))


def event(
    kind: TableEventKind, after: int, lsn: int, fingerprint: Fingerprint = OLD, reason: str = "", *excluded: int
) -> TableEvent:
    return TableEvent(kind, fingerprint, "public/t", Lsn(after), Lsn(lsn), frozenset(map(Lsn, excluded)), reason)


def history(*events: TableEvent) -> TableHistory:
    return TableHistory(events)


def ranges(table: TableHistory) -> list[tuple[int, int | None]]:
    return [(span.begin.value, None if span.end is None else span.end.value) for span in table.spans()]


WAITING = event(TableEventKind.WAITING, 10, 10, OLD, "transactions must end first")
BEGUN = event(TableEventKind.BEGUN, 20, 20)


def test_a_table_that_waits_is_read_nowhere_and_says_what_it_waits_for() -> None:
    waiting = history(WAITING)
    assert ranges(waiting) == []
    assert not waiting.live
    with pytest.raises(NotAnswerable, match=r"public\.t cannot be read at 0/C: transactions must end") as refused:
        waiting.at(Lsn(12))
    assert "`tidemark status LAKE`" in refused.value.hint


def test_a_table_is_read_from_its_beginning_on() -> None:
    begun = history(WAITING, event(TableEventKind.BEGUN, 20, 20, OLD, "", 15, 18))
    assert ranges(begun) == [(20, None)]
    assert begun.live
    assert begun.at(Lsn(20)).base == Boundary(Lsn(20), frozenset({Lsn(15), Lsn(18)}))
    with pytest.raises(NotAnswerable, match="transactions must end") as refused:
        begun.at(Lsn(19))
    assert refused.value.hint.endswith("from 0/14 on.")
    with pytest.raises(NotAnswerable, match="the table was not mirrored yet"):
        begun.at(Lsn(9))


def test_in_between_two_definitions_reads_are_refused_with_both_ranges() -> None:
    altered = history(
        BEGUN,
        event(
            TableEventKind.ALTERED, 30, 40, NEW, "the table was altered between two catalog snapshots: column 'a' added"
        ),
    )
    assert ranges(altered) == [(20, 30), (40, None)]
    assert altered.at(Lsn(30)).fingerprint == OLD
    assert altered.at(Lsn(40)).fingerprint == NEW
    assert altered.at(Lsn(40)).base == Boundary(Lsn(20))
    with pytest.raises(NotAnswerable, match="column 'a' added") as refused:
        altered.at(Lsn(31))
    assert refused.value.hint == "Read the table at an LSN from 0/14 to 0/1E or from 0/28 on."


def test_a_copy_is_read_from_its_base_on_and_whoever_stood_above_it_goes_by_what_was_before() -> None:
    copied = history(BEGUN, event(TableEventKind.COPIED, 70, 50, OLD, "", 45))
    assert ranges(copied) == [(20, 70), (50, None)]
    assert [copied.at(Lsn(lsn)).copied for lsn in (49, 50, 60, 80)] == [False, True, True, True]
    assert copied.at(Lsn(60)).base == Boundary(Lsn(50), frozenset({Lsn(45)}))
    assert ranges(history(*copied.events, event(TableEventKind.GAP, 60, 80, OLD, "passed over"))) == [
        (20, 60),
        (50, 60),
    ]
    assert ranges(history(*copied.events, event(TableEventKind.GAP, 40, 80, OLD, "passed over"))) == [(20, 40)]


def test_a_partitioned_table_is_the_union_of_what_its_partitions_are() -> None:
    two = (Child(1, "public.a"), Child(2, "public.b"))
    three = (*two, Child(3, "public.c"))
    root = replace(OLD, children=two)
    union = history(
        event(TableEventKind.UNION, 20, 20, root), event(TableEventKind.UNION, 30, 40, replace(root, children=three))
    )
    assert union.is_union
    assert ranges(union) == [(20, 30), (40, None)]
    assert union.at(Lsn(50)).fingerprint.children == three
    assert ranges(history(*union.events, event(TableEventKind.DROPPED, 60, 70, root))) == [(20, 30), (40, 60)]


def test_after_a_gap_a_table_is_read_from_its_new_beginning_on() -> None:
    gap = event(TableEventKind.GAP, 30, 40, NEW, "the table must be copied again: rewritten")
    assert ranges(history(BEGUN, gap)) == [(20, 30)]
    assert not history(BEGUN, gap).live
    again = history(BEGUN, gap, event(TableEventKind.SEEN, 50, 50, NEW), event(TableEventKind.BEGUN, 60, 60, NEW))
    assert ranges(again) == [(20, 30), (60, None)]
    assert again.at(Lsn(60)).base == Boundary(Lsn(60))
    with pytest.raises(NotAnswerable, match="must be copied again: rewritten"):
        again.at(Lsn(59))


def test_a_table_of_a_mirror_that_was_started_over_is_read_up_to_there_and_from_its_new_beginning_on() -> None:
    restarted = event(TableEventKind.RESTARTED, 30, 30, OLD, "the mirror was restarted: slot x does not exist any more")
    waiting = history(BEGUN, restarted, event(TableEventKind.SEEN, 30, 60, NEW))
    assert ranges(waiting) == [(20, 30)]
    assert not waiting.live
    assert waiting.restarted == restarted
    again = history(*waiting.events, event(TableEventKind.COPIED, 70, 70, NEW))
    assert ranges(again) == [(20, 30), (70, None)]
    assert again.live
    assert again.restarted is None
    for table, lsn in ((waiting, 31), (waiting, 90), (again, 69)):
        with pytest.raises(NotAnswerable, match="slot x does not exist") as refused:
            table.at(Lsn(lsn))
        assert "0/14 to 0/1E" in refused.value.hint
    assert history(BEGUN, restarted, event(TableEventKind.GAP, 30, 60, NEW, "altered twice")).restarted == restarted
    assert history(BEGUN, restarted, event(TableEventKind.DROPPED, 30, 60)).restarted is None


def test_an_alteration_after_a_gap_does_not_end_the_gap() -> None:
    """What was lost in a gap is still lost when the table's definition is known again."""
    gap = event(TableEventKind.GAP, 30, 30, OLD, "altered more than once between two catalog snapshots")
    assert ranges(history(BEGUN, gap, event(TableEventKind.ALTERED, 30, 40, NEW, "altered"))) == [(20, 30)]


def test_a_dropped_table_is_read_up_to_before_its_end() -> None:
    dropped = history(BEGUN, event(TableEventKind.DROPPED, 30, 40, OLD, "it was dropped"))
    assert ranges(dropped) == [(20, 30)]
    with pytest.raises(NotAnswerable, match="it was dropped"):
        dropped.at(Lsn(31))


def test_what_no_reader_notices_ends_nothing() -> None:
    seen = history(BEGUN, event(TableEventKind.SEEN, 30, 40), event(TableEventKind.WAITING, 50, 50, OLD, "why"))
    assert ranges(seen) == [(20, None)]


def test_a_span_that_ended_before_it_began_is_none() -> None:
    """A table altered before anyone knew its definition at its beginning."""
    assert ranges(history(BEGUN, event(TableEventKind.ALTERED, 15, 40, NEW, "altered"))) == [(40, None)]


def test_rows_older_than_a_column_read_as_it_was_first_seen() -> None:
    rewritten = replace(NEW, columns=(column(1, "id"), column(2, "a")))
    altered = history(BEGUN, event(TableEventKind.ALTERED, 30, 40, NEW), event(TableEventKind.SEEN, 50, 60, rewritten))
    assert altered.missing(2) == "7"
    assert altered.missing(1) is None
    assert altered.missing(3) is None


def test_events_of_several_tables_are_told_apart() -> None:
    other = replace(OLD, oid=16390, name="u")
    histories = of_events([WAITING, event(TableEventKind.BEGUN, 5, 5, other), BEGUN])
    assert {oid: len(each.events) for oid, each in histories.items()} == {16384: 2, 16390: 1}
    assert histories[16390].live


@st.composite
def lives(draw: st.DrawFn) -> TableHistory:
    """What a writer can tell: positions never go back."""
    positions = sorted(draw(st.lists(st.integers(1, 60), min_size=2, max_size=12)))
    kinds = draw(st.lists(st.sampled_from(TableEventKind), min_size=len(positions) // 2, max_size=len(positions) // 2))
    pairs = zip(positions[::2], positions[1::2], strict=False)
    return history(*(event(kind, *pair, OLD, f"{kind.value}") for kind, pair in zip(kinds, pairs, strict=True)))


@given(lives(), st.integers(0, 62))
def test_a_position_is_answered_by_one_span_or_refused_with_all(table: TableHistory, position: int) -> None:
    spans, lsn = table.spans(), Lsn(position)
    holding = [span for span in spans if span.holds(lsn)]
    if not holding:
        with pytest.raises(NotAnswerable) as refused:
            table.at(lsn)
        assert all(str(span.begin) in refused.value.hint for span in spans)
    else:
        assert table.at(lsn) == holding[-1]
    ends = [span.end for span in spans[:-1]]
    assert all(end is not None and end <= later.begin for end, later in zip(ends, spans[1:], strict=True))


@given(lives(), st.integers(1, 62))
def test_reads_above_the_retained_lsn_do_not_need_the_events_that_are_forgotten(table: TableHistory, at: int) -> None:
    kept = TableHistory(tuple(needed_events(table.events, Lsn(at))))
    for lsn in map(Lsn, range(at, 64)):
        assert kept.span_at(lsn) == table.span_at(lsn)
        if table.span_at(lsn) is None:
            messages = [refusal(each, lsn) for each in (kept, table)]
            assert messages[0] == messages[1]
    for part in ("last", "live", "restarted", "in_gap"):
        assert getattr(kept, part) == getattr(table, part)
    if not table.live:
        assert (kept.reason, kept.fix) == (table.reason, table.fix)


def refusal(table: TableHistory, lsn: Lsn) -> str:
    with pytest.raises(NotAnswerable) as refused:
        table.at(lsn)
    return refused.value.message


def test_events_before_the_beginning_that_reads_use_are_forgotten() -> None:
    waiting = [event(TableEventKind.WAITING, lsn, lsn, OLD, f"reason {lsn}") for lsn in (1, 2, 3)]
    emptied = [event(TableEventKind.EMPTIED, lsn, lsn) for lsn in (10, 20, 30)]
    events = [*waiting, *emptied]
    assert needed_events(events, Lsn.ZERO) == events
    assert needed_events(events, Lsn(2)) == [*waiting[1:], *emptied]
    assert needed_events(events, Lsn(10)) == [waiting[-1], *emptied], "the table cannot be read below its beginning"
    assert needed_events(events, Lsn(20)) == emptied, "the first range ends at 20"
    assert needed_events(events, Lsn(21)) == emptied[1:]
    assert needed_events(events, Lsn(99)) == emptied[2:]
    late = event(TableEventKind.COPIED, 40, 25)
    assert needed_events([*emptied, late], Lsn(40))[0] == emptied[2], "reads between 30 and 40 use the state before"


def spans_by_definition(table: TableHistory) -> list[Span]:
    """Every event that ends a span limits all spans before it."""
    spans: list[Span] = []
    for event in table.events:
        is_open = bool(spans) and spans[-1].end is None
        if event.kind not in (TableEventKind.WAITING, TableEventKind.SEEN):
            spans = [replace(span, end=min([event.after, *([span.end] if span.end else [])])) for span in spans]
        if event.kind in (TableEventKind.BEGUN, TableEventKind.EMPTIED, TableEventKind.COPIED, TableEventKind.UNION):
            base, copied = Boundary(event.lsn, event.excluded), event.kind is TableEventKind.COPIED
            emptied = event.kind is TableEventKind.EMPTIED
            spans.append(Span(event.lsn, None, event.fingerprint, base, copied, None, False, emptied))
        elif event.kind is TableEventKind.ALTERED and is_open:
            spans.append(replace(spans[-1], begin=event.lsn, end=None, fingerprint=event.fingerprint))
    return [span for span in spans if span.end is None or span.begin <= span.end]


@given(
    st.lists(
        st.tuples(st.sampled_from(TableEventKind), st.integers(1, 30), st.integers(1, 30), st.sampled_from([OLD, NEW])),
        max_size=12,
    )
)
def test_spans_are_those_of_their_definition_in_linear_time(
    made: list[tuple[TableEventKind, int, int, Fingerprint]],
) -> None:
    table = history(*(event(kind, after, lsn, fingerprint) for kind, after, lsn, fingerprint in made))
    assert list(table.spans()) == spans_by_definition(table)
    for lsn in map(Lsn, range(1, 31)):
        assert table.span_at(lsn) == next((span for span in reversed(table.spans()) if span.holds(lsn)), None)
