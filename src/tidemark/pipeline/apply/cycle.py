"""One cycle of apply: the commits above the applied LSN in the log are written to the `changes` of every table.

Every step can be repeated. Files that were written but not committed belong to no table. A table that already has a
commit receives only the changes above it. The row in `_cycles` is written last, by the writer. So after a crash at any
point, reads return the state before the cycle or the state after it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tidemark.clock import Lsn
from tidemark.lake.columns import COMMIT_VERSION, TRUNCATE, Layout, layout_of
from tidemark.lake.commits import ChangeTable, is_there
from tidemark.lake.lake import Lake
from tidemark.lake.paths import CHANGES
from tidemark.lake.shared import shared_folder
from tidemark.log.mapped import sync_segments
from tidemark.log.slices import SlicePlan
from tidemark.pgoutput.rows import Rows
from tidemark.pipeline.apply.job import PassedOver, Work, Written, write_changes
from tidemark.schema.reasons import ALTERED_UNSEEN, undecodable
from tidemark.schema.relation import Relation
from tidemark.schema.stream_tracker import StreamTracker
from tidemark.storage.fail_points import FailPoint, fail_point
from tidemark.values.types import Types

COMMITTERS = 8


@dataclass(frozen=True, slots=True)
class Applied:
    """What a cycle applied, up to the commit LSN `upto`."""

    upto: Lsn
    transactions: int
    changes: int
    tables: int
    size_bytes: int


class ChangeTables:
    """The `changes` tables of a lake, each opened once and kept open."""

    def __init__(self, lake: Path) -> None:
        self._lake = lake
        self._open: dict[str, ChangeTable] = {}

    def find(self, path: str) -> ChangeTable | None:
        """The `changes` of a table, or None if it has none yet."""
        folder = self._lake / path / CHANGES
        if path not in self._open and is_there(folder):
            self._open[path] = ChangeTable(folder)
        return self._open.get(path)

    def create(self, path: str, written: Sequence[Written]) -> ChangeTable:
        """Create the `changes` of a table, with the columns of the files that were written for it."""
        columns = dict.fromkeys(column for each in written for column in each.columns)
        self._open[path] = ChangeTable.create(self._lake / path / CHANGES, list(columns))
        fail_point(FailPoint.TABLE_CREATED)
        return self._open[path]

    def applied(self, path: str) -> Lsn:
        """The LSN up to which a table has its changes, according to its own last commit."""
        table = self.find(path)
        return table.applied if table else Lsn.ZERO


def run_cycle(
    spark: SparkSession,
    lake: Lake,
    plan: SlicePlan,
    relations: Sequence[Relation],
    tables: StreamTracker,
    changes: ChangeTables,
) -> Applied:
    """Apply a plan, whose changes use these relations. The caller records the cycle in `_cycles` afterwards."""
    layouts = _layouts(lake, relations, tables, changes)
    oids = {layout.oid for layout in layouts.values()}
    applied = {oid: changes.applied(tables.path(oid)) for oid in oids}
    types = Types(tables.types, lake.version_num)
    fail_point(FailPoint.PLANNED)
    results = write_changes(
        spark, Work(shared_folder(lake.log), shared_folder(lake.path), types, layouts, applied), plan.slices
    )
    written = [each for each in results if isinstance(each, Written)]
    sync_segments(lake.log, {int(place) for each in plan.slices for p in each.parts for place in _places(p.extents)})
    fail_point(FailPoint.WRITTEN)
    _give_up([each for each in results if isinstance(each, PassedOver)], plan.after, tables)
    by_table: dict[int, list[Written]] = defaultdict(list)
    for each in written:
        by_table[each.oid].append(each)
    with ThreadPoolExecutor(COMMITTERS) as pool:
        list(pool.map(lambda item: _commit(tables.path(item[0]), item[1], plan.upto, changes), by_table.items()))
    fail_point(FailPoint.ALL_COMMITTED)
    for oid, files in by_table.items():
        if not tables.may_be_truncated(oid):
            continue
        if (lsn := _last_truncate(lake.path / tables.path(oid) / CHANGES, files)) is not None:
            tables.add_truncate(oid, lsn)
    rows = sum(each.file.rows for each in written)
    return Applied(plan.upto, plan.transactions, rows, len(by_table), plan.size_bytes)


def _give_up(passed: Sequence[PassedOver], after: Lsn, tables: StreamTracker) -> None:
    """Record a gap for every table with changes that could not be written, from the first such change on.

    If a relation fits no definition of its table, the gap begins at the start of the plan.
    """
    by_table: dict[int, list[PassedOver]] = defaultdict(list)
    for each in passed:
        by_table[each.oid].append(each)
    for oid, found in sorted(by_table.items()):
        bad = [each.first for each in found if each.first is not None]
        if len(bad) < len(found):
            tables.add_gap(oid, after, tables.flaw(oid) or ALTERED_UNSEEN)
        else:
            first = min(bad, key=lambda each: each.commit_lsn)
            message = f"{first.reason}, committed at {first.commit_lsn}"
            if (history := tables.histories.get(oid)) is not None:
                tables.add_gap(oid, Lsn(first.commit_lsn.value - 1), undecodable(history.fingerprint, message))


def _commit(path: str, written: Sequence[Written], upto: Lsn, changes: ChangeTables) -> None:
    table = changes.find(path) or changes.create(path, written)
    table.require_columns([column for each in written for column in each.columns])
    table.append([each.file for each in written], upto)


def _last_truncate(folder: Path, written: Sequence[Written]) -> Lsn | None:
    """The commit LSN of the last TRUNCATE in these files, or None."""
    found: list[int] = []
    for each in written:
        if json.loads(each.file.stats)["nullCount"][TRUNCATE] < each.file.rows:
            rows = pq.read_table(folder / each.file.path, columns=[COMMIT_VERSION, TRUNCATE])
            found += rows.filter(pc.field(TRUNCATE).is_valid())[COMMIT_VERSION].to_pylist()
    return Lsn(max(found)) if found else None


def _layouts(
    lake: Lake, relations: Sequence[Relation], tables: StreamTracker, changes: ChangeTables
) -> Mapping[Relation, Layout]:
    """The layout of each relation in the plan. Relations that fit no definition of their table are left out."""
    found: dict[Relation, Layout] = {}
    types = Types(tables.types, lake.version_num)
    for relation in relations:
        fingerprint = tables.fingerprint_of(relation)
        if fingerprint is None:
            continue
        path = tables.path(relation.oid)
        table = changes.find(path)
        stored = table.columns if table else ()
        earlier = [column for layout in found.values() if layout.oid == relation.oid for column in layout.columns]
        stored = tuple(dict.fromkeys([*stored, *earlier]))
        found[relation] = layout_of(relation, fingerprint, path, stored, types)
    return found


def _places(extents: Rows) -> list[int]:
    return [int(place) for place in np.unique(extents["place"])]
