"""The Spark job of a cycle: executors decode slices of the log and write change files for every table in them.

A task writes one file for each table and set of columns in its slices. It returns their descriptions to the driver, and
the files are not part of the lake until the driver commits them. If Spark runs a task twice, both attempts write files,
but only those of one attempt are returned.

Before its first job a writer checks that the executors and the driver share their directories.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from tidemark.clock import Lsn
from tidemark.errors import FolderNotShared
from tidemark.lake.changes import change_writer
from tidemark.lake.columns import Layout, StoredColumn, stored_columns
from tidemark.lake.files import DataFile, FileWriter
from tidemark.lake.paths import CHANGES
from tidemark.lake.rows import change_rows
from tidemark.lake.shared import SharedFolder, forget_replies
from tidemark.log.mapped import decoded
from tidemark.log.slices import Slice
from tidemark.pgoutput.changes import ChangeBatch, Undecodable
from tidemark.pgoutput.extents import Said
from tidemark.schema.relation import Relation
from tidemark.spark import in_tasks, runs_here
from tidemark.storage.fail_points import FailPoint, fail_point
from tidemark.values.types import Types

GATHERED_BYTES = 128 << 20  # rows that all tables of a task buffer before they are written as row groups


@dataclass(frozen=True, slots=True)
class Work:
    """The input of a task. Relations that are not in `layouts` fit no known definition of their table."""

    log: SharedFolder
    lake: SharedFolder
    types: Types
    layouts: Mapping[Relation, Layout]
    applied: Mapping[int, Lsn]


@dataclass(frozen=True, slots=True)
class Written:
    """A file that a task has written for a table, and the columns in it."""

    oid: int
    file: DataFile
    columns: tuple[StoredColumn, ...]


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A table with changes that could not be written.

    `first` is the first change with a value that cannot be decoded; None if a relation fits no definition of the table.
    """

    oid: int
    first: Undecodable | None = None


def write_changes(spark: SparkSession, work: Work, slices: Sequence[Slice]) -> list[Written | PassedOver]:
    """Run the job; return the files to commit, and the tables with changes that could not be written."""
    if not slices:
        return []
    rows = pa.table({"slice": pa.array([pickle.dumps(each) for each in slices], pa.binary())})
    results = spark.createDataFrame(rows).mapInArrow(partial(_run, work), "written binary").collect()
    return [pickle.loads(row[0]) for row in results]  # noqa: S301 - from our own tasks


def _run(work: Work, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    raw = (each.as_py() for batch in batches for each in batch.column(0))
    written = _write(work, (pickle.loads(each) for each in raw))  # noqa: S301 - from our own driver
    yield pa.record_batch({"written": pa.array([pickle.dumps(each) for each in written], pa.binary())})


@dataclass(slots=True)
class _Open:
    """The files that a task is writing: one for each table and set of columns."""

    lake: Path
    files: dict[tuple[int, str, tuple[str, ...]], tuple[FileWriter, tuple[StoredColumn, ...]]] = field(
        default_factory=dict
    )

    def write(self, layout: Layout, rows: pa.Table) -> None:
        key = (layout.oid, layout.path, tuple(rows.column_names))
        if key not in self.files:
            folder = self.lake / layout.path / CHANGES
            folder.mkdir(parents=True, exist_ok=True)
            self.files[key] = change_writer(folder, rows.schema), stored_columns(rows.schema)
        self.files[key][0].write(rows)
        gathered = [writer for writer, _ in self.files.values()]
        if sum(writer.gathered_bytes for writer in gathered) > GATHERED_BYTES:
            max(gathered, key=lambda writer: writer.gathered_bytes).flush()

    def finished(self) -> Iterator[Written]:
        for (oid, _, _), (writer, columns) in self.files.items():
            yield Written(oid, writer.close(), columns)
            fail_point(FailPoint.FILE_WRITTEN)


def _write(work: Work, slices: Iterable[Slice]) -> list[Written | PassedOver]:
    files, log = _Open(work.lake.verified()), work.log.verified()
    passed: dict[int, PassedOver] = {}
    for each in slices:
        for part in each.parts:
            for batch in decoded(part, log, work.types):
                if isinstance(batch, Said):
                    continue
                oid, layout = batch.relation.oid, work.layouts.get(batch.relation)
                if layout is None:
                    passed[oid] = PassedOver(oid)
                elif isinstance(batch, ChangeBatch):
                    rows = _new_rows(batch, layout, work.applied.get(oid, Lsn.ZERO))
                    if len(rows):
                        files.write(layout, rows)
                elif batch.commit_lsn > work.applied.get(oid, Lsn.ZERO):
                    passed[oid] = _earlier(passed.get(oid), PassedOver(oid, batch))
    return [*files.finished(), *passed.values()]


def _earlier(known: PassedOver | None, found: PassedOver) -> PassedOver:
    """The first failure of a table. A relation that fits no definition takes precedence over a value."""
    if known is None or (known.first and found.first and found.first.commit_lsn < known.first.commit_lsn):
        return found
    return known


def _new_rows(batch: ChangeBatch, layout: Layout, applied: Lsn) -> pa.Table:
    """The rows of a batch above the applied LSN of the table, which already contains the others."""
    keep = batch.commit_lsns > np.uint64(applied.value)
    return change_rows(batch, layout.columns, None if keep.all() else keep)


def require_reach(spark: SparkSession, lake: SharedFolder, *others: SharedFolder) -> None:
    """Refuse executors that cannot read these directories of the driver, or whose files in the lake it cannot read.

    The check runs in as many tasks as can run at a time. An executor that joins later is checked by its first task.
    """
    if runs_here(spark):
        return
    for results in in_tasks(spark, partial(_answer, lake, others)):
        answer = pickle.loads(results)  # noqa: S301 - ours
        if isinstance(answer, FolderNotShared):
            raise answer
        lake.take_reply(*answer)
    forget_replies(lake)


def _answer(lake: SharedFolder, others: Sequence[SharedFolder]) -> Iterator[bytes]:
    try:
        for folder in others:
            folder.verified()
        yield pickle.dumps((lake.reply(), socket.gethostname()))
    except FolderNotShared as error:
        yield pickle.dumps(error)
