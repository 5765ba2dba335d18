"""The Spark job of a cycle: executors decode slices of the log and write the changes of all tables to the sink.

A task returns to the driver what it wrote, and that belongs to no table until the driver commits it. If Spark runs a
task twice, only what one attempt wrote is returned.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from tidemark.lake.shared import SharedFolder
from tidemark.log.mapped import decoded
from tidemark.log.slices import Slice
from tidemark.pgoutput.changes import ChangeBatch, Undecodable
from tidemark.pipeline.sinks.sink import ChangeTarget, Written
from tidemark.values.types import Types


@dataclass(frozen=True, slots=True)
class Work:
    """The input of a task."""

    log: SharedFolder
    types: Types
    target: ChangeTarget


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A table with changes that could not be written.

    `first` is the first change with a value that cannot be decoded; None if a relation fits no definition of the table.
    """

    oid: int
    first: Undecodable | None = None


def write_changes(spark: SparkSession, work: Work, slices: Sequence[Slice]) -> list[Written | PassedOver]:
    """Run the job; return what to commit, and the tables with changes that could not be written."""
    if not slices:
        return []
    rows = pa.table({"slice": pa.array([pickle.dumps(each) for each in slices], pa.binary())})
    results = spark.createDataFrame(rows).mapInArrow(partial(_run, work), "written binary").collect()
    return [pickle.loads(row[0]) for row in results]  # noqa: S301 - from our own tasks


def _run(work: Work, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    raw = (each.as_py() for batch in batches for each in batch.column(0))
    written = _write(work, (pickle.loads(each) for each in raw))  # noqa: S301 - from our own driver
    yield pa.record_batch({"written": pa.array([pickle.dumps(each) for each in written], pa.binary())})


def _write(work: Work, slices: Iterable[Slice]) -> list[Written | PassedOver]:
    log, target, writer = work.log.verified(), work.target, work.target.open()
    passed: dict[int, PassedOver] = {}
    try:
        for part in (part for each in slices for part in each.parts):
            for batch in decoded(part, log, work.types):
                oid = batch.relation.oid
                if not target.accepts(batch.relation):
                    passed[oid] = PassedOver(oid)
                elif isinstance(batch, ChangeBatch):
                    writer.write(batch)
                elif batch.commit_lsn > target.applied_lsn(oid):
                    passed[oid] = _earlier(passed.get(oid), PassedOver(oid, batch))
        return [*writer.finished(), *passed.values()]
    except Exception:
        writer.discard()
        raise


def _earlier(known: PassedOver | None, found: PassedOver) -> PassedOver:
    """The first failure of a table. A relation that fits no definition takes precedence over a value."""
    if known is None or (known.first and found.first and found.first.commit_lsn < known.first.commit_lsn):
        return found
    return known
