"""Copies that run next to the rest of the pipeline: one thread per snapshot, all parts in one thread pool.

A table is complete when all its parts are; the other tables of its snapshot continue. Completed parts are kept while
the snapshot exists; those of a large table are recorded, and another process can continue the copy (`continuing`). A
part that fails with a temporary error, such as a lost connection or a lock timeout, is retried.
If the table has changed or the snapshot is lost, the copy of the table fails, and the result has the error.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession

from tidemark import logs
from tidemark.clock import Boundary
from tidemark.errors import LakeError, Retry, TableChanged, TaskFailed, TidemarkError, in_short, policy_of
from tidemark.pipeline.copy.continuing import ContinuedCopy, LeftCopy, record_copy
from tidemark.pipeline.copy.job import CopiedPart, FailedPart, copy_parts
from tidemark.pipeline.copy.parts import Part, together
from tidemark.pipeline.copy.planning import CopyOptions, SnapshotCopy, plan_copy
from tidemark.pipeline.copy.progress import CopyProgress
from tidemark.pipeline.copy.snapshots import copy_snapshot
from tidemark.pipeline.sinks.sink import Hold, Sink, TableCopy
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableHistory
from tidemark.spark import what_failed

ATTEMPTS, PAUSE_S = 5, 0.5
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Failed:
    """A table whose copy failed, and the error."""

    fingerprint: Fingerprint
    error: TidemarkError


class Copying:
    """Copies tables until `close`. `results` returns the copies that ended since it was last called."""

    def __init__(self, options: CopyOptions, sink: Sink, spark: SparkSession, progress: CopyProgress) -> None:
        self._options, self._sink, self._spark, self._progress = options, sink, spark, progress
        self._pool = ThreadPoolExecutor(options.tasks, "copy", logs.initializer())
        self._results: queue.SimpleQueue[TableCopy | Failed] = queue.SimpleQueue()
        self._news, self._stopping = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._holds: dict[int, Hold] = {}
        self._records: dict[int, ContinuedCopy] = {}

    def start(
        self,
        tables: Mapping[int, Fingerprint],
        histories: Mapping[int, TableHistory],
        interrupted: LeftCopy | None = None,
    ) -> None:
        """Start to copy these tables, all in one snapshot, or continue an `interrupted` copy of them."""
        self._threads = [each for each in self._threads if each.is_alive()]
        arguments = [dict(tables), histories, interrupted]
        run = logs.inherited(self._run)
        self._threads.append(threading.Thread(target=run, args=arguments, name="copy", daemon=True))
        self._threads[-1].start()

    def wait(self, seconds: float) -> None:
        """Wait until there are results, but no longer than this."""
        self._news.wait(seconds)

    def results(self) -> Iterable[TableCopy | Failed]:
        """The copies that ended: failures, and complete copies, which holds protect from expire until `settled`."""
        self._news.clear()
        while not self._results.empty():
            yield self._results.get()

    def settled(self, oid: int) -> None:
        """Release the hold of a copy that was adopted or rejected."""
        self._holds.pop(oid).close()
        if oid in self._records:
            self._records.pop(oid).settle(oid)

    def close(self) -> None:
        """Stop all copies. What was written for copies that were not settled belongs to no table."""
        self._stopping.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for thread in self._threads:
            thread.join()
        for oid in list(self._holds):
            self.settled(oid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    def _run(
        self, left: dict[int, Fingerprint], histories: Mapping[int, TableHistory], interrupted: LeftCopy | None
    ) -> None:
        """Copy the tables in `left`. A table is removed from it when its result is reported."""
        try:
            if interrupted is not None:
                self._continue(left, histories, interrupted)
            if left and not self._stopping.is_set():
                self._begin(left, histories)
        except TidemarkError as error:
            self._fail_all(left, error)
        except Exception as error:  # noqa: BLE001 - a copy that ended without a result would be waited for
            self._fail_all(left, in_short(error))

    def _begin(self, left: dict[int, Fingerprint], histories: Mapping[int, TableHistory]) -> None:
        """Copy tables in a new snapshot."""
        options = self._options
        with ExitStack() as held:
            with closing(self._sink.hold(self._sink.cycle.applied_lsn)):
                snapshot = held.enter_context(copy_snapshot(options.source, options.log, options.endpos))
                held.enter_context(self._held(snapshot.base))
            wanted = {oid: histories[oid] for oid in left}
            planned = plan_copy(self._sink, snapshot, options.names, options.tasks, wanted)
            record = record_copy(options, self._sink, planned, histories, held)
            self._copy(planned, left, record)

    def _continue(
        self, left: dict[int, Fingerprint], histories: Mapping[int, TableHistory], interrupted: LeftCopy
    ) -> None:
        """Continue a copy in its snapshot. If that is lost, report the tables that are complete, and leave the others.

        All are left if changes after the snapshot have expired, or if it is above the LSN at which receiving ends.
        """
        options, sink, base = self._options, self._sink, interrupted.copy.base
        with ContinuedCopy(interrupted.record, sink, left) as record, closing(sink.hold(base.floor)):
            if sink.retained_lsn() > base.floor or (options.endpos is not None and base.lsn > options.endpos):
                return
            snapshot = interrupted.snapshot(options.source)
            if snapshot is None:
                for oid in list(left):
                    if (copy := interrupted.complete(oid, sink, histories[oid])) is not None:
                        name = copy.fingerprint.qualified
                        self._progress.planned(oid, name, 0, 0)
                        self._complete(copy, left, record)
                return
            wanted = {oid: histories[oid] for oid in left}
            tables = interrupted.copy.tables
            planned = plan_copy(sink, snapshot, options.names, options.tasks, wanted, tables)
            done = [part for oid in left for part in interrupted.copied(oid, sink, histories[oid])]
            self._copy(planned, left, record, done)

    @contextmanager
    def _held(self, base: Boundary) -> Iterator[None]:
        """Keep the changes above the floor of a boundary from expiring; an error if some have expired.

        A commit that the boundary excludes may be below the applied LSN when its snapshot was taken.
        """
        with closing(self._sink.hold(base.floor)):
            if self._sink.retained_lsn() > base.floor:
                raise LakeError(f"changes committed after {base.floor} have expired", "Retry the copy.")
            yield

    def _copy(
        self,
        planned: SnapshotCopy,
        left: dict[int, Fingerprint],
        record: ContinuedCopy | None,
        copied: Sequence[CopiedPart] = (),
    ) -> None:
        """Copy the parts that are not `copied` yet."""
        for oid, error in planned.refused.items():
            self._fail(left, oid, error)
        for oid, table in planned.work.tables.items():
            name = table.fingerprint.qualified
            self._progress.planned(oid, name, planned.size_bytes(oid), len(planned.missing[oid]))
        for each in copied:
            if each.part.oid in planned.missing:
                self._take(each, planned, left, record)
        groups = together(planned.parts())
        running = {self._pool.submit(self._attempts, planned, group) for group in groups}
        while running and not self._stopping.is_set():
            done, running = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
            for future in done:
                for part in future.result():
                    if record is not None and isinstance(part, CopiedPart):
                        record.add(part)
                    self._take(part, planned, left, record)

    def _take(
        self,
        done: CopiedPart | FailedPart,
        planned: SnapshotCopy,
        left: dict[int, Fingerprint],
        record: ContinuedCopy | None,
    ) -> None:
        oid = done.part.oid
        if isinstance(done, FailedPart):
            planned.given_up.add(oid)
            self._fail(left, oid, done.error)
            return
        self._progress.copied(oid, done.part.size_bytes, done.rows)
        copy = planned.add(done)
        if copy is not None:
            self._complete(copy, left, record)

    def _complete(self, copy: TableCopy, left: dict[int, Fingerprint], record: ContinuedCopy | None) -> None:
        """Report the copy of a table."""
        oid = copy.fingerprint.oid
        if record is not None:
            record.report(oid)
            self._records[oid] = record
        self._holds[oid] = self._sink.hold(copy.base.floor)
        self._progress.done(oid)
        left.pop(oid)
        self._put(copy)

    def _attempts(self, planned: SnapshotCopy, group: tuple[Part, ...]) -> list[CopiedPart | FailedPart]:
        """Copy parts. Those that fail with a temporary error are retried while the snapshot exists."""
        done: list[CopiedPart | FailedPart] = []
        parts = list(group)
        for attempt in range(ATTEMPTS):
            parts = [part for part in parts if part.oid not in planned.given_up]
            if not parts or self._stopping.is_set():
                break
            found = self._tried(planned, parts)
            last = attempt + 1 == ATTEMPTS
            again = [each.part for each in found if isinstance(each, FailedPart) and may_pass(each.error) and not last]
            done += [each for each in found if each.part not in again]
            parts = again
            if parts:
                self._stopping.wait(PAUSE_S * 2**attempt)
        return done

    def _tried(self, planned: SnapshotCopy, parts: list[Part]) -> list[CopiedPart | FailedPart]:
        try:
            return copy_parts(self._spark, planned.sources, planned.work, parts)
        except Exception as error:  # noqa: BLE001 - a dead worker, or Spark itself: reported for each part
            failed = TaskFailed(f"a Spark task failed: {what_failed(error)}", "Retry the command.")
            return [FailedPart(part, failed) for part in parts]

    def _fail_all(self, left: dict[int, Fingerprint], error: TidemarkError) -> None:
        for oid in list(left):
            self._fail(left, oid, error)

    def _fail(self, left: dict[int, Fingerprint], oid: int, error: TidemarkError) -> None:
        fingerprint = left.pop(oid, None)
        if fingerprint is not None:
            self._progress.failed(oid)
            self._put(Failed(fingerprint, error))

    def _put(self, result: TableCopy | Failed) -> None:
        self._results.put(result)
        self._news.set()


def may_pass(error: TidemarkError) -> bool:
    """Whether a part that failed with this error can be copied later, in the same snapshot."""
    return policy_of(error).retry is not Retry.NEVER and not isinstance(error, TableChanged)
