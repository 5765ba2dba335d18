"""Runs the mirrors of a configuration, each in a thread of its own, until it is stopped.

A mirror that fails is recorded as failed in its lake, and started again after a pause that grows up to five minutes;
the others are not affected. A mirror whose end was requested with `tidemark stop` is not started again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tidemark import logs
from tidemark.daemon.config import Config, MirrorConfig
from tidemark.errors import Stopped, TidemarkError
from tidemark.lake.pipeline_state import State
from tidemark.monitoring.metrics import Metrics
from tidemark.monitoring.service import ServiceManager
from tidemark.pipeline.events import SyncEvent
from tidemark.pipeline.pipeline import Pipeline, SparkSessions
from tidemark.pipeline.plan import plan_pipeline
from tidemark.pipeline.recording import StateRecord
from tidemark.restarts import next_pause_s
from tidemark.units import format_duration

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
_LOOK_S = 0.1
_LOGGER = logging.getLogger("tidemark.daemon")
Show = Callable[[SyncEvent], None]


def run_mirrors(
    config: Config, sessions: SparkSessions, metrics: Metrics, show: Show, stopping: Callable[[], bool]
) -> None:
    """Run all mirrors until `stopping`, or until the end of each was requested."""
    service = ServiceManager([mirror.name for mirror in config.mirrors])
    runs = [_MirrorRun(mirror, sessions, metrics, service, show, stopping) for mirror in config.mirrors]
    threads = [threading.Thread(target=run, name=run.name, daemon=True) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _MirrorRun:
    def __init__(
        self, mirror: MirrorConfig, sessions: SparkSessions, metrics: Metrics, service: ServiceManager, show: Show,
        stopping: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.name, self._options = mirror.name, mirror.options
        self._sessions, self._stopping = sessions, stopping
        self._takers = [show, metrics.of(mirror.options.lake), service.of(mirror.name)]
        self._entered = service.entered
        self._pause_s = FIRST_PAUSE_S

    def __call__(self) -> None:
        with logs.about(self.name):
            while not self._stopping():
                begin = time.monotonic()
                if self._has_ended():
                    return
                if time.monotonic() - begin > LONGEST_PAUSE_S:
                    self._pause_s = FIRST_PAUSE_S
                self._rest()

    def _has_ended(self) -> bool:
        """Run the mirror once; return False if it failed and is to be started again."""
        try:
            with StateRecord(self._options.lake) as record:
                Pipeline(plan_pipeline(self._options), self._sessions, record, self._emit).run(self._stopping)
        except Stopped:
            pass  # before it had begun, as requested
        except Exception as error:
            hint = f" ({error.hint})" if isinstance(error, TidemarkError) and error.hint else ""
            what = error.message if isinstance(error, TidemarkError) else f"unexpected {type(error).__name__}"
            again = format_duration(self._pause_s)
            _LOGGER.error("%s%s; starting it again in %s", what, hint, again, exc_info=logs.is_debug())  # noqa: TRY400
            self._entered(self.name, State.FAILED)
            return False
        self._entered(self.name, State.STOPPED)
        return True

    def _emit(self, event: SyncEvent) -> None:
        for take in self._takers:
            take(event)

    def _rest(self) -> None:
        until = time.monotonic() + self._pause_s
        self._pause_s = next_pause_s(self._pause_s, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while time.monotonic() < until and not self._stopping():
            time.sleep(_LOOK_S)
