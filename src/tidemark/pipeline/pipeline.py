"""`Pipeline`: mirrors a database into a lake, from Python as from the command line.

    import tidemark
    tidemark.sync("host=db dbname=shop", "/data/lake", table=["public.*"], once=True)

The options are planned first (`plan.py`: replication mode, names, checks). Then a `Pipeline` publishes, copies, follows
the stream (`logical.py`) or polls (`poll/`), changes between them, restarts the mirror on request, and folds. It
reports its progress as typed events (`events.py`), and logs everything else. After a stop or a crash the next pipeline
with the same options resumes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tidemark.clock import Lsn
from tidemark.errors import SparkError, Stopped, TidemarkError
from tidemark.lake.controls import CURRENT, Controls, StopRequest
from tidemark.lake.lake import Lake
from tidemark.lake.pipeline_state import State
from tidemark.lake.sync_records import KEEP_S
from tidemark.pipeline.apply.options import CYCLE_BYTES, CYCLE_S
from tidemark.pipeline.copy.progress import CopyProgress
from tidemark.pipeline.events import CycleApplied, Emit, ModeSelected, SyncEnded, SyncEvent
from tidemark.pipeline.logical import LogicalReplication, require_log, spark_ended
from tidemark.pipeline.plan import AUTO, INTERVAL_S, PipelineOptions, PipelinePlan, mode_of, plan_pipeline
from tidemark.pipeline.poll.from_stream import leave_stream
from tidemark.pipeline.poll.run import run_polls
from tidemark.pipeline.publishing import Publisher, SlotWatch, UnmirroredRecord, publish
from tidemark.pipeline.recording import StateRecord
from tidemark.pipeline.reporting import Reporter
from tidemark.pipeline.restart import restart_if_requested
from tidemark.postgres.capability import Mode
from tidemark.postgres.dsn import Dsn
from tidemark.receive.options import BUDGET_BYTES, WAL_LIMIT_BYTES, WalPolicy
from tidemark.restarts import Restarts
from tidemark.spark import discard_session, has_ended, spark_session
from tidemark.units import format_duration

_LOGGER = logging.getLogger("tidemark.pipeline")
_LOOK_S = 0.1
Stopping = Callable[[], bool]


def sync(
    source: str | Dsn,
    lake: str | Path,
    *,
    name: str | None = None,
    table: Iterable[str] = (),
    exclude: Iterable[str] = (),
    log: str | Path | None = None,
    mode: str = AUTO,
    endpos: str | Lsn | None = None,
    once: bool = False,
    fold: bool = True,
    keep: str | float | None = KEEP_S,
    interval: str | float = INTERVAL_S,
    reconcile_every: int = 1,
    budget: str | int = BUDGET_BYTES,
    wal_limit: str | int = WAL_LIMIT_BYTES,
    wal_policy: str = WalPolicy.WARN.value,
    accept_altered_publication: bool = False,
    cycle: str | int = CYCLE_BYTES,
    cycle_time: str | float = CYCLE_S,
    copy_parallelism: int | None = None,
    archive: str | Path | None = None,
    spark: SparkSession | None = None,
    on_event: Emit = lambda _: None,
    stopping: Stopping = lambda: False,
) -> SyncEnded:
    """Mirror the tables of `source` into `lake`: publish, copy, and follow until the end or until `stopping()`.

    The parameters are the options of `tidemark sync`; sizes and durations are numbers of bytes and seconds, or text
    such as "512MB" and "30s". History older than `keep` is deleted in the background, unless it is "forever" or None.
    Without `once` or `endpos` it runs until `stopping()` is true. `on_event` is called with every event, also from
    other threads. Messages are logged by the loggers below `tidemark`. Without `spark` the active session is used, or
    a new one.

        ended = tidemark.sync("host=db dbname=shop", "/data/lake", once=True)
        print(ended.lsn)
    """
    options = PipelineOptions.of(
        source,
        lake,
        name=name,
        table=table,
        exclude=exclude,
        log=log,
        mode=mode,
        endpos=endpos,
        once=once,
        fold=fold,
        keep=keep,
        interval=interval,
        reconcile_every=reconcile_every,
        budget=budget,
        wal_limit=wal_limit,
        wal_policy=wal_policy,
        accept_altered_publication=accept_altered_publication,
        cycle=cycle,
        cycle_time=cycle_time,
        copy_parallelism=copy_parallelism,
        archive=archive,
    )
    is_ours = spark is None and SparkSession.getActiveSession() is None
    with StateRecord(options.lake) as record:
        sessions = SparkSessions(lambda: spark or spark_session(), is_ours=is_ours)
        return Pipeline(plan_pipeline(options), sessions, record, on_event).run(stopping)


class SparkSessions:
    """The session of one or several pipelines. If it is ours and its JVM has ended, another one is started."""

    def __init__(self, start: Callable[[], SparkSession], *, is_ours: bool) -> None:
        self._start, self.are_ours = start, is_ours
        self._guard = threading.Lock()
        self._session: SparkSession | None = None

    def get(self) -> SparkSession:
        """Return the session that runs, or start one."""
        with self._guard:
            if self._session is not None and self.are_ours and has_ended(self._session):
                discard_session(self._session)
                self._session = None
            self._session = self._session or self._start()
            return self._session

    def have_lost(self, session: SparkSession) -> bool:
        """Return whether the JVM of a session has ended; another pipeline may have replaced it already."""
        with self._guard:
            return session is not self._session or has_ended(session)


class Pipeline:
    """Runs a plan to its end, or until it is stopped. Spark is started once the source is prepared.

    If the JVM ends, another one is started after a pause, and the pipeline continues where it was.
    """

    def __init__(
        self, plan: PipelinePlan, spark: SparkSessions, record: StateRecord, emit: Emit = lambda _: None
    ) -> None:
        self._plan, self._options, self._spark = plan, plan.options, spark
        self._record, self._controls = record, Controls(plan.options.lake)

        def both(event: SyncEvent) -> None:
            record.take(event)
            emit(event)

        self._reporter = Reporter(both)

    def run(self, stopping: Stopping = lambda: False) -> SyncEnded:
        """Run, and return the last event, with the position at which the pipeline ended.

        If it is complete but a selected table cannot be read, the event is emitted and the reason is raised.
        """
        complete = False
        try:
            ended = self._run(lambda: stopping() or self._controls.stops_now)
            complete = ended.complete
            return ended
        finally:
            if complete or self._controls.stops_now:
                self._controls.fulfilled()

    def _run(self, stopping: Stopping) -> SyncEnded:
        self._reporter.emit(ModeSelected(self._plan.choice.mode, self._plan.choice.why))
        self._reporter.enter(State.STARTING)
        if not self._plan.polled:
            publish(self._options, begun=Lake.exists(self._options.lake))
            self._restart_if_requested(stopping)
            require_log(self._options.lake, self._options.log_folder)
        restarts, polled = Restarts(), self._plan.polled
        while True:
            spark = self._spark.get()
            if stopping():
                raise Stopped("stopped before replication started")
            try:
                if polled and (ended := self._poll(spark, stopping)) is not None:
                    return ended
                polled = False
                return self._follow(spark, stopping)
            except (SparkError, Py4JError, ConnectionError) as error:
                if not self._spark.have_lost(spark):
                    raise
                pause_s = restarts.failed(time.monotonic()) if self._spark.are_ours else None
                if pause_s is None or stopping():
                    raise spark_ended() from error
                _LOGGER.warning("Spark stopped; starting it again in %s", format_duration(pause_s))
                self._reporter.enter(State.STARTING)
                _rest(pause_s, stopping)

    def _poll(self, spark: SparkSession, stopping: Stopping) -> SyncEnded | None:
        """Poll until the end; None if the mirror follows the stream from now on."""

        def watch(lsn: Lsn, progress: CopyProgress) -> None:
            self._reporter.enter(State.PAUSED if self._controls.is_paused else State.POLLING)
            self._reporter.polls(lsn, progress)

        if mode_of(self._options.lake) is Mode.LOGICAL:
            if self._options.mode is not Mode.POLL:
                return None  # another process has changed it
            self._wait_while_paused(stopping)
            leave_stream(self._options, stopping)
        polled = run_polls(self._options, spark, stopping, self._reporter.emit, watch, self._controls)
        if polled is None:
            return None
        complete = not stopping()
        return self._ended(SyncEnded(complete, polled.lsn, None), polled.failure if complete else None)

    def _wait_while_paused(self, stopping: Stopping) -> None:
        """Wait until the mirror is resumed; the state is reported meanwhile."""
        while self._controls.is_paused:
            if stopping():
                raise Stopped("stopped while paused; nothing was changed")
            self._reporter.enter(State.PAUSED)
            self._record.use(None)
            self._controls.step()
            time.sleep(_LOOK_S)

    def _follow(self, spark: SparkSession, stopping: Stopping) -> SyncEnded:
        """Follow the stream until the end; a requested restart of the mirror is executed on the way."""
        options = self._options
        until = CURRENT if options.once and options.endpos is None else options.endpos
        failure: TidemarkError | None = None
        while True:
            with LogicalReplication(options, spark, self._reporter.emit, stopping) as replication:
                complete = follow(replication, options, until, stopping, self._reporter, self._record, self._controls)
                lag = replication.lag
                restarts = replication.restart_requested and not stopping()
                if complete and not restarts:
                    failure = _failure(replication.require_copied)
                elif not restarts:
                    self._reporter.enter(State.STOPPING)
            if not restarts:
                return self._ended(SyncEnded(complete, lag.applied_lsn, lag.lag_bytes), failure)
            self._restart_if_requested(stopping)

    def _restart_if_requested(self, stopping: Stopping) -> None:
        restarted = restart_if_requested(self._options, stopping)
        if restarted is not None:
            self._reporter.emit(restarted)

    def _ended(self, ended: SyncEnded, failure: TidemarkError | None) -> SyncEnded:
        self._reporter.emit(ended)
        if failure is not None:
            raise failure
        return ended


def follow(
    replication: LogicalReplication,
    options: PipelineOptions,
    until: Lsn | str | None,
    stopping: Stopping,
    reporter: Reporter,
    record: StateRecord,
    controls: Controls,
) -> bool:
    """Follow the stream until everything up to `until` can be read; True then, False if it stops or restarts before.

    It does not wait for tables that cannot be copied. A request to end at a position replaces `until`.
    """
    publisher, unmirrored = Publisher(options), UnmirroredRecord(options)
    slots, is_paused = SlotWatch(options, record.use), False
    request: StopRequest | None = None
    while not stopping() and not replication.restart_requested:
        controls.step()
        slots.step()
        if controls.is_paused is not is_paused:
            is_paused = controls.is_paused
            replication.pause(paused=is_paused)
            _LOGGER.info("paused: changes are received, and not applied" if is_paused else "resumed")
        if is_paused:
            replication.stay()
            reporter.stream(replication, is_paused=True)
            replication.rest()
            continue
        if controls.stop is not None and controls.stop != request:
            request = controls.stop
            until = request.at
        begin = time.monotonic()
        applied = replication.step()
        seconds = time.monotonic() - begin
        publisher.step()
        unmirrored.step()
        if applied is not None:
            done = (applied.transactions, applied.changes, applied.tables, applied.size_bytes)
            reporter.emit(CycleApplied(applied.upto, *done, seconds))
        reporter.stream(replication)
        if applied is None:
            replication.rest()
        if until is None or replication.copies > len(replication.unable):
            continue
        if until == CURRENT and replication.settled:
            until = replication.position()
        if isinstance(until, Lsn) and replication.reached(until):
            reporter.stream(replication, now=True)
            return True
    replication.applier.record_progress()
    return False


def _rest(seconds: float, stopping: Stopping) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not stopping():
        time.sleep(_LOOK_S)


def _failure(check: Callable[[], None]) -> TidemarkError | None:
    try:
        check()
    except TidemarkError as error:
        return error
    return None
