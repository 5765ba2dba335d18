"""Mode logical, in one process and one child: it receives, applies, folds, and copies tables that need a copy.

The caller calls `step` in a loop. One thread, that of the caller, records all cycles and table events in the lake.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemark.clock import Lsn
from tidemark.errors import (
    UNREADABLE,
    LogDamaged,
    NotAnswerable,
    Retry,
    SourceError,
    SparkError,
    TableChanged,
    TaskFailed,
    TidemarkError,
    policy_of,
)
from tidemark.lake.paths import require_plain
from tidemark.lake.registers import read_cycle
from tidemark.lake.requests import Requests, read_restart
from tidemark.log.disk import Disk
from tidemark.log.mirror import read_mirror
from tidemark.logs import fields
from tidemark.pipeline.apply.cycle import Applied
from tidemark.pipeline.apply.lake_applier import lake_applier
from tidemark.pipeline.background import BackgroundJob
from tidemark.pipeline.copy.continuing import LeftCopy, left_copies
from tidemark.pipeline.copy.copying import Copying, Failed
from tidemark.pipeline.copy.planning import CopyOptions
from tidemark.pipeline.copy.progress import CopyProgress
from tidemark.pipeline.copy.states import CopyStates
from tidemark.pipeline.events import CopyFailed, Emit, HistoryExpired, TableCopied, TableFolded
from tidemark.pipeline.expire.background import expiring
from tidemark.pipeline.expire.expiry import Expired
from tidemark.pipeline.fold.background import BackgroundFold
from tidemark.pipeline.fold.compactor import Folded
from tidemark.pipeline.plan import PipelineOptions
from tidemark.pipeline.sinks.sink import STAGING
from tidemark.postgres.session import Session
from tidemark.receive.supervision import Receiving, has_begun
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import tables_unreadable
from tidemark.schema.reasons import copy_failed
from tidemark.spark import has_ended, tasks_beside, what_failed
from tidemark.storage import open_storage

REQUESTS_S = 1.0
MOST_FAILURES = 3  # of a cycle, in sequence
_RETRY = "Retry the command. The lake is unchanged since the last applied LSN, and sync continues from there."
_REST_S = 0.05
_LOGGER = logging.getLogger("tidemark.pipeline")


@dataclass(frozen=True, slots=True)
class Lag:
    """Positions, and how far the lake is behind the source as of its last catalog snapshot."""

    source_lsn: Lsn
    received_lsn: Lsn
    applied_lsn: Lsn
    lag_s: float | None

    @property
    def lag_bytes(self) -> int:
        """The size of the WAL that cannot be read yet."""
        return max(0, self.source_lsn - self.applied_lsn)


class LogicalReplication:
    """Follows the stream until `close`. A first start that fails drops the slot that it created at the source."""

    def __init__(
        self,
        options: PipelineOptions,
        spark: SparkSession,
        emit: Emit = lambda _: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._options, self._spark, self._emit = options, spark, emit
        self._tracker, self._requests = CopyStates(), Requests(options.lake)
        self._failures = 0
        self._unable: dict[int, TidemarkError] = {}
        self._asked_at = 0.0
        self.restart_requested = False
        self.progress = CopyProgress()
        log = options.log_folder
        require_log(options.lake, log)
        require_plain(options.lake)
        open_storage(options.lake).create_root()
        with ExitStack() as held:
            self._receiving = held.enter_context(Receiving(options.receive, stopping))
            self.applier = held.enter_context(lake_applier(options.apply, spark))
            self.applier.uncopied = frozenset()
            shutil.rmtree(self.applier.sink.shared.path / STAGING, ignore_errors=True)  # of a process that was killed
            self._left = left_copies(options.lake)
            held.callback(self._leave_copies)
            self._jobs: list[BackgroundJob] = []
            if options.folds:
                self._jobs.append(held.enter_context(BackgroundFold(options.lake, spark, self._folded)))
            self._jobs.append(held.enter_context(expiring(options.lake, options.keep_s, self._expired)))
            copying = Copying(copy_options(options, spark), self.applier.sink, spark, self.progress)
            self._copying = held.enter_context(copying)
            self._receiving.keep()
            self._held = held.pop_all()

    def step(self) -> Applied | None:
        """Apply what was received, and start and finish copies; return what was applied."""
        self._receiving.check()
        self._require_spark()
        applied = self._applied()
        self._read_requests()
        self._take_copies()
        self._start_copies()
        return applied

    def pause(self, *, paused: bool) -> None:
        """Pause the jobs in the background, or continue them."""
        for job in self._jobs:
            job.pause(paused=paused)

    def stay(self) -> None:
        """Only receive: nothing is written to the lake, except by copies that have begun."""
        self._receiving.check()
        self._require_spark()

    def rest(self) -> None:
        """Wait for a moment, after a step with nothing to do; less if a copy ends."""
        self._copying.wait(_REST_S)

    @property
    def copies(self) -> int:
        """The number of tables that are being copied or need a copy."""
        return len(self._tracker.busy() | self.applier.tables.to_copy().keys())

    @property
    def unable(self) -> dict[int, TidemarkError]:
        """Those of them that cannot be copied at present, and why. Their copies are retried nevertheless."""
        wanted = self._tracker.busy() | self.applier.tables.to_copy().keys()
        return {oid: error for oid, error in self._unable.items() if oid in wanted}

    def require_copied(self) -> None:
        """Raise an error if a table cannot be read that should be."""
        if self._altered_beyond_the_end:
            raise NotAnswerable(
                f"tables were altered after {self.applier.cycle.complete}, perhaps after --endpos: they can be read up "
                f"to {self.applier.cycle.complete}",
                "Use a later `--endpos`, or none.",
            )
        failure = tables_unreadable(
            (self.applier.tables.history(oid), self._why_unreadable(oid, why))
            for oid, why in self.applier.tables.unreadable().items()
        )
        if failure is not None:
            raise failure

    def _why_unreadable(self, oid: int, why: str) -> TidemarkError:
        """The error of its last copy if the source refused it; otherwise the recorded reason for the table."""
        error = self._unable.get(oid)
        if isinstance(error, (SourceError, NotAnswerable)):
            return error
        fix = self.applier.tables.history(oid).fix or "Retry the command."
        return (NotAnswerable if error is None else SourceError)(why, fix)

    @property
    def settled(self) -> bool:
        """Whether it is known for every table if it needs a copy: none waits for the end of older transactions."""
        return self.applier.tables.is_settled

    def position(self) -> Lsn:
        """The position of the source."""
        with Session.open(self._options.source, "sync") as session:
            return Lsn.parse(session.row("select pg_current_wal_insert_lsn()::text")[0])

    def reached(self, lsn: Lsn) -> bool:
        """Whether everything up to a position can be read, or never will be."""
        cycle = self.applier.cycle
        return cycle.applied_lsn >= lsn and (cycle.complete >= lsn or self._altered_beyond_the_end)

    @property
    def _altered_beyond_the_end(self) -> bool:
        """Whether a table was altered at an unknown position, and the log that would show it ends before."""
        limit = self.applier.tables.pending_lsn
        return self._receiving.ended and limit is not None and limit > self.applier.reader.received

    @property
    def lag(self) -> Lag:
        """The positions of the source, the log and the lake, as last read."""
        cycle, received, source = self.applier.cycle, self.applier.reader.received, self.applier.source_position
        applied = cycle.readable
        source_lsn = max(received, source[0]) if source is not None else received
        lag_s = None
        if applied >= source_lsn:
            lag_s = 0.0
        elif source is not None and cycle.source_time is not None:
            lag_s = max(0.0, (source[1] - cycle.source_time).total_seconds())
        return Lag(source_lsn, received, applied, lag_s)

    def kill_receiving(self) -> None:
        """Kill the receiver, as a power failure would; the next step starts another one."""
        self._receiving.kill()

    def close(self) -> None:
        """Stop after the running cycle: running copies are abandoned, and the lake stays as last recorded."""
        self._receiving.stop()
        for left in self._left:
            left.record.remove()
        self._left = []
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    def _leave_copies(self) -> None:
        """Leave the records of copies that were not continued to another process."""
        for left in self._left:
            left.record.close()

    def _applied(self) -> Applied | None:
        """Apply a cycle. If a task of it fails, the next step repeats the cycle."""
        try:
            applied = self.applier.step()
        except (PySparkException, Py4JJavaError) as error:
            self._failures += 1
            failure = f"applying changes failed: {what_failed(error)}"
            if self._failures > MOST_FAILURES:
                raise TaskFailed(failure, _RETRY) from error
            _LOGGER.warning("%s; retrying", failure, extra=fields(failures=self._failures))
            return None
        except (Py4JError, ConnectionError) as error:
            raise spark_ended() from error
        self._failures = 0
        return applied

    def _read_requests(self) -> None:
        now = time.monotonic()
        if now >= self._asked_at:
            self._asked_at = now + REQUESTS_S
            self.restart_requested = read_restart(self._options.lake) is not None
            for oid in self._requests.new():
                self._tracker.hasten(oid)
                if not self.applier.tables.request_copy(oid):
                    self._requests.fulfilled(oid)
                    reason = "it was dropped or has no replica identity"
                    _LOGGER.warning("table with OID %s: not copied, %s", oid, reason, extra=fields(oid=oid))

    def _start_copies(self) -> None:
        tables = self.applier.tables
        wanted = tables.to_copy()
        picked = set(self._tracker.pick(wanted, time.monotonic()))
        if picked or (tables.is_settled and not wanted):
            for left in self._left:
                picked -= self._continued(left, {oid: wanted[oid] for oid in picked})
            self._left = []
        for oid in picked:
            tables.start_copy(oid, self.applier.cycle.applied_lsn)
        if picked:
            self._copying.start({oid: wanted[oid] for oid in picked}, {oid: tables.history(oid) for oid in picked})

    def _continued(self, left: LeftCopy, wanted: Mapping[int, Fingerprint]) -> set[int]:
        """Continue a copy that a killed process has left; return its tables."""
        tables = self.applier.tables
        histories = {oid: tables.history(oid) for oid in wanted}
        log = read_mirror(self._options.log_folder, Disk())
        start = log.start if log is not None else None
        mine = {oid: table for oid, table in wanted.items() if left.continues(table, histories[oid], start)}
        for oid in mine:
            tables.start_copy(oid, self.applier.cycle.applied_lsn)
        if mine:
            self._copying.start(mine, histories, left)
        else:
            left.record.remove()
        return set(mine)

    def _take_copies(self) -> None:
        for result in self._copying.results():
            if isinstance(result, Failed) and self._began_meanwhile(result.fingerprint.oid):
                continue
            if isinstance(result, Failed):
                self._note(result)
                self._over(result.fingerprint, result.error)
            else:
                self._tracker.copied(result)
        for copy, taken in self.applier.take(self._tracker.waiting()):
            oid = copy.fingerprint.oid
            self._copying.settled(oid)
            if taken:
                self._tracker.taken(oid)
                self._unable.pop(oid, None)
                self._requests.fulfilled(oid)
                self._emit(TableCopied(copy.name, copy.base.lsn, copy.rows, self.progress.seconds(oid)))
            elif not self._began_meanwhile(oid):
                self._over(copy.fingerprint, TableChanged("the table was altered during the copy"))

    def _began_meanwhile(self, oid: int) -> bool:
        """Whether a table needs no copy, because it was truncated and can be read from there on.

        If so, its copy and the requests for one are dropped.
        """
        tables = self.applier.tables
        if tables.needs_copy(oid) or not tables.history(oid).live:
            return False
        self._tracker.dropped(oid)
        self._unable.pop(oid, None)
        self._requests.fulfilled(oid)
        return True

    def _note(self, failed: Failed) -> None:
        if policy_of(failed.error).retry is Retry.NEVER:
            self._unable[failed.fingerprint.oid] = failed.error
        else:
            self._unable.pop(failed.fingerprint.oid, None)
        self.applier.uncopied = frozenset(self._unable)

    def _over(self, table: Fingerprint, error: TidemarkError) -> None:
        unreadable = isinstance(error, UNREADABLE)
        reason = copy_failed(table, error, unreadable=unreadable)
        self.applier.tables.stop_copy(table.oid)
        self.applier.tables.wait([table.oid], reason)
        self._requests.failed(table.oid, reason)
        pause_s = self._tracker.failed(table.oid, time.monotonic(), unreadable=unreadable)
        self._emit(CopyFailed(table.qualified, error.message, pause_s))

    def _require_spark(self) -> None:
        """Raise an error if Spark has ended: nothing can be done without it, and an idle pipeline would not notice."""
        if has_ended(self._spark):
            raise spark_ended()

    def _expired(self, expired: Expired, seconds: float) -> None:
        self._emit(HistoryExpired.of(expired, seconds))

    def _folded(self, folded: Folded, seconds: float) -> None:
        self._emit(TableFolded.of(folded, seconds))


def copy_options(options: PipelineOptions, spark: SparkSession) -> CopyOptions:
    """The options of the copies, which by default use all free tasks."""
    tasks = options.copy_parallelism or tasks_beside(spark)
    return CopyOptions(options.source, options.log_folder, options.names, tasks, options.endpos)


def require_log(lake: Path, log: Path) -> None:
    """Refuse a lake that has data and whose log is lost, before another log is created."""
    applied_lsn = read_cycle(lake).applied_lsn
    if applied_lsn > Lsn.ZERO and not has_begun(log):
        raise LogDamaged(
            f"the lake has an applied LSN of {applied_lsn}, but {log} is not a Tidemark log: later changes are missing",
            f"If the log was moved, use `--log`. If it is lost, run `tidemark resync {lake} --all` and retry.",
        )


def spark_ended() -> SparkError:
    """Return the error of a pipeline whose JVM has ended."""
    return SparkError("Spark stopped", _RETRY)
