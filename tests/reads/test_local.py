"""The rows of a table for the local engine: those of the model, as of every commit, folded up to any of them."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from harness.local import cells
from tests.mirror.made import BASE, MadeLake, many
from tests.mirror.model import Identity, rows_after
from tests.mirror.wire import OID
from tidemark.clock import Boundary
from tidemark.errors import EngineRefused
from tidemark.reads import few, local, places
from tidemark.reads.few import MergeLimits
from tidemark.reads.local import LocalReader, LocalRows
from tidemark.reads.planning import TablePlanner
from tidemark.reads.snapshot import LakeView

pytestmark = pytest.mark.quick

CASES = [(identity, truncated) for identity in Identity for truncated in (False, True)]


def read(made: MadeLake, boundary: Boundary) -> LocalRows:
    view = LakeView(made.lake, None)
    history = made.lake.tables()[OID]
    planner = TablePlanner(lambda: view, {}, boundary, None, view)
    return LocalReader(planner).table(history, history.at(boundary.lsn))


def require(made: MadeLake, chance: random.Random) -> None:
    """As of every commit so far, with commits hidden and without."""
    table = made.table
    for end in range(table.length):
        if table.lsn(end) > made.applied:
            return
        for hidden in (table.hidden(end, chance, -1), [frozenset[int]()] * len(table.histories)):
            excluded = frozenset(table.lsn(n, sub) for sub, some in enumerate(hidden) for n in some)
            found: dict[int, Counter[str]] = defaultdict(Counter)
            for row in cells(read(made, Boundary(table.lsn(end), excluded))).to_pylist():
                found[row.pop("v1")][repr(tuple(row.values()))] += 1
            for sub, history in enumerate(table.histories):
                visible = frozenset(range(min(end + 1, len(history)))) - hidden[sub]
                assert found[sub] == rows_after(history, visible, table.keyed), (end, hidden[sub], history)


@pytest.mark.parametrize("placed", [True, False], ids=["by their places", "by their keys"])
@pytest.mark.parametrize(("identity", "truncated"), CASES, ids=lambda each: str(getattr(each, "value", each)))
def test_the_local_engine_reads_the_models_rows_wherever_the_table_is_folded_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: Identity, truncated: bool, placed: bool, short: bool
) -> None:
    if identity is Identity.NOTHING and truncated:
        pytest.skip("a history of inserts has no commit to truncate at")
    monkeypatch.setattr(places, "WORTH_ROWS", 1 if placed else 1 << 40)
    if not placed:
        monkeypatch.setattr(few, "ROWS", 0)  # which merges for the local engine alone
    table, chance = many(identity, truncated, 6 if short else 20), random.Random(0)  # noqa: S311 - the same every time
    made = MadeLake(tmp_path, table)
    for number, commit in enumerate((1, 3, table.length - 1)):
        made.apply(table.lsn(commit))
        require(made, chance)
        made.fold_here(buckets=1 + number)
        require(made, chance)


def test_changes_that_cannot_be_merged_in_this_process_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MadeLake(tmp_path, many(Identity.MULTISET, False, 3))
    made.apply(made.table.lsn(1))
    monkeypatch.setattr(local, "LIMITS", MergeLimits(0, 0, 0))
    with pytest.raises(EngineRefused, match="too many changes"):
        read(made, Boundary(made.applied))
    assert cells(read(made, Boundary(BASE))).num_rows == 0
