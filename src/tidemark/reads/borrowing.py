"""Resolution of unchanged TOAST values among few changes: each value is in an earlier change, or in a folded row.

A row is followed from change to change, also when its key changes. A value that no change sent is in the folded row,
which is identified by the key that the row had when it was folded.
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
    """Changes of one table: their cells, key numbers, positions, kinds and unchanged TOAST values.

    `old` are preimages, `gone` all removals, and `marks` the texts of `_unchanged`.
    """

    cells: pa.Table
    numbers: Longs
    commits: Longs
    ordinals: Longs
    old: Flags
    gone: Flags
    marks: pa.Array

    def in_order(self) -> Longs:
        """Return the order of the changes by position, with an old row before the new one."""
        order: Longs = np.lexsort((~self.old, self.ordinals, self.commits))
        return order


@dataclass(frozen=True, slots=True)
class Completed:
    """Rows with all values, and rows that need values of folded rows (`borrowers`), with the keys of those."""

    rows: pa.Table
    borrowers: pa.Table


def completed(steps: Steps, newest: Longs, shape: Shape) -> Completed | None:
    """Resolve the unchanged TOAST values of the newest rows from other changes; None if that is not possible here."""
    large = _attnums(steps.marks) & {column.attnum for column in shape.columns}
    if large & set(shape.key):
        return None  # an unchanged key value is in the preimage, which is not handled here
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
    """Map each key and large column to the change that sent the value, or to ~key of the folded row.

    Only keys of rows with unchanged TOAST values are followed. None if an unchanged value belongs to a removed row.
    """
    order = steps.in_order()
    marked = steps.marks.is_valid().to_numpy(zero_copy_only=False)
    again = (np.diff(steps.commits[order]) == 0) & (np.diff(steps.ordinals[order]) == 0)
    lends = np.append(again & marked[order][1:], False)  # the preimage of an update with unchanged TOAST values
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
