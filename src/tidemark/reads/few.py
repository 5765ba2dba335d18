"""Merging of few changes in this process: for short queries, most of the cost of an overlay is Spark's planning.

Change files are read in this process, like a short tail of the log. Spark gets only the newest change of each key, and
the keys of all changes. Since these are known exactly, unnecessary steps are not planned. Rows that need an unchanged
TOAST value from a folded row are separated.
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

from tidemark.errors import LakeDamaged
from tidemark.lake.changes import ChangeFile
from tidemark.lake.columns import OURS, StoredColumn
from tidemark.lake.identities import numbers_of
from tidemark.reads.shape import META, REMOVALS, Shape
from tidemark.reads.shown import ShownTable
from tidemark.reads.tail import HERE_BYTES, arrow_schema, shown_rows
from tidemark.reads.unchanged import by_row, keys_from_preimages_here, resolved_here

ROWS, BYTES = 200_000, 32 << 20


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """The largest changes that are merged in this process: rows and bytes of files, and bytes of the log."""

    rows: int
    file_bytes: int
    tail_bytes: int


def short_limits() -> MergeLimits:
    """Return the limits below which merging here costs less than a plan of Spark."""
    return MergeLimits(ROWS, BYTES, HERE_BYTES)


@dataclass(frozen=True, slots=True)
class Few:
    """The merged changes: the remaining rows, by cells, and the touched keys, whose other rows are obsolete.

    If `truncated`, all folded rows are obsolete. `incomplete` rows need unchanged TOAST values of folded rows.
    """

    rows: pa.Table
    touched: pa.Table
    truncated: bool
    incomplete: pa.Table | None = None

    def for_key(self, shape: Shape, key: Sequence[int | str]) -> Few:
        """Drop the `incomplete` rows with other keys than this, because their values may be in any file."""
        if self.incomplete is None:
            return self
        cells = [column.cells[0] for column in shape.of(shape.key)]
        same = (pc.field(cell) == pa.scalar(value) for cell, value in zip(cells, key, strict=True))
        left = self.incomplete.filter(reduce(and_, same))
        return replace(self, incomplete=left if len(left) else None)


def are_few(files: Sequence[ChangeFile], limits: MergeLimits) -> bool:
    """Return whether these files are small enough to be read in this process."""
    return (
        sum(file.rows for file in files) <= limits.rows and sum(file.size_bytes for file in files) <= limits.file_bytes
    )


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
    steps, truncated = _after_truncate(_by_cells(rows, shape))
    try:
        steps = keys_from_preimages_here(steps, shape)
    except LakeDamaged:
        return None  # the query fails if Spark reads the value
    numbers = numbers_of(steps, shape.key_cells, zeros_apart=False)
    order = by_row(steps, numbers)
    newest = order[np.append(np.diff(numbers[order]) != 0, True)[: len(order)]]
    touched = steps.select(list(shape.key_cells)).take(pa.array(newest))
    gone = pc.is_in(steps["kind"], value_set=pa.array(REMOVALS)).to_numpy()
    found = resolved_here(steps, numbers, order, newest[~gone[newest]], shape)
    if found is None or (truncated and len(found.incomplete)):
        return None
    return Few(found.rows, touched, truncated, found.incomplete if len(found.incomplete) else None)


@dataclass(frozen=True, slots=True)
class FewContents:
    """The changes of a table without a key: the rows that they add and remove, by cells.

    If `truncated`, all folded rows are obsolete.
    """

    added: pa.Table
    removed: pa.Table
    truncated: bool


def contents_here(rows: pa.Table, shape: Shape) -> FewContents:
    """Divide the changes of a table without a key."""
    steps, truncated = _after_truncate(_by_cells(rows, shape))
    removes = pc.is_in(steps["kind"], value_set=pa.array(REMOVALS))
    cells = steps.select(list(shape.cells))
    return FewContents(cells.filter(pc.invert(removes)), cells.filter(removes), truncated)


def _by_cells(rows: pa.Table, shape: Shape) -> pa.Table:
    return rows.select([*shape.names, *META]).rename_columns([*shape.cells, *META.values()])


def _after_truncate(steps: pa.Table) -> tuple[pa.Table, bool]:
    """Drop everything before the newest TRUNCATE, and return whether there is one."""
    truncates = np.flatnonzero(steps["truncates"].is_valid().to_numpy())
    if not len(truncates):
        return steps, False
    commits, ordinals = (steps[name].to_numpy() for name in ("commit", "ordinal"))
    last = truncates[np.lexsort((ordinals[truncates], commits[truncates]))[-1]]
    later = (commits > commits[last]) | ((commits == commits[last]) & (ordinals > ordinals[last]))
    return steps.filter(pa.array(later)), True
