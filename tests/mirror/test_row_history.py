"""Versions of a row against a model: after every commit exactly the row of a key lives that the replay leaves."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mirror.model import KEYS, PLANS, THIRD, History, Identity, Intent, keyed_history, rows_after, said
from tidemark.errors import LakeDamaged
from tidemark.lake.columns import OURS
from tidemark.mirror.row_history import AT_FIRST, COPIED, STEP, row_versions
from tidemark.reads.shape import Shape, ShownColumn

pytestmark = pytest.mark.quick

NAMES = ("key", "large", "other", "number")
SHAPE = Shape(tuple(ShownColumn(name, at + 2) for at, name in enumerate(NAMES)), (2,))
KINDS = (pa.int64(), pa.string(), pa.string(), pa.int64())
SCHEMA = pa.schema(
    [
        *zip(SHAPE.cells, KINDS, strict=True),
        *((name, field.type) for name, field in zip(STEP, OURS, strict=True)),
    ]
)


def step(row: tuple[Any, ...], kind: str, commit: int, ordinal: int, unchanged: str | None = None) -> dict[str, Any]:
    cells = dict(zip(SHAPE.cells, row, strict=True)) if row else {}
    return {**cells, "kind": kind, "commit": commit, "ordinal": ordinal, "xid": commit + 700, "unchanged": unchanged}


def steps_of(history: History, identity: Identity, copied: int) -> pa.Table:
    """What was there after the first commits, and what the stream says of the others."""
    there = [eval(row) for row in rows_after(history, range(copied), keyed=True)]  # noqa: S307 - the model's own text
    steps = [step(row, COPIED, copied, AT_FIRST) for row in there]
    for number, ops in enumerate(history):
        for ordinal, op in enumerate(ops if number >= copied else []):
            steps += [step(each.row, each.kind, number + 1, ordinal, each.marks) for each in said(op, identity)]
    return pa.Table.from_pylist(steps[::-1], SCHEMA)


@given(
    PLANS,
    st.frozensets(st.integers(0, 6), max_size=1),
    st.sampled_from([Identity.DEFAULT, Identity.FULL]),
    st.integers(0, 2),
)
def test_after_every_commit_the_version_lives_that_the_replay_leaves(
    plan: list[list[Intent]], truncates: frozenset[int], identity: Identity, copied: int
) -> None:
    history = keyed_history(plan, truncates)
    steps = steps_of(history, identity, copied)
    for key in (*range(KEYS), THIRD):
        found = row_versions(steps, pa.table({"v2": pa.array([key], pa.int64())}), SHAPE).to_pylist()
        for commit in range(copied, len(history) + 1):
            living = [
                repr(tuple(each[cell] for cell in SHAPE.cells))
                for each in found
                if each["_begin_lsn"] <= commit and (each["_end_lsn"] is None or commit < each["_end_lsn"])
            ]
            left = [row for row in rows_after(history, range(commit), keyed=True) if eval(row)[0] == key]  # noqa: S307
            assert living == left
        for one, other in pairwise(found):
            assert one["_end_lsn"] <= other["_begin_lsn"]
        assert all((each["_end_lsn"] is None) == (each["_end_type"] is None) for each in found)


def test_a_value_that_nobody_sent_is_refused() -> None:
    steps = pa.Table.from_pylist([step((1, None, None, 5), "update_postimage", 1, 0, ",3,")], SCHEMA)
    with pytest.raises(LakeDamaged, match="is missing from all earlier changes"):
        row_versions(steps, pa.table({"v2": pa.array([1], pa.int64())}), SHAPE)
