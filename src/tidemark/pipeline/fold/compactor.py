"""Fold jobs: merge the changes of a table since its last fold into its versions, in one commit.

Reads return the same before, during and after a fold, because they add the changes above the folded LSN of the versions
they use. A fold that is killed leaves files that belong to no table. A fold that finds another commit since it started
fails with an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import TracebackType
from typing import Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidemark.clock import Boundary, Lsn
from tidemark.errors import LakeInUse, NotAnswerable
from tidemark.lake.catalog import update_catalog
from tidemark.lake.changes import ChangeFile, ChangeFiles, read_changes
from tidemark.lake.columns import UNCHANGED
from tidemark.lake.lake import Lake
from tidemark.lake.leases import Lease
from tidemark.lake.lock import FOLDING, LakeLock
from tidemark.lake.paths import VERSIONS
from tidemark.lake.registers import read_retained
from tidemark.lake.shared import shared_folder
from tidemark.lake.versions import VersionFile, Versions, VersionTable, held, read_versions
from tidemark.pipeline.fold.change_files import CompactedChanges, SmallChanges, compact_changes, small_files
from tidemark.pipeline.fold.events import Events, events_of
from tidemark.pipeline.fold.job import FoldedBucket, FoldWork, fold_buckets
from tidemark.pipeline.fold.layout import VersionLayout, bucket_count, version_columns
from tidemark.pipeline.fold.policy import Burden
from tidemark.reads.changes import file_changes, no_changes
from tidemark.reads.shape import facts_of
from tidemark.reads.shown import ShownTable, is_streamed, retired_columns, shown_table
from tidemark.reads.snapshot import LakeView
from tidemark.reads.versions import version_rows
from tidemark.reads.visible import seen
from tidemark.schema.history import Span, TableHistory, types_of
from tidemark.schema.table import Column
from tidemark.spark import require_pinned
from tidemark.storage.fail_points import FailPoint, fail_point
from tidemark.values.types import Types

SMALL_BYTES, MANY_FILES = 8 << 20, 8


@dataclass(frozen=True, slots=True)
class Foldable:
    """A table with something to fold: its change files, and the versions with which they are merged."""

    history: TableHistory
    span: Span
    upto: Lsn
    changes: ChangeFiles
    files: tuple[ChangeFile, ...]
    versions: Versions | None

    @property
    def name(self) -> str:
        """`schema.table`, for messages."""
        return self.span.fingerprint.qualified

    @property
    def since(self) -> Boundary:
        """The boundary of the changes that the versions contain."""
        return held(self.versions, self.span.base)

    @property
    def changed_rows(self) -> int:
        """The number of changes, at most."""
        return sum(file.rows for file in self.files)

    @property
    def changed_bytes(self) -> int:
        """The size of the change files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def live_bytes(self) -> int:
        """The size of the live files: what a rewrite of all buckets reads."""
        return sum(file.size_bytes for file in self.versions.live) if self.versions else 0

    @property
    def burden(self) -> Burden:
        """What the fold policy needs to decide."""
        buckets = self.versions.buckets if self.versions else 0
        return Burden(self.changed_rows, self.changed_bytes, self.live_bytes, buckets)


@dataclass(frozen=True, slots=True)
class Folded:
    """The result of a fold."""

    name: str
    upto: Lsn
    changes: int
    buckets: int
    size_bytes: int


