"""The run loop of poll mode, until it is stopped or the source supports logical decoding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from tidemark import logs
from tidemark.clock import Lsn
from tidemark.errors import TidemarkError
from tidemark.lake.controls import Controls, StopRequest
from tidemark.pipeline.background import BackgroundJob
from tidemark.pipeline.copy.progress import CopyProgress
from tidemark.pipeline.events import Emit, HistoryExpired, PollApplied, TableFolded
from tidemark.pipeline.expire.background import expiring
from tidemark.pipeline.fold.background import BackgroundFold
from tidemark.pipeline.plan import PipelineOptions
from tidemark.pipeline.poll.handover import Handover
from tidemark.pipeline.poll.lake_poller import lake_poller
from tidemark.pipeline.poll.options import PollOptions
from tidemark.pipeline.poll.poller import Polled
from tidemark.pipeline.poll.polling import Polling
from tidemark.pipeline.poll.snapshot_exports import SnapshotExports
from tidemark.pipeline.poll.snapshot_session import PollSnapshot
from tidemark.pipeline.publishing import UnmirroredRecord
from tidemark.postgres.capability import Mode
from tidemark.schema.history import tables_unreadable
from tidemark.spark import tasks_beside

_WATCH_S = 0.2


@dataclass(frozen=True, slots=True)
class PollsEnded:
    """The position at which polling ended; `failure` is set if selected tables cannot be read."""

    lsn: Lsn
    failure: TidemarkError | None


def run_polls(
    options: PipelineOptions,
    spark: SparkSession,
    stopping: Callable[[], bool],
    emit: Emit,
    watch: Callable[[Lsn, CopyProgress], None],
    controls: Controls,
) -> PollsEnded | None:
    """Poll until stopped or as `controls` request, or once; return None if the mirror follows the stream from now on.

    Once the source supports logical decoding, the stream is received, unless the mode is poll. `watch` is called every
    `_WATCH_S` seconds with the applied LSN and the progress of copies, in its own thread.
    """
    unmirrored = UnmirroredRecord(options)

    def done(polled: Polled, seconds: float) -> None:
        unmirrored.step()
        emit(PollApplied(polled.upto, polled.tables, polled.changes, polled.copied, polled.reconciled, seconds))

    with ExitStack() as held:
        poller = held.enter_context(lake_poller(_poll_options(options, spark), spark, stopping))
        expiry = expiring(options.lake, options.keep_s, lambda *run: emit(HistoryExpired.of(*run)))
        jobs: list[BackgroundJob] = [held.enter_context(expiry)]
        if options.folds:
            fold = BackgroundFold(options.lake, spark, lambda *fold: emit(TableFolded.of(*fold)))
            jobs.append(held.enter_context(fold))
        exports = held.enter_context(SnapshotExports(options.lake, options.source))
        end = _RequestedEnd(controls)

        def look() -> None:
            controls.step()
            for job in jobs:
                job.pause(paused=controls.is_paused)
            watch(poller.cycle.applied_lsn, poller.progress)

        def poll() -> Polled | None:
            end.begin()
            return poller.step(shown)

        def shown(seen: PollSnapshot, upto: Lsn) -> None:
            end.seen(seen.lsn)
            exports.shown(seen, upto)

        held.enter_context(_watched(look, exports.close_unused))
        polling = Polling(
            poll,
            spark,
            options.interval_s,
            stopping,
            lambda: exports.wanted() or end.is_requested,
            lambda: controls.is_paused,
            lambda: end.is_reached,
        )
        insists = options.mode is Mode.LOGICAL
        handover = Handover(poller, options, insists=insists)
        handover.tidy()
        last = handover.attempt if options.mode is not Mode.POLL else None
        handed_over = polling.run(done, last, once=options.once and not insists)
        return (
            None if handed_over else PollsEnded(poller.cycle.applied_lsn, tables_unreadable(poller.tables.unreadable()))
        )


class _RequestedEnd:
    """The position at which the polls are to end, as requested, and whether they have reached it."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        self._request: StopRequest | None = None
        self._lsn = Lsn.ZERO

    def begin(self) -> None:
        """A poll begins: it reaches what was requested before."""
        self._request = self._controls.stop

    def seen(self, lsn: Lsn) -> None:
        """The poll has read the source at this position."""
        self._lsn = lsn

    @property
    def is_requested(self) -> bool:
        """Whether there is a request that no poll has considered."""
        return self._controls.stop not in (None, self._request)

    @property
    def is_reached(self) -> bool:
        """Whether the last poll has reached the position."""
        at = self._request.at if self._request is not None else None
        return at is not None and (not isinstance(at, Lsn) or at <= self._lsn)


def _poll_options(options: PipelineOptions, spark: SparkSession) -> PollOptions:
    tasks = options.copy_parallelism or tasks_beside(spark)
    return PollOptions(options.source, options.lake, options.names, options.selection, tasks, options.reconcile_every)


@contextmanager
def _watched(*calls: Callable[[], None]) -> Iterator[None]:
    """Call functions every `_WATCH_S` seconds in a thread while the context lasts, and once more at its end."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(_WATCH_S):
            for call in calls:
                call()

    thread = threading.Thread(target=logs.inherited(run), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        for call in calls:
            call()
