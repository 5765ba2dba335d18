"""From times to positions and back, where commits are not in the order of their times. Needs no server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.cut import cut_into_indexes
from tidemark.clock import Lsn
from tidemark.clock.epoch import EPOCH
from tidemark.errors import NotAnswerable
from tidemark.lake.polls import Polls
from tidemark.log.commits import CommitIndex
from tidemark.mirror.times import committed_at, lsn_at, lsn_of_poll, polled_at
from tidemark.pgoutput.rows import COMMITS, Rows

pytestmark = pytest.mark.quick

NOW = datetime(2100, 1, 1, tzinfo=UTC)


def commits(micros: list[int]) -> Rows:
    rows = np.zeros(len(micros), COMMITS)
    rows["lsn"] = np.arange(1, len(micros) + 1) * 10
    rows["xid"] = np.arange(len(micros)) + 700
    rows["micros"] = micros
    return rows


def index(rows: Rows) -> CommitIndex:
    """The commits in two files."""
    return cut_into_indexes(rows, [len(rows) // 2])


def test_the_time_of_a_position_is_its_last_commits() -> None:
    rows = index(commits([5, 9, 3, 12]))
    for lsn in (30, 31, 39):
        found = committed_at(Lsn(lsn), rows)
        assert (found.lsn, found.xid) == (Lsn(30), 702)
        assert found.time == EPOCH + timedelta(microseconds=3)
        assert found.latest == EPOCH + timedelta(microseconds=9)
    assert lsn_at(committed_at(Lsn(30), rows).latest, rows, Lsn(40), NOW) == Lsn(30)
    assert lsn_at(committed_at(Lsn(20), rows).latest, rows, Lsn(40), NOW) == Lsn(30), "the next one is not later"
    with pytest.raises(NotAnswerable, match="before the first commit"):
        committed_at(Lsn(9), rows)
    with pytest.raises(NotAnswerable, match="before the first commit"):
        lsn_at(committed_at(Lsn(30), rows).time, rows, Lsn(40), NOW)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=12), st.data())
def test_a_read_at_latest_sees_all_of_a_position_and_besides_only_what_follows_and_is_no_later(
    micros: list[int], data: st.DataObject
) -> None:
    rows = commits(micros)
    answerable = Lsn(10 * len(micros) + 5)
    lsn = Lsn(data.draw(st.integers(10, answerable.value)))
    found = committed_at(lsn, index(rows))
    there = lsn_at(found.latest, index(rows), answerable, NOW)
    assert there >= found.lsn
    between = [m for at, m in zip(rows["lsn"].tolist(), micros, strict=True) if lsn.value < at <= there.value]
    assert all(EPOCH + timedelta(microseconds=m) <= found.latest for m in between)
    following = [m for at, m in zip(rows["lsn"].tolist(), micros, strict=True) if at > lsn.value]
    if following and EPOCH + timedelta(microseconds=following[0]) > found.latest:
        assert not between, "both see the same"
    assert committed_at(there, index(rows)).latest == found.latest


def test_the_poll_of_a_time_where_the_clock_was_set_back_and_where_polls_saw_the_same() -> None:
    told = [(10, 5), (20, 9), (30, 3), (30, 7), (40, 12)]
    seen = {"snapshot": "700:701:", "source_lsn": 1, "timeline": 1, "reconciled_lsn": 10}
    rows = [
        {"schema_lsn": lsn, "applied_lsn": lsn, "source_time": EPOCH + timedelta(seconds=s), **seen} for lsn, s in told
    ]
    polls = Polls(pa.Table.from_pylist(rows))
    for second, lsn in ((5, 10), (8, 10), (9, 30), (11, 30), (12, 40)):
        assert lsn_of_poll(EPOCH + timedelta(seconds=second), polls) == Lsn(lsn)
    shown = polled_at(Lsn(35), polls)
    assert shown.lsn == Lsn(30)
    assert (shown.time, shown.latest) == (EPOCH + timedelta(seconds=7), EPOCH + timedelta(seconds=9))
    for second, why in ((4, "before the first poll"), (13, "after the last poll, the poll at 0/28")):
        with pytest.raises(NotAnswerable, match=why):
            lsn_of_poll(EPOCH + timedelta(seconds=second), polls)
    with pytest.raises(NotAnswerable, match="before the first poll"):
        polled_at(Lsn(9), polls)