class Compactor:
    """Folds the tables of one lake on one Spark session, and holds the fold lock of the lake until `close`.

    It uses at most `tasks` tasks at a time, if that is given, and leaves the rest of Spark to others. If it `publishes`
    at the end, readers of the catalog find the results; otherwise the caller updates the catalog once it `has_folded`.
    """

    def __init__(self, lake: Path, spark: SparkSession, tasks: int | None = None, *, publishes: bool = True) -> None:
        require_pinned(spark)
        self._lake, self._spark, self._tasks = Lake.open(lake), spark, tasks
        self._publishes = publishes
        self._lock = LakeLock(lake, FOLDING)
        self.has_folded = False

    def close(self) -> None:
        """Release the lock. If a table was folded, update the catalog first, so that its readers find the result."""
        try:
            if self.has_folded and self._publishes:
                update_catalog(self._lake.path)
        finally:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    def foldable(self) -> list[Foldable]:
        """The tables with something to fold, or without versions, which other engines need to read a table at all.

        Tables that cannot be read up to the present are left as they are.
        """
        view = LakeView(self._lake, None)
        found = []
        for oid, history in self._lake.tables().items():
            upto = min(view.cycle.applied_lsn, view.cycle.schema_lsn_of(oid))
            try:
                span = history.at(upto)
            except NotAnswerable:
                continue
            present = read_versions(self._lake.path, history.path)
            versions = present if present is not None and present.base == span.base.lsn else None
            if versions is None and (span.copied or (present is not None and present.base > span.base.lsn)):
                continue  # a copy has replaced them, and its event is not recorded yet
            changes = view.changes(history.path)
            since = held(versions, span.base)
            files = changes.between(since, Boundary(upto))
            streamed = any(is_streamed(column, self._lake.version_num) for column in span.fingerprint.columns)
            if (files or versions is None) and upto > since.lsn and streamed:
                found.append(Foldable(history, span, upto, changes, files, versions))
        return found

    def compactable(self) -> list[SmallChanges]:
        """The tables with many small files of changes that are folded, or that no fold reads now."""
        applied_lsn, found = self._lake.cycle().applied_lsn, []
        for history in self._lake.tables().values():
            upto = self._folded_upto(history) if history.live else applied_lsn
            changes = read_changes(self._lake.path, history.path, Lsn.ZERO)
            if groups := small_files(changes.upto(upto), {each.name for each in changes.stored if each.text}):
                found.append(SmallChanges(history.name, changes, tuple(groups)))
        return found

    def _folded_upto(self, history: TableHistory) -> Lsn:
        """The LSN up to which the versions of a table that can be read contain all changes."""
        versions, base = read_versions(self._lake.path, history.path), history.spans()[-1].base
        return held(versions, base).floor if versions is not None and versions.base == base.lsn else Lsn.ZERO

    def compact(self, table: SmallChanges) -> CompactedChanges:
        """Merge the small files of a table."""
        return compact_changes(self._spark, shared_folder(self._lake.path), table)

    def fold(self, table: Foldable) -> Folded:
        """Fold one table; LakeInUse if another process folded it meanwhile. A lease protects the files it reads."""
        lease = Lease(self._lake.path, table.upto)
        try:
            return self._fold(table)
        finally:
            lease.close()

    def _fold(self, table: Foldable) -> Folded:
        retained = read_retained(self._lake.path)
        retired = retired_columns(table.history, table.span, retained)
        types = Types(types_of(self._lake.tables().values()), self._lake.version_num)
        stored = (*table.changes.stored, *(table.versions.stored if table.versions else ()))
        shown = shown_table(table.history, table.span.fingerprint, stored, types, retired)
        layout = _layout(table, shown, retired)
        target = VersionTable.create(self._lake.path / table.history.path / VERSIONS, layout.columns)
        there = target.read()
        expected = (table.versions.base, table.versions.folded) if table.versions is not None else None
        if (there.base, there.folded) != expected and (expected or there.base >= table.span.base.lsn):
            raise LakeInUse(f"table {table.name} was folded by another process at the same time", "Retry the command.")
        way = _way(table.versions, layout)
        done = self._written(table, shown, layout, way, retired, retained) if table.files else []
        fail_point(FailPoint.FOLD_WRITTEN)
        adds = [file for bucket in done for file in bucket.files]
        if way.anew:
            target.rewrite(adds, layout.columns, table.upto, table.span.base.lsn)
        else:
            touched = {bucket.bucket for bucket in done}
            gone = [*way.moved, *(file for file in (*way.merged, *way.joined) if file.bucket in touched)]
            target.replace(adds, gone, table.upto, table.span.base.lsn)
        self.has_folded = True
        fail_point(FailPoint.FOLDED)
        size = sum(file.size_bytes for file in adds)
        return Folded(table.name, table.upto, table.changed_rows, len(done), size)

    def _written(
        self,
        table: Foldable,
        shown: ShownTable,
        layout: VersionLayout,
        way: _Way,
        retired: Sequence[Column],
        retained: Lsn,
    ) -> list[FoldedBucket]:
        """The files for every bucket that has changes."""
        events = self._events(table, shown, layout, way, frozenset(column.attnum for column in retired))
        fail_point(FailPoint.FOLD_PLANNED)
        folder = self._lake.path / table.history.path / VERSIONS
        shared = shared_folder(self._lake.path)
        work = FoldWork(shared, folder, layout, events.how, _names(way.merged), _names(way.joined), retained.value)
        return fold_buckets(events.rows, work, self._tasks)

    def _events(
        self, table: Foldable, shown: ShownTable, layout: VersionLayout, way: _Way, retired: frozenset[int]
    ) -> Events:
        spark, versions = self._spark, table.versions
        changes = seen(self._changes(table, shown, retired), table.since, Boundary(table.upto), table.files)
        live = version_rows(spark, shown, versions, versions.live) if versions is not None else None
        moving = version_rows(spark, shown, versions, way.moved) if versions is not None and way.moved else None
        return events_of(changes, shown.shape, layout, facts_of(table.files), live, moving, retired)

    def _changes(self, table: Foldable, shown: ShownTable, retired: frozenset[int]) -> DataFrame:
        """The changes. Without a key, each change lists the retired columns that it does not contain as unchanged."""
        spark, stored = self._spark, table.changes.stored
        if shown.key or not retired:
            return file_changes(spark, shown, table.files, stored) or no_changes(spark, shown)
        alike: dict[str | None, list[ChangeFile]] = {}
        for file in table.files:
            unsent = retired - {column.attnum for column in stored if column.name in file.columns}
            alike.setdefault(f",{','.join(map(str, sorted(unsent)))}," if unsent else None, []).append(file)
        frames = ((file_changes(spark, shown, files, stored), text) for text, files in alike.items())
        listed = [rows.withColumn(UNCHANGED, F.lit(text).cast("string")) for rows, text in frames if rows is not None]
        return reduce(DataFrame.unionByName, listed) if listed else no_changes(spark, shown)


