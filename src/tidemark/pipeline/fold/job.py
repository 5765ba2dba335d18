"""The Spark job of a fold: a partition for each bucket that has changes, merged with the live rows of the bucket.

A task reads the live rows of its bucket, merges, writes files and returns their descriptions to the driver. They are
not part of the lake until the driver commits them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from tidemark.lake.files import DataFile, FileWriter
from tidemark.lake.key_index import KeyIndexWriter
from tidemark.lake.rows import TRUNCATED
from tidemark.lake.shared import SharedFolder
from tidemark.lake.versions import BEGIN_LSN, END_LSN, prefix, version_schema
from tidemark.pipeline.fold.events import BUCKET
from tidemark.pipeline.fold.layout import VersionLayout
from tidemark.pipeline.fold.merge import BEGIN, END, EVENTS, Merging, merge
from tidemark.storage.fail_points import FailPoint, fail_point

GROUP_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class FoldWork:
    """The input of a task: `live` files of each bucket with which it merges, and `closed` files that it joins.

    Versions that ended at or below the `retained` LSN are left out: no read needs them (`expire.expiry`). A bucket's
    small closed files are joined again and again, so they would not expire as files.
    """

    lake: SharedFolder
    folder: Path
    layout: VersionLayout
    how: Merging
    live: Mapping[int, tuple[str, ...]]
    closed: Mapping[int, tuple[str, ...]]
    retained: int


@dataclass(frozen=True, slots=True)
class FoldedBucket:
    """The files that a task wrote for a bucket, to replace its live files."""

    bucket: int
    files: tuple[DataFile, ...]


def fold_buckets(events: DataFrame, work: FoldWork, tasks: int | None) -> list[FoldedBucket]:
    """Run the job, with a task for each bucket, or with this many tasks.

    `events` has the cells, the columns of an event, the end of a closed version, and the bucket.
    """
    parted = events.repartitionById(min(tasks or work.layout.buckets, work.layout.buckets), BUCKET)
    results = parted.mapInArrow(partial(_run, work), "written binary").collect()
    return [pickle.loads(row[0]) for row in results]  # noqa: S301 - from our own tasks


def _run(work: FoldWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    gathered = [batch for batch in batches if batch.num_rows]
    if not gathered:
        return
    work.lake.verified()
    events = pa.Table.from_batches(gathered)
    del gathered
    for bucket in sorted(pc.unique(events[BUCKET]).to_pylist()):
        results = FoldedBucket(bucket, tuple(_folded(work, bucket, events.filter(pc.field(BUCKET) == bucket))))
        yield pa.record_batch({"written": pa.array([pickle.dumps(results)], pa.binary())})


def _folded(work: FoldWork, bucket: int, events: pa.Table) -> Iterator[DataFile]:
    cells = _cells(work.layout)
    events = events.filter(pc.field("kind") != TRUNCATED).drop_columns(BUCKET)
    events = events.select([*cells.names, *EVENTS.names, END]).cast(pa.schema([*cells, *EVENTS, (END, pa.int64())]))
    live = _rows(work, work.live.get(bucket, ()), {BEGIN_LSN: BEGIN})
    merged = merge(work.how, live, events.filter(pc.field(END).is_null()))
    moved = events.filter(pc.field(END).is_valid()).rename_columns({"commit": BEGIN}).select(merged.closed.column_names)
    ended = _rows(work, work.closed.get(bucket, ()), {BEGIN_LSN: BEGIN, END_LSN: END})
    live = _by_key(merged.live, work.layout.key)
    yield from _written(work, bucket, live.append_column(END, pa.nulls(len(live), pa.int64())), live=True)
    closed = pa.concat_tables([ended, merged.closed, moved]).filter(pc.field(END) > work.retained)
    yield from _written(work, bucket, closed, live=False)


def _written(work: FoldWork, bucket: int, rows: pa.Table, *, live: bool) -> Iterator[DataFile]:
    if not len(rows):
        return
    key = work.layout.indexed_key if live else ()
    index = KeyIndexWriter(key) if key else None
    writer = FileWriter(work.folder, prefix(bucket, work.layout.buckets, live=live), index=index)
    named = pa.table(list(rows.select([*work.layout.cells, BEGIN, END])), schema=version_schema(work.layout.columns))
    for start in range(0, len(named), GROUP_ROWS):
        writer.write(named.slice(start, GROUP_ROWS))
    yield writer.close()
    fail_point(FailPoint.FILE_WRITTEN)


def _cells(layout: VersionLayout) -> pa.Schema:
    return pa.schema([pa.field(cell, c.type) for cell, c in zip(layout.cells, layout.columns, strict=True)])


def _rows(work: FoldWork, paths: Iterable[str], ours: Mapping[str, str]) -> pa.Table:
    """The rows of files, with columns named as cells."""
    names = [*(column.name for column in work.layout.columns), *ours]
    schema = pa.schema([*_cells(work.layout), *((name, pa.int64()) for name in ours.values())])
    files = (pq.read_table(work.folder / path, columns=names) for path in paths)
    return pa.concat_tables(
        [schema.empty_table(), *(_whole(file, names).rename_columns(schema.names).cast(schema) for file in files)]
    )


def _whole(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """The rows with all columns, in this order: a copied file has text fallback columns only if it needs them."""
    missing = [name for name in names if name not in rows.column_names]
    for name in missing:
        rows = rows.append_column(name, pa.nulls(len(rows), pa.string()))
    return rows.select(names)


def _by_key(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """The rows ordered by key, so that a lookup reads few pages."""
    sortable = [cell for cell in key if not pa.types.is_nested(rows[cell].type)]
    return rows.sort_by([(cell, "ascending") for cell in sortable]) if sortable else rows
