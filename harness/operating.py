"""A mirror as an operator has it: `sync` runs in a thread of this process, and everything else is a command."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import tidemark
from harness.mirrored import eventually
from tidemark.lake.pipeline_state import State, read_pipeline_state
from tidemark.pipeline.events import SyncEnded
from tidemark.postgres.dsn import Dsn

LIMIT_S = 120


@contextmanager
def running(source: Dsn | str, lake: Path, spark: SparkSession, **options: Any) -> Iterator[Future[SyncEnded]]:
    """`tidemark.sync` in a thread, until the context ends."""
    stopped = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(
            lambda: tidemark.sync(source, lake, fold=False, spark=spark, stopping=stopped.is_set, **options)
        )
        try:
            yield done
        finally:
            stopped.set()
            done.exception(LIMIT_S)


def until(lake: Path, wanted: State, ended: Future[SyncEnded]) -> None:
    """Wait for a state of the pipeline; an end before it is a failure."""

    def is_reached() -> bool:
        found = read_pipeline_state(lake)
        return ended.done() or (found is not None and found.state is wanted)

    eventually(is_reached, LIMIT_S)
    assert not ended.done(), ended.result()
