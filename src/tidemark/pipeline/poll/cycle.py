"""One cycle: everything that a snapshot shows and the mirror does not have yet, as uncommitted files.

New tables, and tables that cannot be followed, are copied. For the other tables, the rows that may have changed are
read once, in parallel, and compared with the mirror's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from pyspark.sql import DataFrame, SparkSession

from tidemark.clock import Boundary, Lsn
from tidemark.errors import UNREADABLE, Unreadable
from tidemark.pipeline.copy.job import CopiedPart, FailedPart, copy_parts
from tidemark.pipeline.copy.parts import Part, parts_of, together
from tidemark.pipeline.copy.planning import SnapshotCopy, plan_copy
from tidemark.pipeline.copy.progress import CopyProgress
from tidemark.pipeline.copy.reading import pages_of
from tidemark.pipeline.copy.snapshots import CopySnapshot
from tidemark.pipeline.copy.sources import PartSources
from tidemark.pipeline.poll.following import Followed, Following, Write
from tidemark.pipeline.poll.horizon import Horizon
from tidemark.pipeline.poll.mirrored import MOST_KEPT, Kept, Room
from tidemark.pipeline.poll.options import PollOptions
from tidemark.pipeline.poll.reconcile import SourceTable
from tidemark.pipeline.poll.snapshot_session import PollSnapshot
from tidemark.pipeline.poll.staging import Staged, StagedRead, StageWork, stage
from tidemark.pipeline.poll.table import PolledTable
from tidemark.pipeline.poll.writing import ChangeWork, WrittenChanges, write_changes, write_truncate
from tidemark.pipeline.sinks.sink import STAGING, ChangeStamp, PolledSink, TableCopy
from tidemark.reads.digests import RowDigest
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableHistory, types_of
from tidemark.schema.poll_tracker import PollPlan, PollPosition
from tidemark.spark import in_parallel
from tidemark.values.types import Types


@dataclass(frozen=True, slots=True)
class Setting:
    """The objects that all cycles of a mirror share."""

    options: PollOptions
    spark: SparkSession
    sink: PolledSink
    progress: CopyProgress
    stopping: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Task:
    """The input of one cycle.

    `horizon` are the transactions whose changes may be missing above the applied LSN. `had` contains the hashes or the
    digest of the mirror's rows, for tables where they are known. If `reconcile`, deleted rows are detected.
    """

    seen: PollSnapshot
    here: PollPosition
    plan: PollPlan
    applied_lsn: Lsn
    horizon: Horizon | None
    had: Mapping[int, Kept | RowDigest]
    reconcile: bool


@dataclass(slots=True)
class PollResult:
    """The result of a cycle: copies of tables, changes of followed tables, and unreadable tables.

    A table with a value that cannot be decoded is unreadable, and left out of the cycle. `has` contains the hashes or
    the digest of the mirror's rows after the cycle.
    """

    copies: list[TableCopy] = field(default_factory=list)
    unreadable: dict[int, Unreadable] = field(default_factory=dict)
    written: dict[int, WrittenChanges] = field(default_factory=dict)
    has: dict[int, Kept | RowDigest] = field(default_factory=dict)


def run_cycle(setting: Setting, task: Task) -> PollResult:
    """Run a cycle up to its commit: everything is written, and belongs to no table yet."""
    hold = setting.sink.hold(task.applied_lsn)
    try:
        return _Cycle(setting, task).run()
    finally:
        hold.close()


class _Cycle:
    def __init__(self, setting: Setting, task: Task) -> None:
        self._setting, self._task = setting, task
        self._source = task.seen.shared
        self._utf8 = task.seen.session.stores_utf8
        histories = [history for history, _ in (*task.plan.followed.values(), *task.plan.copied.values())]
        self._types = Types(types_of(histories), setting.sink.version_num)
        kept = sum(len(each) for each in task.had.values() if isinstance(each, Kept))
        self._room = Room(MOST_KEPT - kept)

    def run(self) -> PollResult:
        found = PollResult()
        found.copies += self._copied(found.unreadable)
        tables = {oid: self._table(*followed) for oid, followed in self._task.plan.followed.items()}
        wanted = {
            oid: StagedRead(
                table.fingerprint, table.columns, self._task.horizon.condition(), table.text().hash_at_source()
            )
            for oid, table in tables.items()
            if table.fingerprint.key and self._task.horizon is not None
        }
        staged = self._staged(wanted, tables)
        found.unreadable |= {oid: each for oid, each in staged.items() if isinstance(each, UNREADABLE)}
        tables = {oid: table for oid, table in tables.items() if oid not in found.unreadable}
        follow = partial(self._followed, tables, staged, wanted)
        followed = in_parallel(follow, tables, self._setting.options.tasks, self._setting.stopping)
        for oid, done in zip(tables, followed, strict=True):
            if isinstance(done, UNREADABLE):
                found.unreadable[oid] = done
                continue
            if done.written.written:
                found.written[oid] = done.written
            if done.has is not None:
                found.has[oid] = done.has
        return found

    def _copied(self, unreadable: dict[int, Unreadable]) -> list[TableCopy]:
        task, options = self._task, self._setting.options
        if not task.plan.copied:
            return []
        snapshot = CopySnapshot(Boundary(task.here.lsn), self._source)
        wanted = {oid: history for oid, (history, _) in task.plan.copied.items()}
        planned = plan_copy(self._setting.sink, snapshot, options.names, options.tasks, wanted)
        for oid, error in planned.refused.items():
            if not isinstance(error, UNREADABLE):
                raise error
            unreadable[oid] = error
        for oid, table in planned.work.tables.items():
            name = table.fingerprint.qualified
            self._setting.progress.planned(oid, name, planned.size_bytes(oid), len(planned.missing[oid]))
        done: list[TableCopy] = []
        sources = replace(planned.sources, stopping=self._setting.stopping)
        copy = partial(copy_parts, self._setting.spark, sources, planned.work)
        for result in in_parallel(copy, together(planned.parts()), options.tasks, self._setting.stopping):
            done += [copied for each in result if (copied := self._add(planned, each, unreadable)) is not None]
        return [replace(each, fingerprint=replace(each.fingerprint, memberships=())) for each in done]

    def _add(
        self, planned: SnapshotCopy, result: CopiedPart | FailedPart, unreadable: dict[int, Unreadable]
    ) -> TableCopy | None:
        if isinstance(result, FailedPart):
            if not isinstance(result.error, UNREADABLE):
                raise result.error
            planned.given_up.add(result.part.oid)
            unreadable[result.part.oid] = result.error
            self._setting.progress.failed(result.part.oid)
            return None
        self._setting.progress.copied(result.part.oid, result.part.size_bytes, result.rows)
        copied = planned.add(result)
        if copied is not None:
            self._setting.progress.done(result.part.oid)
        return copied

    def _table(self, history: TableHistory, fingerprint: Fingerprint) -> PolledTable:
        oid = fingerprint.oid
        pages, page_bytes = pages_of(self._task.seen.session, oid)
        parts = parts_of(oid, pages, page_bytes, self._setting.options.tasks)
        early = partial(self._early, history, fingerprint)
        return PolledTable(self._setting.spark, history, fingerprint, parts, self._types, self._utf8, early)

    def _early(self, history: TableHistory, fingerprint: Fingerprint) -> DataFrame:
        """The mirror's rows of a table at the applied LSN, under the definition that the snapshot shows."""
        setting = self._setting
        return setting.sink.rows(setting.spark, history, fingerprint, self._types, self._task.applied_lsn)

    def _staged(
        self, wanted: Mapping[int, StagedRead], tables: Mapping[int, PolledTable]
    ) -> dict[int, Staged | Unreadable]:
        setting = self._setting
        shared = setting.sink.shared
        folder = shared.path / STAGING
        sources = PartSources(self._source, folder, setting.stopping)
        work = StageWork(shared, self._types, folder, wanted)
        parts: list[Part] = [part for oid in wanted for part in tables[oid].parts]
        return stage(setting.spark, sources, work, parts, setting.options.tasks, setting.stopping)

    def _followed(
        self,
        tables: Mapping[int, PolledTable],
        staged: Mapping[int, Staged | Unreadable],
        wanted: Mapping[int, StagedRead],
        oid: int,
    ) -> Followed | Unreadable:
        table, task = tables[oid], self._task
        tasks = self._setting.options.tasks
        source = SourceTable(table.fingerprint, table.parts, table.text(), self._source, tasks)
        more, write = partial(self._more, table), self._writer(table)
        following = Following(table, source, task.had.get(oid), self._room, more, write)
        try:
            if oid not in wanted:
                return following.by_row()
            read = _readable(staged[oid])
            return following.by_key(read, wanted[oid], reconcile=task.reconcile or oid in task.plan.rewritten)
        except UNREADABLE as error:
            return error

    def _more(self, table: PolledTable, wanted: StagedRead) -> Staged:
        oid = table.fingerprint.oid
        return _readable(self._staged({oid: wanted}, {oid: table})[oid])

    def _writer(self, table: PolledTable) -> Write:
        task, numbers = self._task, count()
        stamp = ChangeStamp(task.here.lsn, task.seen.time)
        target = self._setting.sink.polled_target(
            table.history.path, table.fingerprint.oid, table.columns, self._types, stamp
        )

        def write(rows: DataFrame | None) -> WrittenChanges:
            work = ChangeWork(target, next(numbers), table.integer_key)
            return write_truncate(work) if rows is None else write_changes(rows, work)

        return write


def _readable(staged: Staged | Unreadable) -> Staged:
    if isinstance(staged, UNREADABLE):
        raise staged
    return staged
