"""The states of a table between being wanted and being live, and what may follow what."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.clock import Boundary, Lsn, Snapshot, Xid8
from tidemark.lake.shared import SharedFolder
from tidemark.pipeline.copy.states import LEAST_PAUSE_S, MOST_PAUSE_S, UNREADABLE_S, CopyPhase, CopyStates
from tidemark.pipeline.sinks.lake_copies import LakeCopyTarget
from tidemark.pipeline.sinks.sink import TableCopy
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import Persistence

pytestmark = pytest.mark.quick


def copied(oid: int) -> TableCopy:
    table = Fingerprint(oid, "public", f"t{oid}", 1, Persistence.PERMANENT, (), (), None, None, (), ())
    target = LakeCopyTarget(SharedFolder(Path("/lake"), None), oid, "t", (), (), 1, Lsn(5))
    return TableCopy(table, Boundary(Lsn(5)), Snapshot(Xid8(9), Xid8(9)), target, ())


def test_a_table_goes_from_wanted_to_live() -> None:
    tracker = CopyStates()
    assert tracker.pick([1, 2], 0.0) == {1, 2}
    assert tracker.pick([1, 2, 3], 0.0) == {3}
    tracker.copied(copied(1))
    assert tracker.waiting() == (copied(1),)
    assert tracker.busy() == {1, 2, 3}
    tracker.taken(1)
    assert tracker.busy() == {2, 3}
    assert tracker.waiting() == ()
    assert tracker.pick([1], 0.0) == {1}, "a resync is another copy"


@pytest.mark.parametrize("phase", [CopyPhase.IN_FLIGHT, CopyPhase.COPIED])
def test_what_failed_is_wanted_again_after_a_pause_that_grows(phase: CopyPhase) -> None:
    tracker, now, pauses = CopyStates(), 0.0, []
    for _ in range(10):
        assert tracker.pick([1], now) == {1}
        if phase is CopyPhase.COPIED:
            tracker.copied(copied(1))
        pauses.append(tracker.failed(1, now))
        assert tracker.waiting() == ()
        assert tracker.busy() == frozenset()
        assert tracker.pick([1], now + pauses[-1] - 0.01) == frozenset()
        now += pauses[-1]
    assert pauses[0] == LEAST_PAUSE_S
    assert pauses[-1] == MOST_PAUSE_S
    assert pauses == sorted(pauses)


def test_what_was_taken_has_no_pause_any_more() -> None:
    tracker = CopyStates()
    tracker.pick([1], 0.0)
    tracker.failed(1, 0.0)
    tracker.pick([1], 100.0)
    tracker.copied(copied(1))
    tracker.taken(1)
    tracker.pick([1], 100.0)
    assert tracker.failed(1, 100.0) == LEAST_PAUSE_S


def test_no_state_is_left_out() -> None:
    tracker = CopyStates()
    for act in (lambda: tracker.copied(copied(1)), lambda: tracker.taken(1), lambda: tracker.failed(1, 0.0)):
        with pytest.raises(RuntimeError, match="at rest"):
            act()
    tracker.pick([1], 0.0)
    with pytest.raises(RuntimeError, match="in flight"):
        tracker.taken(1)
    tracker.copied(copied(1))
    with pytest.raises(RuntimeError, match="copied"):
        tracker.copied(copied(1))


def test_an_unreadable_table_is_copied_again_when_someone_asks_or_much_later() -> None:
    tracker = CopyStates()
    tracker.pick([1], 0.0)
    assert tracker.failed(1, 0.0, unreadable=True) == UNREADABLE_S
    assert tracker.pick([1], UNREADABLE_S - 1) == frozenset()
    tracker.hasten(1)
    assert tracker.pick([1], 1.0) == {1}
    tracker.hasten(1)
    assert tracker.failed(1, 1.0, unreadable=True) == LEAST_PAUSE_S, "someone asked while it was copied"
    assert tracker.pick([1], 1.0 + LEAST_PAUSE_S) == {1}
    assert tracker.failed(1, 2.0, unreadable=True) == UNREADABLE_S
    tracker.hasten(2)
    assert tracker.pick([2], 2.0) == {2}
