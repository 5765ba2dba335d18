"""Snapshots: PostgreSQL's text and what it makes visible."""

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.clock import Snapshot, Xid8
from tidemark.errors import InvalidValue

pytestmark = pytest.mark.quick


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    xmin = draw(st.integers(3, 2**64 - 200))
    xmax = draw(st.integers(xmin, xmin + 100))
    xip = draw(st.sets(st.integers(xmin, xmax - 1), max_size=10)) if xmax > xmin else set()
    return Snapshot(Xid8(xmin), Xid8(xmax), tuple(map(Xid8, sorted(xip))))


@given(snapshots())
def test_text_and_back(snapshot: Snapshot) -> None:
    assert Snapshot.parse(str(snapshot)) == snapshot


@given(snapshots(), st.integers(-50, 150))
def test_sees_what_had_ended_and_nothing_else(snapshot: Snapshot, offset: int) -> None:
    xid = Xid8(max(0, snapshot.xmin.value + offset))
    expected = xid < snapshot.xmin or (xid < snapshot.xmax and xid not in snapshot.xip)
    assert snapshot.sees(xid) == expected


def test_an_idle_server_has_an_empty_list() -> None:
    snapshot = Snapshot.parse("750:750:")
    assert str(snapshot) == "750:750:"
    assert snapshot.sees(Xid8(749))
    assert not snapshot.sees(Xid8(750))


def test_repeated_ids_count_once_as_they_do_for_postgresql() -> None:
    assert str(Snapshot.parse("10:20:14,14,15")) == "10:20:14,15"


def test_across_the_32_bit_wrap_nothing_special_happens() -> None:
    snapshot = Snapshot.parse("4294967290:4294967310:4294967290,4294967300")
    assert snapshot.sees(Xid8(4294967299))
    assert not snapshot.sees(Xid8(4294967300))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1:2",
        "1:2:3:4",
        "0:5:",
        "5:4:",
        "10:20:9",
        "10:20:20",
        "10:20:15,14",
        "10:20:14,15,14",
        "10:20:,",
        "10:20:14,",
        "a:b:",
        "10:20:14;15",
        " 10:20:",
    ],
)
def test_what_is_not_a_snapshot_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        Snapshot.parse(text)


def test_a_snapshot_covers_another_exactly_if_it_hides_nothing_that_the_other_sees() -> None:
    ids = range(3, 8)
    every = [
        Snapshot(Xid8(xmin), Xid8(xmax), tuple(map(Xid8, running)))
        for xmin in ids
        for xmax in range(xmin, 8)
        for count in range(xmax - xmin + 1)
        for running in combinations(range(xmin, xmax), count)
    ]
    for one, other in product(every, repeat=2):
        hidden = [xid for xid in map(Xid8, ids) if other.sees(xid) and not one.sees(xid)]
        assert not (one.covers(other) and hidden)
        if one.xmax >= other.xmax:
            assert one.covers(other) == (not hidden)
