"""Copies tables from a snapshot of the source into the tables of the same names at the target, several parts at a time.

Each part is a COPY from server to server, in one transaction of the target that also records it; a thread of this
process copies it, or a Spark task. Parts that fail with a temporary error are retried in the same snapshot; a table
that fails does not affect the others, and stays recorded as unfinished. If a COMMIT got no answer, the record of the
part decides whether it was committed.

A table of one part is truncated in the transaction that fills it. A table of several parts is truncated before its
first part, in a transaction of its own. Rows that no earlier copy has written are never removed: the table is refused.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from pyspark.sql import SparkSession

from tidemark.errors import TargetError, TaskFailed, TidemarkError, TimedOut, in_short
from tidemark.pipeline.copy.copying import ATTEMPTS, PAUSE_S, may_pass
from tidemark.pipeline.copy.parts import Part, parts_of, together
from tidemark.pipeline.copy.progress import CopyProgress
from tidemark.pipeline.copy.reading import pages_of
from tidemark.postgres.blockers import naming_lockers
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.shared import SharedSnapshot
from tidemark.postgres.sqlstate import Endpoint, translated
from tidemark.schema.fingerprint import Fingerprint
from tidemark.spark import TasksStopped, in_a_task, what_failed
from tidemark.target.columns import CarriedTable, carried_columns, read_server, require_encodings
from tidemark.target.obstacles import read_obstacles, require_direct
from tidemark.target.pipe import (
    PipedPart,
    SourceSide,
    at_source,
    at_target,
    empty_table,
    has_rows,
    pipe_part,
    target_transaction,
)

_READING = Timeouts(statement_s=0, idle_in_transaction_s=0)
_WRITING = Timeouts(statement_s=0)
_LOOK_S = 0.2


class CopyRecorder(Protocol):
    """Records the progress of a copy in tables of the target, in the transactions that it describes.

    It is pickled and sent to the executors. Its methods, except `rows`, run in a transaction with READ COMMITTED.
    """

    def is_begun(self, session: Session, table: Fingerprint) -> bool:
        """Whether a copy of the table has begun, now or earlier: if so, its rows may be removed."""

    def begin(self, session: Session, table: Fingerprint, parts: int) -> None:
        """Record that a copy of the table begins, and remove the records of its parts; the table is empty."""

    def add(self, session: Session, table: Fingerprint, part: Part, rows: int) -> None:
        """Record that a part is copied.

        An error if the part is recorded already, also by a transaction that is still running, or if another process
        has begun a copy of the table since: the transaction is rolled back then, and no row is stored twice.
        """

    def rows(self, session: Session, table: Fingerprint, part: Part) -> int | None:
        """The number of rows of a part that this process has recorded since it began the table, else None."""


@dataclass(frozen=True, slots=True)
class FilledTable:
    """A table of which all rows are at the target; `size_bytes` is its size at the source."""

    fingerprint: Fingerprint
    rows: int
    binary: bool
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TableFailed:
    """A table that is not complete at the target, and the error."""

    fingerprint: Fingerprint
    error: TidemarkError


@dataclass(frozen=True, slots=True)
class _CopiedPart:
    part: Part
    rows: int


@dataclass(frozen=True, slots=True)
class _FailedPart:
    part: Part
    error: TidemarkError


@dataclass(frozen=True, slots=True)
class _CopyWork:
    """The input of a task. Its `repr` omits the connection string."""

    conninfo: str = field(repr=False)
    recorder: CopyRecorder
    tables: Mapping[int, CarriedTable]
    whole: frozenset[int]  # the tables that have one part

    def of(self, parts: Sequence[Part]) -> _CopyWork:
        oids = {part.oid for part in parts}
        tables = {oid: self.tables[oid] for oid in oids}
        return _CopyWork(self.conninfo, self.recorder, tables, self.whole & oids)


def _at_target(work: _CopyWork) -> Session:
    return Session.open(Dsn(work.conninfo), "copy", _WRITING, server=Endpoint.TARGET)


@dataclass(slots=True)
class _Plan:
    """The tables of a copy: how they are carried, and their parts that are missing; or why they cannot be copied."""

    tables: dict[int, CarriedTable] = field(default_factory=dict)
    missing: dict[int, list[Part]] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    refused: list[TableFailed] = field(default_factory=list)

    def whole(self) -> frozenset[int]:
        return frozenset(oid for oid, parts in self.missing.items() if len(parts) == 1)


def has_own_rows(table: Fingerprint) -> bool:
    """Whether a table stores rows: partitioned tables and foreign tables do not, and are not copied."""
    return table.filenode != 0


def copy_tables(
    spark: SparkSession | None,
    snapshot: SharedSnapshot,
    target: Dsn,
    tables: Iterable[Fingerprint],
    jobs: int,
    recorder: CopyRecorder,
    progress: CopyProgress | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> Iterator[FilledTable | TableFailed]:
    """Copy tables, up to `jobs` parts at a time; yield the result of each table when it is complete or has failed.

    Tables that store no rows are skipped. Without a Spark session, or if only one session can use the snapshot, the
    parts are copied by this process. Raises TasksStopped when `stopping` returns true; running parts end first.
    """
    with Session.open(target, "copy", _WRITING, server=Endpoint.TARGET) as session:
        plan = _planned(snapshot, session, [table for table in tables if has_own_rows(table)], jobs)
    yield from plan.refused
    work = _CopyWork(target.reveal(), recorder, plan.tables, plan.whole())
    yield from _Copying(spark, snapshot, work, plan, jobs, progress or CopyProgress(), stopping).results()


def _planned(snapshot: SharedSnapshot, target: Session, tables: Sequence[Fingerprint], jobs: int) -> _Plan:
    require_direct(target)
    with target.transaction():
        found = {(table.schema, table.name): table for table in read_catalog(target).tables}
        writer = read_server(target)
        obstacles = read_obstacles(target, [table.oid for table in found.values()])
    plan = _Plan()
    with snapshot.session("copy") as source:
        reader = read_server(source)
        require_encodings(reader, writer)
        for table in tables:
            there = found.get((table.schema, table.name))
            try:
                carried = carried_columns(table, there, reader, writer)
                if carried.target_oid in obstacles:
                    raise obstacles[carried.target_oid][0].error()
                parts = _parts(source, carried, jobs)
            except TidemarkError as error:
                plan.refused.append(TableFailed(table, error))
                continue
            plan.tables[table.oid], plan.missing[table.oid] = carried, parts
            plan.sizes[table.oid] = sum(part.size_bytes for part in parts)
    return plan


def _parts(source: Session, table: CarriedTable, jobs: int) -> list[Part]:
    """The parts of a table. A crash of the target empties an unlogged table, so that one is copied as a whole."""
    oid = table.fingerprint.oid
    try:
        with at_source(table):
            pages, page_bytes = pages_of(source, oid)
    except TimedOut as error:
        raise naming_lockers(source, oid, error) from error
    if table.target_unlogged:
        return [Part(oid, 0, None, pages * page_bytes)]
    return list(parts_of(oid, pages, page_bytes, jobs))


class _Copying:
    """A running copy. Results of parts are taken by one thread, which yields those of the tables."""

    def __init__(
        self,
        spark: SparkSession | None,
        snapshot: SharedSnapshot,
        work: _CopyWork,
        plan: _Plan,
        jobs: int,
        progress: CopyProgress,
        stopping: Callable[[], bool],
    ) -> None:
        self._spark, self._snapshot, self._work, self._plan = spark, snapshot, work, plan
        self._jobs, self._progress, self._stopping = jobs, progress, stopping
        self._begun = {oid: threading.Lock() for oid in plan.tables if oid not in work.whole}
        self._left = set(self._begun)  # the tables that are not truncated yet
        self._failed: set[int] = set()
        self._unlogged: list[int] = []  # complete, unless the target crashes before the others are
        self._ended = threading.Event()

    def results(self) -> Iterator[FilledTable | TableFailed]:
        for oid, parts in self._plan.missing.items():
            self._progress.planned(oid, self._plan.tables[oid].label, self._plan.sizes[oid], len(parts))
        groups = together(part for parts in self._plan.missing.values() for part in parts)
        pool = ThreadPoolExecutor(self._jobs, "copy")
        try:
            running = {pool.submit(self._attempts, group) for group in groups}
            while running:
                done, running = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
                yield from self._taken(done)
                if running and self._stopping():
                    raise TasksStopped
            yield from self._kept()
        finally:
            self._ended.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def _taken(self, done: Iterable[Future[list[_CopiedPart | _FailedPart]]]) -> Iterator[FilledTable | TableFailed]:
        for result in (each for future in done for each in future.result()):
            oid = result.part.oid
            if isinstance(result, _CopiedPart):
                self._progress.copied(oid, result.part.size_bytes, result.rows)
                self._plan.missing[oid].remove(result.part)
                self._plan.rows[oid] = self._plan.rows.get(oid, 0) + result.rows
                if not self._plan.missing[oid] and oid not in self._failed:
                    yield from self._complete(oid)
            elif oid not in self._failed:
                yield self._fail(oid, result.error)

    def _complete(self, oid: int) -> Iterator[FilledTable | TableFailed]:
        if self._plan.tables[oid].target_unlogged and self._plan.rows[oid]:
            self._unlogged.append(oid)
        else:
            yield self._done(oid)

    def _done(self, oid: int) -> FilledTable:
        table = self._plan.tables[oid]
        self._progress.done(oid)
        return FilledTable(table.fingerprint, self._plan.rows[oid], table.binary, self._plan.sizes[oid])

    def _kept(self) -> Iterator[FilledTable | TableFailed]:
        """The results of unlogged tables, when all others are complete."""
        for oid in self._unlogged:
            try:
                self._require_kept(self._plan.tables[oid])
            except TidemarkError as error:
                yield self._fail(oid, error)
            else:
                yield self._done(oid)

    def _require_kept(self, table: CarriedTable) -> None:
        with at_target(table), _at_target(self._work) as session:
            if not has_rows(session, table):
                raise TargetError(
                    f"unlogged table {table.label} was emptied by a crash of the target", "Retry the command."
                )

    def _fail(self, oid: int, error: TidemarkError) -> TableFailed:
        self._failed.add(oid)
        self._progress.failed(oid)
        return TableFailed(self._plan.tables[oid].fingerprint, error)

    def _attempts(self, group: Sequence[Part]) -> list[_CopiedPart | _FailedPart]:
        """Copy parts, and retry those that fail with a temporary error while the snapshot exists."""
        done: list[_CopiedPart | _FailedPart] = []
        parts = list(group)
        for attempt in range(ATTEMPTS):
            parts = [part for part in parts if part.oid not in self._failed]
            if not parts or self._ended.is_set():
                break
            results = [self._settled(each) for each in self._tried(parts)]
            last = attempt + 1 == ATTEMPTS
            again = [] if last else [each for each in results if isinstance(each, _FailedPart) and may_pass(each.error)]
            done += [each for each in results if each not in again]
            parts = [each.part for each in again]
            if parts:
                self._ended.wait(PAUSE_S * 2**attempt)
        return done

    def _tried(self, parts: Sequence[Part]) -> list[_CopiedPart | _FailedPart]:
        failed: list[_CopiedPart | _FailedPart] = []
        ready: list[Part] = []
        for part in parts:
            try:
                self._truncate_once(part.oid)
                ready.append(part)
            except TidemarkError as error:
                failed.append(_FailedPart(part, error))
        return failed + (self._copied(ready) if ready else [])

    def _truncate_once(self, oid: int) -> None:
        """Begin the copy of a table of several parts."""
        if oid in self._work.whole:
            return
        with self._begun[oid]:
            if oid in self._left:
                table, recorder = self._plan.tables[oid], self._work.recorder
                parts = len(self._plan.missing[oid])
                with at_target(table):
                    session = _at_target(self._work)
                with session, target_transaction(session, table):
                    _emptied(session, table, recorder, parts)
                self._left.remove(oid)

    def _copied(self, parts: Sequence[Part]) -> list[_CopiedPart | _FailedPart]:
        work, snapshot = self._work.of(parts), self._snapshot
        if self._spark is None or snapshot.name is None:
            return list(_run(snapshot, work, parts))
        source = _Imported(snapshot.dsn.reveal(), snapshot.name)
        try:
            found = in_a_task(self._spark, partial(_run_task, source, work, tuple(parts)))
        except Exception as error:  # noqa: BLE001 - a dead worker, or Spark itself: reported for each part
            failed = TaskFailed(f"a Spark task failed: {what_failed(error)}", "Retry the command.")
            return [_FailedPart(part, failed) for part in parts]
        return [pickle.loads(each) for each in found]  # noqa: S301 - ours

    def _settled(self, result: _CopiedPart | _FailedPart) -> _CopiedPart | _FailedPart:
        """A part that is recorded was committed, although its task has failed: the answer to COMMIT was lost."""
        oid = result.part.oid
        if isinstance(result, _CopiedPart) or oid in self._left:
            return result
        table, rows = self._plan.tables[oid].fingerprint, None
        dsn = Dsn(self._work.conninfo)
        with (
            suppress(TidemarkError),
            translated("reading progress"),
            Session.open(dsn, "copy", server=Endpoint.TARGET) as session,
        ):
            rows = self._work.recorder.rows(session, table, result.part)
        return result if rows is None else _CopiedPart(result.part, rows)


@dataclass(frozen=True, slots=True)
class _Imported:
    """The snapshot for a task. Its `repr` omits the connection string."""

    conninfo: str = field(repr=False)
    snapshot_id: str

    def shared(self) -> SharedSnapshot:
        return SharedSnapshot(Dsn(self.conninfo), None, self.snapshot_id)


def _run_task(source: _Imported, work: _CopyWork, parts: Sequence[Part]) -> Iterator[bytes]:
    return map(pickle.dumps, _run(source.shared(), work, parts))


def _run(snapshot: SharedSnapshot, work: _CopyWork, parts: Sequence[Part]) -> Iterator[_CopiedPart | _FailedPart]:
    """Copy parts one after the other. A session that an error has closed is replaced for the next part."""
    left = list(parts)
    while left:
        try:
            with _sessions(snapshot, work, work.tables[left[0].oid]) as (source, target):
                while left and not (source.session.connection.closed or target.connection.closed):
                    part = left.pop(0)
                    yield _result(source, target, work, part)
        except TidemarkError as error:
            if left:
                yield _FailedPart(left.pop(0), error)


@contextmanager
def _sessions(snapshot: SharedSnapshot, work: _CopyWork, table: CarriedTable) -> Iterator[tuple[SourceSide, Session]]:
    with ExitStack() as opened:
        with at_source(table):
            source = opened.enter_context(snapshot.session("copy", _READING))
        with at_target(table):
            target = opened.enter_context(_at_target(work))
        yield SourceSide(source, snapshot.dsn), target


def _result(source: SourceSide, target: Session, work: _CopyWork, part: Part) -> _CopiedPart | _FailedPart:
    try:
        return _CopiedPart(part, _piped(source, target, work, part).rows)
    except TidemarkError as error:
        return _FailedPart(part, error)
    except Exception as error:  # noqa: BLE001 - any other error fails this part, and no others
        target.close()
        return _FailedPart(part, in_short(error))


def _piped(source: SourceSide, target: Session, work: _CopyWork, part: Part) -> PipedPart:
    table, recorder = work.tables[part.oid], work.recorder
    empty = partial(_emptied, table=table, recorder=recorder, parts=1) if part.oid in work.whole else None

    def record(session: Session, piped: PipedPart) -> None:
        recorder.add(session, table.fingerprint, part, piped.rows)

    return pipe_part(source, target, table, part, record, empty)


def _emptied(session: Session, table: CarriedTable, recorder: CopyRecorder, parts: int) -> None:
    """Truncate a table and record that its copy begins, in a transaction of the target."""
    fingerprint = table.fingerprint
    with at_target(table, session), translated("reading progress"):
        is_begun = recorder.is_begun(session, fingerprint)
    empty_table(session, table, copied_before=is_begun)
    with at_target(table, session), translated("recording progress"):
        recorder.begin(session, fingerprint, parts)
