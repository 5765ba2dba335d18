"""One cycle of apply: the commits above the applied LSN in the log are written to the sink.

Every step can be repeated, and a table receives only the changes above its own applied LSN. The applier records the
cycle last. So after a crash at any point, reads return the state before the cycle or the state after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from tidemark.clock import Lsn
from tidemark.lake.shared import shared_folder
from tidemark.log.mapped import sync_segments
from tidemark.log.slices import SlicePlan
from tidemark.pgoutput.rows import Rows
from tidemark.pipeline.apply.job import PassedOver, Work, write_changes
from tidemark.pipeline.sinks.sink import Sink, Written
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.reasons import ALTERED_UNSEEN, undecodable
from tidemark.schema.relation import Relation
from tidemark.schema.stream_tracker import StreamTracker
from tidemark.storage.fail_points import FailPoint, fail_point
from tidemark.values.types import Types


@dataclass(frozen=True, slots=True)
class Applied:
    """What a cycle applied, up to the commit LSN `upto`."""

    upto: Lsn
    transactions: int
    changes: int
    tables: int
    size_bytes: int


def run_cycle(
    spark: SparkSession, sink: Sink, log: Path, plan: SlicePlan, relations: Sequence[Relation], tables: StreamTracker
) -> Applied:
    """Apply a plan, whose changes use these relations. The caller records the cycle in the sink afterwards."""
    types = Types(tables.types, sink.version_num)
    target = sink.change_target(_defined(relations, tables), types)
    fail_point(FailPoint.PLANNED)
    results = write_changes(spark, Work(shared_folder(log), types, target), plan.slices)
    sync_segments(log, {int(place) for each in plan.slices for p in each.parts for place in _places(p.extents)})
    fail_point(FailPoint.WRITTEN)
    _give_up([each for each in results if isinstance(each, PassedOver)], plan.after, tables)
    by_table: dict[int, list[Written]] = defaultdict(list)
    for each in results:
        if not isinstance(each, PassedOver):
            by_table[each.oid].append(each)
    sink.commit({tables.path(oid): written for oid, written in by_table.items()}, plan.upto)
    fail_point(FailPoint.ALL_COMMITTED)
    for oid, written in by_table.items():
        truncated = max((each.truncated for each in written if each.truncated is not None), default=None)
        if truncated is not None and tables.may_be_truncated(oid):
            tables.add_truncate(oid, truncated)
    rows = sum(each.rows for written in by_table.values() for each in written)
    return Applied(plan.upto, plan.transactions, rows, len(by_table), plan.size_bytes)


def _defined(relations: Sequence[Relation], tables: StreamTracker) -> dict[Relation, tuple[str, Fingerprint]]:
    """The path and the definition of the table of each relation that fits one."""
    fitting = [(relation, tables.fingerprint_of(relation)) for relation in relations]
    return {each: (tables.path(each.oid), found) for each, found in fitting if found is not None}


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


def _places(extents: Rows) -> list[int]:
    return [int(place) for place in np.unique(extents["place"])]
