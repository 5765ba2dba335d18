"""Copies that run beside everything else: one round for each snapshot, all parts of all rounds on one set of threads.

A table is done when all its parts are; the others of its round go on. Parts that are done stay done while the round's
snapshot lives. A part that fails because a connection was lost or a lock not had is tried again; when the table has
changed, or the snapshot is gone, the table's copy is over, and whoever asked for it is told why.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession

from tidemark.clock import Boundary
from tidemark.errors import LakeError, Retry, TableChanged, TaskFailed, TidemarkError, in_short, policy_of
from tidemark.lake.generation import Generation
from tidemark.lake.history import TableHistory
from tidemark.lake.leases import Lease
from tidemark.lake.registers import read_cycle, read_retained
from tidemark.pipeline.copy.job import CopiedPart, FailedPart, copy_parts
from tidemark.pipeline.copy.parts import Part, together
from tidemark.pipeline.copy.progress import Progress
from tidemark.pipeline.copy.rounds import CopyOptions, Round, plan_round
from tidemark.pipeline.copy.snapshots import copy_snapshot
from tidemark.schema.fingerprint import Fingerprint
from tidemark.spark import what_failed

ATTEMPTS, PAUSE_S = 5, 0.5
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Failed:
    """A table whose copy is over, and why."""

    fingerprint: Fingerprint
    error: TidemarkError


class Copying:
    """Copies tables, from here to `close`. `results` gives what has come of them since it was last asked."""

    def __init__(self, options: CopyOptions, spark: SparkSession, progress: Progress) -> None:
        self._options, self._spark, self._progress = options, spark, progress
        self._pool = ThreadPoolExecutor(options.tasks, "copy")
        self._results: queue.SimpleQueue[Generation | Failed] = queue.SimpleQueue()
        self._news, self._stopping = threading.Event(), threading.Event()
        self._rounds: list[threading.Thread] = []
        self._leases: dict[int, Lease] = {}

    def start(self, tables: Mapping[int, Fingerprint], histories: Mapping[int, TableHistory]) -> None:
        """Copy these tables, all by one snapshot."""
        self._rounds = [each for each in self._rounds if each.is_alive()]
        self._rounds.append(
            threading.Thread(target=self._round, args=[dict(tables), histories], name="copy", daemon=True)
        )
        self._rounds[-1].start()

    def wait(self, seconds: float) -> None:
        """Return when there are results, or after so long."""
        self._news.wait(seconds)

    def results(self) -> Iterable[Generation | Failed]:
        """What has come of copies: a generation, which is kept from vacuum until it is `settled`, or a failure."""
        self._news.clear()
        while not self._results.empty():
            yield self._results.get()

    def settled(self, oid: int) -> None:
        """Say that a generation was taken, or is not wanted."""
        self._leases.pop(oid).close()

    def close(self) -> None:
        """End all copies; what was not settled is nobody's."""
        self._stopping.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for thread in self._rounds:
            thread.join()
        for oid in list(self._leases):
            self.settled(oid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    def _round(self, left: dict[int, Fingerprint], histories: Mapping[int, TableHistory]) -> None:
        """Copy the tables that are `left`: each leaves it when its result is told."""
        options = self._options
        lease: Lease | None = None
        try:
            lease = Lease(options.lake, read_cycle(options.lake).safe)
            with copy_snapshot(options.source, options.log, options.endpos) as snapshot:
                lease = _exchanged(lease, options, snapshot.base)
                planned = plan_round(options, snapshot, histories)
                for oid, error in planned.refused.items():
                    self._fail(left, oid, error)
                for oid, table in planned.work.tables.items():
                    name = f"{table.fingerprint.schema}.{table.fingerprint.name}"
                    self._progress.planned(oid, name, planned.size_bytes(oid), len(planned.missing[oid]))
                self._copy(planned, left)
        except TidemarkError as error:
            self._fail_all(left, error)
        except Exception as error:  # noqa: BLE001 - a round that died without a word would be waited for
            self._fail_all(left, in_short(error))
        finally:
            if lease is not None:
                lease.close()

    def _copy(self, planned: Round, left: dict[int, Fingerprint]) -> None:
        groups = together(planned.parts())
        running = {self._pool.submit(self._attempts, planned, group) for group in groups}
        while running and not self._stopping.is_set():
            done, running = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
            for future in done:
                for told in future.result():
                    self._take(told, planned, left)

    def _take(self, told: CopiedPart | FailedPart, planned: Round, left: dict[int, Fingerprint]) -> None:
        oid = told.part.oid
        if isinstance(told, FailedPart):
            planned.given_up.add(oid)
            self._fail(left, oid, told.error)
            return
        self._progress.copied(oid, told.part.size_bytes, told.rows)
        generation = planned.add(told)
        if generation is not None:
            self._leases[oid] = Lease(self._options.lake, planned.base.floor)
            self._progress.done(oid)
            left.pop(oid)
            self._tell(generation)

    def _attempts(self, planned: Round, group: tuple[Part, ...]) -> list[CopiedPart | FailedPart]:
        """Copy parts; those that fail in a way that may pass are tried again, while the snapshot lives."""
        told: list[CopiedPart | FailedPart] = []
        parts = list(group)
        for attempt in range(ATTEMPTS):
            parts = [part for part in parts if part.oid not in planned.given_up]
            if not parts or self._stopping.is_set():
                break
            found = self._tried(planned, parts)
            last = attempt + 1 == ATTEMPTS
            again = [each.part for each in found if isinstance(each, FailedPart) and _may_pass(each.error) and not last]
            told += [each for each in found if each.part not in again]
            parts = again
            if parts:
                self._stopping.wait(PAUSE_S * 2**attempt)
        return told

    def _tried(self, planned: Round, parts: list[Part]) -> list[CopiedPart | FailedPart]:
        try:
            return copy_parts(self._spark, planned.lender, planned.work, parts)
        except Exception as error:  # noqa: BLE001 - a worker that died, or Spark itself: it is told for each part
            failed = TaskFailed(f"a Spark task failed: {what_failed(error)}", "Retry the command.")
            return [FailedPart(part, failed) for part in parts]

    def _fail_all(self, left: dict[int, Fingerprint], error: TidemarkError) -> None:
        for oid in list(left):
            self._fail(left, oid, error)

    def _fail(self, left: dict[int, Fingerprint], oid: int, error: TidemarkError) -> None:
        fingerprint = left.pop(oid, None)
        if fingerprint is not None:
            self._progress.failed(oid)
            self._tell(Failed(fingerprint, error))

    def _tell(self, result: Generation | Failed) -> None:
        self._results.put(result)
        self._news.set()


def _exchanged(lease: Lease, options: CopyOptions, base: Boundary) -> Lease:
    """A lease from what a boundary does not see on, in the place of one that was there before it; refused if too late.

    A commit that it does not see may be older than what was safe when it was taken.
    """
    taken = Lease(options.lake, base.floor)
    lease.close()
    if read_retained(options.lake) > base.floor:
        taken.close()
        raise LakeError(f"changes committed after {base.floor} have expired", "Retry the copy.")
    return taken


def _may_pass(error: TidemarkError) -> bool:
    return policy_of(error).retry is not Retry.NEVER and not isinstance(error, TableChanged)