@dataclass(frozen=True, slots=True)
class _Way:
    """How versions are updated: files merged in place, files whose rows move, or everything rewritten (`anew`).

    Small files of closed rows are `joined` when a bucket has many.
    """

    merged: tuple[VersionFile, ...] = ()
    moved: tuple[VersionFile, ...] = ()
    joined: tuple[VersionFile, ...] = ()
    anew: bool = False


def _layout(table: Foldable, shown: ShownTable, retired: Sequence[Column]) -> VersionLayout:
    """The layout after the fold. Rows that are rewritten, closed ones included, go through the tasks as changes do."""
    columns, versions = version_columns(shown, retired), table.versions
    moving = versions is not None and versions.stored != columns
    moved = sum(file.size_bytes for file in versions.files) if versions is not None and moving else 0
    buckets = bucket_count(table.live_bytes, table.changed_bytes + moved, versions.buckets if versions else 0)
    rows = table.changed_rows + (sum(file.rows for file in versions.live) if versions is not None else 0)
    return VersionLayout(columns, shown.shape.cells, shown.shape.key_cells, buckets, rows)


def _way(versions: Versions | None, layout: VersionLayout) -> _Way:
    if versions is None or versions.stored != layout.columns:
        return _Way(moved=versions.files if versions is not None else (), anew=True)
    if versions.buckets not in (0, layout.buckets):
        return _Way(moved=versions.live)
    small = [f for f in versions.files if not f.live and f.buckets == layout.buckets and f.size_bytes < SMALL_BYTES]
    often = Counter(file.bucket for file in small)
    return _Way(merged=versions.live, joined=tuple(file for file in small if often[file.bucket] >= MANY_FILES))


def _names(files: Sequence[VersionFile]) -> dict[int, tuple[str, ...]]:
    buckets = {file.bucket for file in files}
    return {bucket: tuple(file.name for file in files if file.bucket == bucket) for bucket in buckets}
