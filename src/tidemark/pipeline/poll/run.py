"""The run loop of poll mode, until it is stopped or the source supports logical decoding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from tidemark.clock import Lsn
from tidemark.errors import TidemarkError
from tidemark.pipeline.copy.progress import CopyProgress
from tidemark.pipeline.events import Emit, Message, PollApplied
from tidemark.pipeline.fold.beside import FoldingBeside
from tidemark.pipeline.mirroring import emit_fold
from tidemark.pipeline.poll.handover import Handover
from tidemark.pipeline.poll.options import PollOptions
from tidemark.pipeline.poll.poller import Polled, Poller
from tidemark.pipeline.poll.polling import Polling
from tidemark.pipeline.poll.snapshot_exports import SnapshotExports
from tidemark.pipeline.publishing import Meant, UnmirroredRecord
from tidemark.postgres.capability import Mode
from tidemark.schema.history import tables_unreadable
from tidemark.spark import tasks_beside

_WATCH_S = 0.2


@dataclass(frozen=True, slots=True)
class PollRunOptions:
    """Options of the run loop.

    Once the source supports logical decoding, the stream is received into `log`, unless `mode` is poll.
    """

    interval_s: float
    reconcile_every: int
    once: bool
    folds: bool
    log: Path
    mode: Mode | None
    tasks: int | None = None


@dataclass(frozen=True, slots=True)
class PollsEnded:
    """The position at which polling ended; `failure` is set if selected tables cannot be read."""

    lsn: Lsn
    failure: TidemarkError | None


def run_polls(
    meant: Meant,
    lake: Path,
    options: PollRunOptions,
    spark: SparkSession,
    stopping: Callable[[], bool],
    emit: Emit,
    watch: Callable[[Lsn, CopyProgress], None] = lambda _, __: None,
) -> PollsEnded | None:
    """Poll until stopped, or once; return None if the mirror follows the stream from now on.

    `watch` is called every `_WATCH_S` seconds with the applied LSN and the progress of copies, in its own thread.
    """

    def tell(text: str) -> None:
        emit(Message(text))

    unmirrored = UnmirroredRecord(meant, lake)

    def done(polled: Polled) -> None:
        unmirrored.step()
        emit(PollApplied(polled.upto, polled.tables, polled.changes, polled.copied, polled.reconciled))

    tasks = options.tasks or tasks_beside(spark)
    poll_options = PollOptions(meant.source, lake, meant.names, meant.selection, tasks, options.reconcile_every)
    with ExitStack() as held:
        poller = held.enter_context(Poller(poll_options, spark, tell, stopping))
        if options.folds:
            held.enter_context(FoldingBeside(lake, spark, tell, partial(emit_fold, emit)))
        exports = held.enter_context(SnapshotExports(lake, meant.source))
        held.enter_context(_watched(lambda: watch(poller.cycle.safe, poller.progress), exports.close_unused))
        polling = Polling(poller, spark, options.interval_s, stopping, exports.shown, exports.wanted)
        insists = options.mode is Mode.LOGICAL
        handover = Handover(poller, meant, options.log, tell, insists=insists)
        handover.tidy()
        last = handover.attempt if options.mode is not Mode.POLL else None
        handed_over = polling.run(tell, done, last, once=options.once and not insists)
        return None if handed_over else PollsEnded(poller.cycle.safe, tables_unreadable(poller.tables.unreadable()))


@contextmanager
def _watched(*calls: Callable[[], None]) -> Iterator[None]:
    """Call functions every `_WATCH_S` seconds in a thread while the context lasts, and once more at its end."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(_WATCH_S):
            for call in calls:
                call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        for call in calls:
            call()
