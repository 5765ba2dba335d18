"""The schema tracker of polls, on values alone."""

from __future__ import annotations

import pytest

from tests.schema.test_history import OLD, event
from tidemark.clock import Lsn, Snapshot, Xid8
from tidemark.errors import InvalidValue
from tidemark.schema.history import TableEventKind
from tidemark.schema.poll_tracker import PollPosition, PollTracker
from tidemark.schema.selection import Pattern, Selection
from tidemark.schema.table import Catalog

pytestmark = pytest.mark.quick

SELECTION = Selection((Pattern("public.orders"),))
HERE = PollPosition(Lsn(10), Snapshot(Xid8(60), Xid8(60)), Lsn(10))


def test_a_pattern_that_matches_no_table_is_refused_only_when_a_mirror_is_new() -> None:
    with pytest.raises(InvalidValue, match=r"public\.orders"):
        PollTracker((), lambda _: None).plan(Catalog(()), SELECTION, HERE, {}, {})


def test_a_mirror_whose_tables_were_all_dropped_and_forgotten_goes_on() -> None:
    stored = [event(TableEventKind.COPIED, 1, 1, OLD), event(TableEventKind.DROPPED, 2, 2, OLD)]
    tracker = PollTracker(stored, lambda _: None)
    tracker.forget(Lsn(5), frozenset({OLD.oid}))
    assert tracker.histories == {}
    assert tracker.plan(Catalog(()), SELECTION, HERE, {}, {}).events == []
