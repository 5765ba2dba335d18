"""Several things at a time, each of which waits for Spark or for the source: until all are done, one fails, or stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

_LOOK_S = 0.2
Item = TypeVar("Item")
Result = TypeVar("Result")


class Stopped(Exception):
    """It was asked to stop. What was begun is left."""


def in_parallel(
    run: Callable[[Item], Result], items: Iterable[Item], tasks: int, stopping: Callable[[], bool]
) -> Iterator[Result]:
    """What comes of each, in their order, so many at a time. After a failure, or when stopped, no more are begun."""
    pool = ThreadPoolExecutor(tasks, "tidemark")
    try:
        for future in [pool.submit(run, item) for item in items]:
            while not wait([future], _LOOK_S).done:
                if stopping():
                    raise Stopped
            yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
