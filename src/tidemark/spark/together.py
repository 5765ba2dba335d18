"""Run calls that wait for Spark or the source in parallel, until all are done, one fails, or a stop is requested."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

_LOOK_S = 0.2
Item = TypeVar("Item")
Result = TypeVar("Result")


class Stopped(Exception):
    """A stop was requested. Calls that have started run to completion; their results are discarded."""


def in_parallel(
    run: Callable[[Item], Result], items: Iterable[Item], tasks: int, stopping: Callable[[], bool]
) -> Iterator[Result]:
    """Yield the results in the order of the items. After a failure or a stop request, no further call is started."""
    pool = ThreadPoolExecutor(tasks, "tidemark")
    try:
        for future in [pool.submit(run, item) for item in items]:
            while not wait([future], _LOOK_S).done:
                if stopping():
                    raise Stopped
            yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
