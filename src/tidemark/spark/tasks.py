"""Tasks on executors, for work that is not a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

_REMOTE_TASKS = 16  # used if the number of concurrent tasks is unknown


def in_a_task(spark: SparkSession, run: Callable[[], Iterable[bytes]]) -> list[bytes]:
    """Run a function in one task on an executor and return its results."""
    return _run(spark, run, 1)


def in_tasks(spark: SparkSession, run: Callable[[], Iterable[bytes]]) -> list[bytes]:
    """Run a function in as many tasks as can run at a time and return all results."""
    context = getattr(spark, "_sc", None)
    return _run(spark, run, max(1, context.defaultParallelism) if context is not None else _REMOTE_TASKS)


def runs_here(spark: SparkSession) -> bool:
    """Whether tasks run on the driver's machine, in processes that its JVM starts."""
    context = getattr(spark, "_sc", None)
    return context is not None and (context.master == "local" or context.master.startswith("local["))


def _run(spark: SparkSession, run: Callable[[], Iterable[bytes]], tasks: int) -> list[bytes]:
    """Use an RDD, whose jobs cost the JVM half as much, if available; Spark Connect has no RDDs."""
    context = getattr(spark, "_sc", None)
    if context is not None:
        return list(context.parallelize(range(tasks), tasks).mapPartitions(lambda _: run()).collect())
    rows = spark.range(0, tasks, 1, tasks).mapInArrow(partial(_as_rows, run), "value binary").collect()
    return [bytes(row[0]) for row in rows]


def _as_rows(run: Callable[[], Iterable[bytes]], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the function once per batch; each task receives one row."""
    for _ in batches:
        for value in run():
            yield pa.record_batch({"value": pa.array([value], pa.binary())})
