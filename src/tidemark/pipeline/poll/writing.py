"""Writes the changes of a poll to the sink, in a Spark job that also hashes them."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame

from tidemark.lake.rows import DELETED, INSERTED
from tidemark.pipeline.poll.mirrored import Hashes
from tidemark.pipeline.sinks.sink import KIND, PolledChanges, Target, Written
from tidemark.values.hashes import text_hashes

TEXT = "text"
_TASK_ROWS = 1 << 40  # ordinals per task, so that (commit, ordinal) is unique
_WRITE_ROWS = 1 << 52  # ordinals per job


@dataclass(frozen=True, slots=True)
class ChangeWork:
    """Where the changes of a table are written, and the number of the job.

    `integer_key` is the cell of the key, if the key is a single integer.
    """

    target: Target[PolledChanges]
    number: int
    integer_key: str | None = None


@dataclass(frozen=True, slots=True)
class WrittenChanges:
    """What was written for one table, and the hashes of the rows inserted and removed."""

    written: tuple[Written, ...]
    inserted: Hashes
    removed: Hashes

    @property
    def rows(self) -> int:
        """The number of changes."""
        return sum(each.rows for each in self.written)


def write_changes(rows: DataFrame, work: ChangeWork) -> WrittenChanges:
    """Write rows that have cells, a `kind` and the digested `text`."""
    results = rows.mapInArrow(partial(_run, work), "written binary").collect()
    parts: list[WrittenChanges] = [pickle.loads(row[0]) for row in results]  # noqa: S301 - from our own tasks
    return joined(parts)


def joined(parts: Iterable[WrittenChanges]) -> WrittenChanges:
    """Combine results."""
    every = list(parts)
    return WrittenChanges(
        tuple(each for part in every for each in part.written),
        Hashes.joined(part.inserted for part in every),
        Hashes.joined(part.removed for part in every),
    )


def write_truncate(work: ChangeWork) -> WrittenChanges:
    """Write one change that removes every row."""
    writer = work.target.open()
    writer.write(PolledChanges(None, work.number * _WRITE_ROWS))
    return WrittenChanges(tuple(writer.finished()), Hashes.joined([]), Hashes.joined([]))


def _run(work: ChangeWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    first = work.number * _WRITE_ROWS + (context.partitionId() if context is not None else 0) * _TASK_ROWS
    writer = work.target.open()
    inserted: list[Hashes] = []
    removed: list[Hashes] = []
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            inserted.append(_hashes(work, batch, INSERTED))
            removed.append(_hashes(work, batch, DELETED))
            writer.write(PolledChanges(batch, first))
            first += batch.num_rows
        written = tuple(writer.finished())
    except Exception:
        writer.discard()
        raise
    results = WrittenChanges(written, Hashes.joined(inserted), Hashes.joined(removed))
    yield pa.record_batch({"written": pa.array([pickle.dumps(results)], pa.binary())})


def _hashes(work: ChangeWork, batch: pa.RecordBatch, kind: str) -> Hashes:
    """The hashes of the changes of one kind."""
    which = pc.equal(batch.column(KIND), kind)
    cell = work.integer_key
    keys = batch.column(cell).filter(which).cast(pa.int64()).to_numpy() if cell is not None else None
    return Hashes(text_hashes(batch.column(TEXT).filter(which)), keys)
