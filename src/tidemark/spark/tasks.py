"""Tasks on executors, for work that is not a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

_REMOTE_TASKS = 16  # where it is not known how many run at a time


def in_a_task(spark: SparkSession, run: Callable[[], Iterable[bytes]]) -> list[bytes]:
    """What a function gives on an executor."""
    return _run(spark, run, 1)


def in_tasks(spark: SparkSession, run: Callable[[], Iterable[bytes]]) -> list[bytes]:
    """The same in as many tasks as can run at a time."""
    context = getattr(spark, "_sc", None)
    return _run(spark, run, max(1, context.defaultParallelism) if context is not None else _REMOTE_TASKS)


def runs_here(spark: SparkSession) -> bool:
    """Whether tasks run on the driver's own machine, in processes that its JVM starts."""
    context = getattr(spark, "_sc", None)
    return context is not None and (context.master == "local" or context.master.startswith("local["))


def _run(spark: SparkSession, run: Callable[[], Iterable[bytes]], tasks: int) -> list[bytes]:
    """By an RDD, a job of which costs the JVM half, where there are any; Spark Connect has none."""
    context = getattr(spark, "_sc", None)
    if context is not None:
        return list(context.parallelize(range(tasks), tasks).mapPartitions(lambda _: run()).collect())
    rows = spark.range(0, tasks, 1, tasks).mapInArrow(partial(_as_rows, run), "value binary").collect()
    return [bytes(row[0]) for row in rows]


def _as_rows(run: Callable[[], Iterable[bytes]], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For the one row that a task is given."""
    for _ in batches:
        for value in run():
            yield pa.record_batch({"value": pa.array([value], pa.binary())})
