"""Merging of few changes in this process: for short queries, most of the cost of an overlay is Spark's planning.

Change files are read in this process, like a short tail of the log. Spark gets only the newest change of each key, and
the keys of all changes. Since these are known exactly, unnecessary steps are not planned. Rows that need an unchanged
TOAST value from a folded row are separated (`borrowing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.lake.changes import ChangeFile
from tidemark.lake.columns import CHANGE_TYPE, COMMIT_VERSION, ORDINAL, OURS, TRUNCATE, UNCHANGED, StoredColumn
from tidemark.lake.identities import numbers_of
from tidemark.lake.rows import PREIMAGE
from tidemark.reads.borrowing import Steps, completed
from tidemark.reads.shape import REMOVALS, Shape
from tidemark.reads.shown import ShownTable
from tidemark.reads.tail import arrow_schema, shown_rows

ROWS, BYTES = 200_000, 32 << 20


@dataclass(frozen=True, slots=True)
class Few:
    """The merged changes: the remaining rows, by cells, and the touched keys, whose other rows are obsolete.

    If `truncated`, all folded rows are obsolete. `borrowers` are rows that need unchanged TOAST values of folded rows.
    """

    rows: pa.Table
    touched: pa.Table
    truncated: bool
    borrowers: pa.Table | None = None

    def for_key(self, shape: Shape, key: Sequence[int | str]) -> Few:
        """Drop the `borrowers` with other keys than this, because their values may be in any file."""
        if self.borrowers is None:
            return self
        cells = [column.cells[0] for column in shape.of(shape.key)]
        same = (pc.field(cell) == pa.scalar(value) for cell, value in zip(cells, key, strict=True))
        left = self.borrowers.filter(reduce(and_, same))
        return replace(self, borrowers=left if len(left) else None)


def are_few(files: Sequence[ChangeFile]) -> bool:
    """Return whether these files are small enough to be read in this process."""
    return sum(file.rows for file in files) <= ROWS and sum(file.size_bytes for file in files) <= BYTES


def read_here(table: ShownTable, files: Iterable[ChangeFile], stored: Sequence[StoredColumn]) -> pa.Table:
    """Read the rows of change files with the columns of a table."""
    found = [arrow_schema(table).empty_table()]
    for file in files:
        there = [column for column in stored if column.name in file.columns]
        rows = pq.read_table(file.path, columns=[*(column.name for column in there), *OURS.names])
        homes = tuple(column for column in there if not column.text)
        found.append(shown_rows(rows, homes, table))
    return pa.concat_tables(found)


def merged_here(rows: pa.Table, shape: Shape) -> Few | None:
    """Merge the changes of a table with a key; None if that is not possible here."""
    commits, ordinals = (rows[name].to_numpy() for name in (COMMIT_VERSION, ORDINAL))
    truncates = np.flatnonzero(rows[TRUNCATE].is_valid().to_numpy())
    if len(truncates):
        last = truncates[np.lexsort((ordinals[truncates], commits[truncates]))[-1]]
        later = (commits > commits[last]) | ((commits == commits[last]) & (ordinals > ordinals[last]))
        rows, commits, ordinals = rows.filter(pa.array(later)), commits[later], ordinals[later]
    cells = rows.select(list(shape.names)).rename_columns(list(shape.cells))
    numbers = numbers_of(cells, shape.key_cells, zeros_apart=False)
    old = pc.equal(rows[CHANGE_TYPE], PREIMAGE).to_numpy()
    order = np.lexsort((~old, ordinals, commits, numbers))
    newest = order[np.append(np.diff(numbers[order]) != 0, True)[: len(order)]]
    gone = pc.is_in(rows[CHANGE_TYPE], value_set=pa.array(REMOVALS)).to_numpy()
    touched = cells.select(list(shape.key_cells)).take(pa.array(newest))
    newest = newest[~gone[newest]]
    marks = rows[UNCHANGED].combine_chunks()
    if marks.null_count == len(marks):
        return Few(cells.take(pa.array(newest)), touched, bool(len(truncates)))
    found = completed(Steps(cells, numbers, commits, ordinals, old, gone, marks), newest, shape)
    if found is None or (len(truncates) and len(found.borrowers)):
        return None
    return Few(found.rows, touched, bool(len(truncates)), found.borrowers if len(found.borrowers) else None)
