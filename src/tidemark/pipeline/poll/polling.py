"""The poll loop: runs a cycle per interval, and retries failed ones.

A cycle that took longer than the interval is followed immediately by the next one. A cycle that fails with a temporary
error is retried after a pause that grows with every failure and is randomized, so that the mirrors of one source do not
retry at the same time.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemark.errors import Retry, SparkError, TaskFailed, TidemarkError, policy_of
from tidemark.logs import fields
from tidemark.restarts import next_pause_s
from tidemark.spark import TasksStopped, has_ended, what_failed
from tidemark.units import format_duration

FIRST_PAUSE_S, MOST_PAUSE_S = 1.0, 300.0
MOST_FAILURES = 3  # consecutive failures after which an error of Spark is raised
_LOOK_S = 0.1
T = TypeVar("T")
_LOGGER = logging.getLogger("tidemark.pipeline")
_RETRY = "Retry the command. It continues from the last poll, since which nothing was changed."


class Polling(Generic[T]):
    """Polls until it is stopped.

    `step` runs one poll, and returns None if nothing became visible since the last one. If `wanted` returns true, the
    next poll does not wait for its interval; while `paused` returns true, it does not begin; if `enough` returns true
    after a poll, that was the last one. `spark` is the session that polls use, if they use one.
    """

    def __init__(
        self,
        step: Callable[[], T | None],
        spark: SparkSession | None,
        interval_s: float,
        stopping: Callable[[], bool],
        wanted: Callable[[], bool] = lambda: False,
        paused: Callable[[], bool] = lambda: False,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        self._step, self._spark = step, spark
        self._interval_s, self._stopping, self._wanted = interval_s, stopping, wanted
        self._paused, self._enough = paused, enough
        self._failures, self._longest_s = 0, 0.0

    def run(
        self,
        done: Callable[[T, float], None],
        last: Callable[[], T | None] | None = None,
        *,
        once: bool,
    ) -> bool:
        """Poll repeatedly, or until one poll has succeeded if `once`; permanent errors are raised.

        `done` is called with the result of a poll and its seconds. `last` is called before each poll and may run the
        last one. Then the result is true, and the mirror follows the stream from now on.
        """
        while not self._stopping():
            if self._paused():
                time.sleep(_LOOK_S)
                continue
            begin = time.monotonic()
            try:
                handed_over = last() if last is not None else None
                polled = handed_over or self._step()
            except TasksStopped:
                return False
            except (TidemarkError, PySparkException, Py4JError, ConnectionError) as error:
                pause_s = self._after(error)
                failure, extra = _described(error), fields(retry_s=round(pause_s, 3))
                _LOGGER.warning("%s; retry in %s", failure, format_duration(pause_s), extra=extra)
                self._rest(pause_s, self._stopping)
            else:
                self._failures, self._longest_s = 0, 0.0
                took_s = time.monotonic() - begin
                pause_s = self._interval_s - took_s
                if polled is not None:
                    done(polled, took_s)
                if once or handed_over is not None or self._enough():
                    return handed_over is not None
                self._rest(pause_s, lambda: self._stopping() or self._wanted())
        return False

    def _after(self, error: Exception) -> float:
        """Return the pause before the next attempt; raise the error if it is permanent."""
        if self._spark is not None and has_ended(self._spark):
            raise SparkError("Spark stopped", _RETRY) from error
        self._failures += 1
        if isinstance(error, TidemarkError) and policy_of(error).retry is Retry.NEVER:
            raise error
        if not isinstance(error, TidemarkError) and self._failures > MOST_FAILURES:
            raise TaskFailed(_described(error), _RETRY) from error
        self._longest_s = next_pause_s(self._longest_s, FIRST_PAUSE_S, MOST_PAUSE_S)
        return self._longest_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads the retries of several mirrors

    def _rest(self, seconds: float, ended: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not ended():
            time.sleep(_LOOK_S)


def _described(error: Exception) -> str:
    reason = error.message if isinstance(error, TidemarkError) else what_failed(error)
    return f"poll failed: {' '.join(reason.split())}"
