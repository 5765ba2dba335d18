"""The versions of a row, computed from the first known row of its key and all later changes in order. Pure.

A row is followed from change to change. An update that changes the key ends the row under the old key and begins it
under the new one. An unchanged TOAST value is the value that the row had before, possibly under another key, so the
steps must include those of every key that the row was moved from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.errors import LakeDamaged
from tidemark.lake.identities import numbers_of
from tidemark.lake.rows import DELETED, INSERTED, POSTIMAGE, PREIMAGE, TRUNCATED
from tidemark.reads.shape import COPY_AGAIN, NEVER_SENT, REMOVALS, Shape
from tidemark.values.kernels import Flags, Longs

COPIED, BEFORE = "copy", "before"
STEP = ("kind", "commit", "time", "ordinal", "xid", "marks", "truncates")  # after the cells, ordered as `OURS`
AT_FIRST = -1  # the ordinal of a row that is older than all changes

LIFE = pa.schema(
    [
        pa.field("_begin_lsn", pa.int64()),
        pa.field("_begin_timestamp", pa.timestamp("us", "UTC")),
        pa.field("_begin_xid", pa.int64()),
        pa.field("_begin_type", pa.string()),
        pa.field("_end_lsn", pa.int64()),
        pa.field("_end_timestamp", pa.timestamp("us", "UTC")),
        pa.field("_end_xid", pa.int64()),
        pa.field("_end_type", pa.string()),
    ]
)
_TYPES = {
    **{kind: kind for kind in (INSERTED, DELETED, TRUNCATED, COPIED, BEFORE)},
    **dict.fromkeys((PREIMAGE, POSTIMAGE), "update"),
}


@dataclass(slots=True)
class _Life:
    """One version: the steps that began and ended it, and for each large column the step that sent its value."""

    begin: int
    sent: Mapping[int, int]
    end: int | None = None


@dataclass(slots=True)
class _Held:
    """The open versions by the number of their key, and all versions of the requested key."""

    asked: int
    lives: list[_Life] = field(default_factory=list)
    now: dict[int, _Life] = field(default_factory=dict)

    def begin(self, number: int, life: _Life) -> None:
        self.now[number] = life
        if number == self.asked:
            self.lives.append(life)

    def end(self, number: int, at: int) -> _Life | None:
        life = self.now.pop(number, None)
        if life is not None:
            life.end = at
        return life


def lives(steps: pa.Table, key: pa.Table, shape: Shape) -> pa.Table:
    """Return all versions of the row with a key, oldest first: its cells and the columns of `LIFE`.

    `steps` has the cells and the columns `STEP`, in any order of rows. A row that is older than all changes is a step
    with the ordinal `AT_FIRST`.
    """
    steps = with_whole_keys(steps, shape)
    keys = pa.concat_tables([steps.select(list(shape.key_cells)), key])
    numbers = numbers_of(keys, shape.key_cells, zeros_apart=False)
    held = _Held(int(numbers[-1]))
    large = sorted(_attnums(steps["marks"]) & {column.attnum for column in shape.columns} - set(shape.key))
    _follow(steps, numbers, held, large)
    begins = pa.array([life.begin for life in held.lives], pa.int64())
    ends = pa.array([life.end for life in held.lives], pa.int64())
    cells = {cell: steps[cell].take(begins) for cell in shape.cells}
    for column in shape.of(large):
        sent = pa.array([life.sent[column.attnum] for life in held.lives], pa.int64())
        cells |= {cell: steps[cell].take(sent) for cell in column.cells}
    return pa.table([*cells.values(), *_said(steps, begins), *_said(steps, ends)], names=[*cells, *LIFE.names])


def with_whole_keys(steps: pa.Table, shape: Shape) -> pa.Table:
    """Return the steps with the key columns that an update did not send taken from its old row."""
    marked = [column for column in shape.of(shape.key) if column.attnum in _attnums(steps["marks"])]
    if not marked:
        return steps
    kinds, positions = steps["kind"].to_pylist(), positions_of(steps)
    old = {position: at for at, (kind, position) in enumerate(zip(kinds, positions, strict=True)) if kind == PREIMAGE}
    for column in marked:
        unsent = pc.match_substring(steps["marks"], f",{column.attnum},").fill_null(False).to_pylist()
        places = [
            old.get(position, -1) if no else at for at, (no, position) in enumerate(zip(unsent, positions, strict=True))
        ]
        if -1 in places:
            raise LakeDamaged(f"key column {column.name}: {NEVER_SENT}", COPY_AGAIN)
        for cell in column.cells:
            steps = steps.set_column(
                steps.column_names.index(cell), cell, steps[cell].take(pa.array(places, pa.int64()))
            )
    return steps


def positions_of(steps: pa.Table) -> list[tuple[int, int]]:
    """Return the position of each step; an update and its old row have the same position."""
    return list(zip(steps["commit"].to_pylist(), steps["ordinal"].to_pylist(), strict=True))


def _follow(steps: pa.Table, numbers: Longs, held: _Held, large: Sequence[int]) -> None:
    """Begin and end versions in `held`, step by step."""
    position, moved = (-1, -1), None
    for at, kind, here, marks in _in_order(steps):
        number = int(numbers[at])
        if kind == TRUNCATED:
            for each in list(held.now):
                held.end(each, at)
        elif kind in REMOVALS:
            position, moved = here, held.end(number, at)
        else:
            there = held.end(number, at)
            before = moved if position == here else there
            held.begin(number, _Life(at, _sent(at, marks, before, large)))


def _in_order(steps: pa.Table) -> Iterator[tuple[int, str, tuple[int, int], str]]:
    """Return the steps by position, the old row of an update before its new row."""
    old: Flags = pc.equal(steps["kind"], PREIMAGE).to_numpy()
    order = np.lexsort((~old, steps["ordinal"].to_numpy(), steps["commit"].to_numpy()))
    kinds, marks, positions = steps["kind"].to_pylist(), steps["marks"].to_pylist(), positions_of(steps)
    return ((at, kinds[at], positions[at], marks[at] or "") for at in order.tolist())


def _sent(at: int, marks: str, before: _Life | None, large: Sequence[int]) -> dict[int, int]:
    marked = {attnum for attnum in large if f",{attnum}," in marks}
    if marked and before is None:
        raise LakeDamaged(f"column {min(marked)}: {NEVER_SENT}", COPY_AGAIN)
    return {attnum: before.sent[attnum] if before is not None and attnum in marked else at for attnum in large}


def _attnums(marks: pa.ChunkedArray) -> set[int]:
    said = [each for each in pc.unique(marks).to_pylist() if each]
    return {int(attnum) for each in said for attnum in each.split(",") if attnum}


def _said(steps: pa.Table, at: pa.Array) -> list[pa.Array]:
    """Return the LSN, time, transaction id and type of steps; null where there is no step."""
    types = [None if kind is None else _TYPES[kind] for kind in steps["kind"].take(at).to_pylist()]
    return [*(steps[name].take(at) for name in ("commit", "time", "xid")), pa.array(types, pa.string())]
