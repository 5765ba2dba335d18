"""Tasks on executors, for work that is not a query.

It also detects a terminated JVM, extracts the cause from a Spark error, and runs calls that wait for Spark or the
source in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from tidemark import logs

_REMOTE_TASKS = 16  # used if the number of concurrent tasks is unknown
_TRACEBACK = "Traceback (most recent call last):"
_LOOK_S = 0.2
Item = TypeVar("Item")
Result = TypeVar("Result")


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


def has_ended(session: SparkSession) -> bool:
    """Whether the JVM that PySpark started for a session has terminated. A JVM started elsewhere is not monitored."""
    gateway = getattr(getattr(session, "_sc", None), "_gateway", None)
    process = getattr(gateway, "proc", None)
    return process is not None and process.poll() is not None


def what_failed(error: BaseException) -> str:
    """Return the cause as one line: the innermost exception of a task if there is one, else the first line."""
    message = str(error)
    if _TRACEBACK in message:
        lines = message.rpartition(_TRACEBACK)[2].splitlines()
        return next((line for line in lines if line and not line.startswith(" ")), type(error).__name__)
    lines = [line for line in message.splitlines() if line.strip() and not line.startswith("An error occurred while")]
    return lines[0].rpartition("Exception: ")[2].strip() if lines else type(error).__name__


class TasksStopped(Exception):
    """A stop was requested. Calls that have started run to completion; their results are discarded."""


def in_parallel(
    run: Callable[[Item], Result], items: Iterable[Item], tasks: int, stopping: Callable[[], bool]
) -> Iterator[Result]:
    """Yield the results in the order of the items. After a failure or a stop request, no further call is started."""
    pool = ThreadPoolExecutor(tasks, "tidemark", logs.initializer())
    try:
        for future in [pool.submit(run, item) for item in items]:
            while not wait([future], _LOOK_S).done:
                if stopping():
                    raise TasksStopped
            yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
