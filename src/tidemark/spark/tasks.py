"""One task on an executor, for work that is not a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession


def in_a_task(spark: SparkSession, run: Callable[[], Iterable[bytes]]) -> list[bytes]:
    """What a function gives on an executor: by an RDD, a job of which costs the JVM half, where there are any."""
    context = getattr(spark, "_sc", None)  # Spark Connect has none
    if context is not None:
        return list(context.parallelize(range(1), 1).mapPartitions(lambda _: run()).collect())
    rows = spark.range(0, 1, 1, 1).mapInArrow(partial(_as_rows, run), "told binary").collect()
    return [bytes(row[0]) for row in rows]


def _as_rows(run: Callable[[], Iterable[bytes]], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For the one row that a task is given."""
    for _ in batches:
        for told in run():
            yield pa.record_batch({"told": pa.array([told], pa.binary())})
