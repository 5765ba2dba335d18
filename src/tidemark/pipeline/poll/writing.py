"""Writes the changes of a cycle to files of `changes`: a Spark job stamps rows with the cycle's position."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame

from tidemark.clock import Lsn
from tidemark.lake.changes import change_writer
from tidemark.lake.columns import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ORDINAL,
    OURS,
    TRUNCATE,
    UNCHANGED,
    XID,
    StoredColumn,
    stored_columns,
)
from tidemark.lake.files import FileWriter
from tidemark.lake.rows import DELETED, INSERTED, TRUNCATED
from tidemark.lake.shared import SharedFolder
from tidemark.pipeline.apply.job import Written
from tidemark.pipeline.poll.mirrored import Hashes
from tidemark.storage.fail_points import FailPoint, fail_point
from tidemark.values.hashes import text_hashes

KIND, TEXT = "kind", "text"
_TASK_ROWS = 1 << 40  # ordinals per task, so that (commit, ordinal) is unique
_WRITE_ROWS = 1 << 52  # ordinals per job


@dataclass(frozen=True, slots=True)
class ChangeStamp:
    """The position and time of a cycle's changes."""

    lsn: Lsn
    time: datetime


@dataclass(frozen=True, slots=True)
class ChangeWork:
    """Where the changes of a table are written, the stored column of each attnum, and the number of the job.

    `integer_key` is the cell of the key, if the key is a single integer.
    """

    lake: SharedFolder
    oid: int
    folder: Path
    columns: Mapping[int, StoredColumn]
    stamp: ChangeStamp
    number: int
    integer_key: str | None = None


@dataclass(frozen=True, slots=True)
class WrittenChanges:
    """The files written for one table, and the hashes of the rows inserted and removed."""

    files: tuple[Written, ...]
    inserted: Hashes
    removed: Hashes

    @property
    def rows(self) -> int:
        """The number of changes."""
        return sum(each.file.rows for each in self.files)


def write_changes(rows: DataFrame, work: ChangeWork) -> WrittenChanges:
    """Write rows that have cells, a `kind` and the digested `text`."""
    results = rows.mapInArrow(partial(_run, work), "written binary").collect()
    parts: list[WrittenChanges] = [pickle.loads(row[0]) for row in results]  # noqa: S301 - from our own tasks
    return joined(parts)


def joined(parts: Iterable[WrittenChanges]) -> WrittenChanges:
    """Combine results."""
    every = list(parts)
    return WrittenChanges(
        tuple(file for part in every for file in part.files),
        Hashes.joined(part.inserted for part in every),
        Hashes.joined(part.removed for part in every),
    )


def write_truncate(work: ChangeWork) -> WrittenChanges:
    """Write one change that removes every row."""
    metadata = _ours(work, pa.array([TRUNCATED]), np.array([work.number * _WRITE_ROWS]))
    work.folder.mkdir(parents=True, exist_ok=True)
    writer = change_writer(work.folder, OURS)
    writer.write(pa.table({**metadata, TRUNCATE: pa.array([0], pa.int32())}, schema=OURS))
    return WrittenChanges((Written(work.oid, writer.close(), ()),), Hashes.joined([]), Hashes.joined([]))


def _run(work: ChangeWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    first = work.number * _WRITE_ROWS + (context.partitionId() if context is not None else 0) * _TASK_ROWS
    writers: dict[tuple[str, ...], FileWriter] = {}
    columns: dict[tuple[str, ...], tuple[StoredColumn, ...]] = {}
    inserted: list[Hashes] = []
    removed: list[Hashes] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = _changes(work, batch, first)
        first += batch.num_rows
        inserted.append(_hashes(work, batch, INSERTED))
        removed.append(_hashes(work, batch, DELETED))
        key = tuple(rows.column_names)
        if key not in writers:
            work.lake.verified()
            work.folder.mkdir(parents=True, exist_ok=True)
            writers[key], columns[key] = change_writer(work.folder, rows.schema), stored_columns(rows.schema)
        writers[key].write(rows)
    files = tuple(Written(work.oid, writer.close(), columns[key]) for key, writer in writers.items())
    for _ in files:
        fail_point(FailPoint.FILE_WRITTEN)
    results = WrittenChanges(files, Hashes.joined(inserted), Hashes.joined(removed))
    yield pa.record_batch({"written": pa.array([pickle.dumps(results)], pa.binary())})


def _hashes(work: ChangeWork, batch: pa.RecordBatch, kind: str) -> Hashes:
    """The hashes of the changes of one kind."""
    which = pc.equal(batch.column(KIND), kind)
    cell = work.integer_key
    keys = batch.column(cell).filter(which).cast(pa.int64()).to_numpy() if cell is not None else None
    return Hashes(text_hashes(batch.column(TEXT).filter(which)), keys)


def _changes(work: ChangeWork, batch: pa.RecordBatch, first: int) -> pa.Table:
    """The changes under their stored names; text fallbacks only for columns that have any."""
    arrays: list[pa.Array] = []
    fields: list[pa.Field] = []
    for attnum, column in work.columns.items():
        arrays.append(batch.column(f"v{attnum}").cast(column.type))
        fields.append(column.field())
        beside = f"t{attnum}"
        if beside in batch.schema.names and batch.column(beside).null_count < batch.num_rows:
            arrays.append(batch.column(beside).cast(pa.string()))
            fields.append(column.fallback_column().field())
    metadata = _ours(work, batch.column(KIND).cast(pa.string()), np.arange(first, first + batch.num_rows))
    return pa.table([*arrays, *metadata.values()], schema=pa.schema([*fields, *OURS]))


def _ours(work: ChangeWork, kinds: pa.Array, ordinals: np.ndarray) -> dict[str, pa.Array]:
    rows = len(kinds)
    return {
        CHANGE_TYPE: kinds,
        COMMIT_VERSION: pa.array(np.full(rows, work.stamp.lsn.value, np.int64)),
        COMMIT_TIMESTAMP: pa.array([work.stamp.time] * rows, pa.timestamp("us", "UTC")),
        ORDINAL: pa.array(ordinals, pa.int64()),
        XID: pa.nulls(rows, pa.int64()),
        UNCHANGED: pa.nulls(rows, pa.string()),
        TRUNCATE: pa.nulls(rows, pa.int32()),
    }
