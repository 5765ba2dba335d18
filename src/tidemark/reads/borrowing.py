"""Values that changes did not send, among few changes: each is in an earlier change, or in a folded row.

Rows are followed from change to change, also where they move to another key. A row that still lacks a value then had it
when it was folded: the key that it had there says which row has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.reads.shape import Shape
from tidemark.values.kernels import Flags, Longs

LACKS, ITS = "lacks", "its_"


@dataclass(frozen=True, slots=True)
class Steps:
    """Changes of one table: their cells, and for each the number of its key, what it says, and what it did not send."""

    cells: pa.Table
    numbers: Longs
    commits: Longs
    ordinals: Longs
    old: Flags
    gone: Flags
    marks: pa.Array

    def in_order(self) -> Longs:
        """By position, an old row before the new one."""
        order: Longs = np.lexsort((~self.old, self.ordinals, self.commits))
        return order


@dataclass(frozen=True, slots=True)
class Completed:
    """Rows that have all their values; and rows that lack some, with the keys of the folded rows that hold them."""

    rows: pa.Table
    borrowers: pa.Table


def completed(steps: Steps, newest: Longs, shape: Shape) -> Completed | None:
    """The newest rows of their keys, with what others sent for them; None if that cannot be told here."""
    large = _attnums(steps.marks) & {column.attnum for column in shape.columns}
    if large & set(shape.key):
        return None  # a key that was not sent stands in the old row
    sent = _sent(steps, sorted(large))
    if sent is None:
        return None
    places = {attnum: newest.copy() for attnum in large}
    lacks = {attnum: np.zeros(len(newest), bool) for attnum in large}
    lender = np.full(len(newest), -1, np.int64)
    for row, number in enumerate(steps.numbers[newest].tolist()):
        for attnum, source in sent.get(number, {}).items():
            if source >= 0:
                places[attnum][row] = source
                continue
            lacks[attnum][row] = True
            if lender[row] not in (-1, ~source):
                return None
            lender[row] = ~source
    cells = {cell: steps.cells[cell].take(pa.array(newest)) for cell in shape.cells}
    for column in shape.of(sorted(large)):
        cells |= {cell: steps.cells[cell].take(pa.array(places[column.attnum])) for cell in column.cells}
    rows, whole = pa.table(cells), lender < 0
    _, first = np.unique(steps.numbers, return_index=True)
    keys = steps.cells.select(list(shape.key_cells)).take(pa.array(first[lender[~whole]]))
    borrowers = rows.filter(pa.array(~whole))
    for cell in shape.key_cells:
        borrowers = borrowers.append_column(f"{ITS}{cell}", keys[cell])
    for attnum in sorted(large):
        borrowers = borrowers.append_column(f"{LACKS}{attnum}", pa.array(lacks[attnum][~whole]))
    return Completed(rows.filter(pa.array(whole)), borrowers)


def _attnums(marks: pa.Array) -> set[int]:
    return {int(attnum) for said in pc.unique(marks).to_pylist() if said for attnum in said.strip(",").split(",")}


def _sent(steps: Steps, large: Sequence[int]) -> dict[int, dict[int, int]] | None:
    """For each key of a row that was marked, which change sent each of its large values; ~key for a folded row's."""
    order = steps.in_order()
    marked = steps.marks.is_valid().to_numpy(zero_copy_only=False)
    again = (np.diff(steps.commits[order]) == 0) & (np.diff(steps.ordinals[order]) == 0)
    lends = np.append(again & marked[order][1:], False)  # the old row beside a marked one
    followed = np.isin(steps.numbers, np.union1d(steps.numbers[marked], steps.numbers[order[lends]]))
    order = order[followed[order]]
    held: dict[int, dict[int, int] | None] = {}
    position, old_row = (-1, -1), None
    said = steps.marks.take(pa.array(order)).to_pylist()
    fields = (steps.numbers, steps.commits, steps.ordinals, steps.gone)
    for at, marks, number, commit, ordinal, gone in zip(
        order.tolist(), said, *(field[order].tolist() for field in fields), strict=True
    ):
        before = held[number] if number in held else dict.fromkeys(large, ~number)
        if gone:
            position, old_row = (commit, ordinal), before
            held[number] = None
            continue
        if position == (commit, ordinal):
            before = old_row
        if marks is None:
            held[number] = dict.fromkeys(large, at)
        elif before is None:
            return None
        else:
            held[number] = {n: before[n] if f",{n}," in marks else at for n in large}
    return {number: values for number, values in held.items() if values is not None}
