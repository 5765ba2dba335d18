"""The lake as a sink: changes and copies are Delta commits to their tables, watermarks and events rows of registers.

A table that already has a commit receives only the changes above it. The row in `_cycles` is written last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession

from tidemark import logs
from tidemark.clock import Boundary, Lsn
from tidemark.lake.catalog import CatalogUpdates
from tidemark.lake.changes import read_changes
from tidemark.lake.columns import Layout, StoredColumn, arranged, layout_of, wanted_columns
from tidemark.lake.commits import ChangeTable, is_there, remove_files
from tidemark.lake.key_index import MOST_ROWS
from tidemark.lake.lake import Lake
from tidemark.lake.leases import Lease, leases_in_force, needed_from
from tidemark.lake.lock import WRITING, LakeLock
from tidemark.lake.paths import CHANGES, VERSIONS
from tidemark.lake.registers import Cycle, Cycles, Seen, Tables, read_events, read_retained, read_seen
from tidemark.lake.shared import SharedFolder, shared_folder
from tidemark.lake.versions import VersionTable
from tidemark.pipeline.fold.layout import buckets_for, rows_for, version_columns
from tidemark.pipeline.sinks.lake_changes import LakeChangeTarget, LakePollTarget, WrittenFile
from tidemark.pipeline.sinks.lake_copies import CopiedFile, LakeCopyTarget
from tidemark.pipeline.sinks.reach import require_reach
from tidemark.pipeline.sinks.sink import ChangeStamp, TableCopy, Written
from tidemark.postgres.identity import Identity
from tidemark.reads.planning import TablePlanner
from tidemark.reads.reading import TableReader
from tidemark.reads.shown import shown_table
from tidemark.reads.snapshot import LakeView
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableEvent, TableHistory, table_path
from tidemark.schema.relation import Relation
from tidemark.schema.table import Column
from tidemark.storage.fail_points import FailPoint, fail_point
from tidemark.values.hashes import can_hash
from tidemark.values.types import Types

_COMMITTERS = 8


class LakeSink:
    """A lake whose write lock this process holds until `close`."""

    def __init__(self, lake: Lake) -> None:
        self._lake, self._path = lake, lake.path
        with ExitStack() as held:  # a constructor that fails releases the lock
            self._lock = held.enter_context(LakeLock(self._path, WRITING))
            fail_point(FailPoint.LOCKED)
            self._cycles, self._register = Cycles(self._path), Tables(self._path)
            self._catalog = CatalogUpdates(self._path, self._register)
            self._changes: dict[str, ChangeTable] = {}  # each is opened once
            held.pop_all()

    @property
    def version_num(self) -> int:
        """The version of the source's server."""
        return self._lake.version_num

    @property
    def cycle(self) -> Cycle:
        """The watermarks as last recorded."""
        return self._cycles.last

    @property
    def shared(self) -> SharedFolder:
        """The directory of the lake."""
        return shared_folder(self._path)

    def require_own(self, identity: Identity) -> None:
        """Raise an error if the lake is the mirror of another source."""
        self._lake.require_own(identity)

    def require_reach(self, spark: SparkSession, *others: SharedFolder) -> None:
        """Raise an error if an executor does not share the lake, or one of these directories, with the driver."""
        require_reach(spark, self.shared, *others)

    def events(self) -> tuple[TableEvent, ...]:
        """All recorded table events, in order."""
        return read_events(self._path)

    def record_events(self, events: Sequence[TableEvent]) -> None:
        """Record table events in `_tables`."""
        self._register.append(events)

    def forget(self, retained: Lsn) -> frozenset[int]:
        """Delete the events that no read at or above an LSN needs, and what is left of tables that were dropped."""
        gone = self._register.forget(retained)
        for oid in gone:
            self._changes.pop(table_path(oid), None)
        if gone:
            self._catalog.update_next()
        return gone

    def applied_lsn(self, path: str) -> Lsn:
        """The LSN up to which a table has its changes, according to its own last commit."""
        table = self._change_table(path)
        return table.applied if table else Lsn.ZERO

    def change_target(self, relations: Mapping[Relation, tuple[str, Fingerprint]], types: Types) -> LakeChangeTarget:
        """The target of the changes of these relations, each with the path and the definition of its table."""
        layouts: dict[Relation, Layout] = {}
        stored: dict[str, tuple[StoredColumn, ...]] = {}  # with those that the relations before will add
        for relation, (path, fingerprint) in relations.items():
            columns = stored[path] if path in stored else self._stored(path)
            layouts[relation] = layout = layout_of(relation, fingerprint, path, columns, types)
            stored[path] = tuple(dict.fromkeys([*columns, *layout.columns]))
        applied = {relation.oid: self.applied_lsn(path) for relation, (path, _) in relations.items()}
        return LakeChangeTarget(self.shared, layouts, applied)

    def commit(self, written: Mapping[str, Sequence[Written]], upto: Lsn) -> None:
        """Commit change files to their tables, several tables at a time."""
        with ThreadPoolExecutor(_COMMITTERS, "commit", logs.initializer()) as pool:
            list(pool.map(lambda path: self._append(path, written[path], upto), written))

    def record(self, cycle: Cycle) -> None:
        """Record the watermarks in `_cycles`."""
        self._cycles.record(cycle)

    def publish(self, *, at_once: bool = False) -> None:
        """Bring `catalog.json` up to date; unless `at_once`, only after a pause."""
        self._catalog.keep_up(self._cycles.last, at_once=at_once)

    def copy_target(
        self, history: TableHistory, fingerprint: Fingerprint, types: Types, base: Boundary, size_bytes: int
    ) -> LakeCopyTarget:
        """The target of a copy: streamed columns, named as in `versions`; one bucket if the key cannot be hashed."""
        columns = version_columns(shown_table(history, fingerprint, (), types), ())
        stored = tuple(column for column in columns if not column.text)
        kinds = {column.attnum: column.type for column in stored}
        hashed = [kinds[attnum] for attnum in fingerprint.key] or list(kinds.values())
        buckets = buckets_for(size_bytes) if hashed and all(map(can_hash, hashed)) else 1
        path, key, few = history.path, fingerprint.key, rows_for(size_bytes) <= MOST_ROWS
        return LakeCopyTarget(self.shared, fingerprint.oid, path, stored, key, buckets, base.floor, indexed=few)

    def describe_copied(self, written: Written) -> Mapping[str, Any]:
        """A file of a copy as JSON."""
        return cast(CopiedFile, written).plain()

    def described_copied(self, oid: int, path: str, plain: Mapping[str, Any]) -> CopiedFile | None:
        """A file of a copy; None if it was deleted."""
        found = CopiedFile.parse(oid, plain)
        return found if (self._path / path / VERSIONS / found.file.path).exists() else None

    def adopt(self, path: str, copy: TableCopy) -> None:
        """Start a generation of a table's versions with a copy."""
        files = [cast(CopiedFile, each) for each in copy.written]
        columns = cast(LakeCopyTarget, copy.target).columns_of(files)
        table = VersionTable.create(self._path / path / VERSIONS, columns)
        there = table.read()
        if there.base == copy.base.lsn and {each.name for each in there.files} == {each.file.path for each in files}:
            return  # an earlier process was killed after this commit
        table.rewrite([each.file for each in files], columns, copy.base.lsn, copy.base.lsn, anew=True)
        fail_point(FailPoint.GENERATION_COMMITTED)

    def retained_lsn(self) -> Lsn:
        """The LSN below which changes have expired."""
        return read_retained(self._path)

    def hold(self, lsn: Lsn) -> Lease:
        """Keep the changes above an LSN from expiring."""
        return Lease(self._path, lsn)

    def log_needed_from(self, applied_lsn: Lsn) -> Lsn:
        """The LSN above which readers need the log, if everything up to `applied_lsn` is applied."""
        return needed_from(applied_lsn, leases_in_force(self._path))

    def seen(self) -> Seen | None:
        """The state of the source that the last cycle read, if it was a poll."""
        return read_seen(self._path)

    def rows(
        self, spark: SparkSession, history: TableHistory, fingerprint: Fingerprint, types: Types, lsn: Lsn
    ) -> DataFrame:
        """The rows of a table at a recorded LSN, which the caller holds, under this definition."""
        view = partial(LakeView, self._lake, None)
        reader = TableReader(spark, TablePlanner(view, types.known, Boundary(lsn), None, view()))
        return reader.table(history, replace(history.at(lsn), fingerprint=fingerprint), {})

    def polled_target(
        self, path: str, oid: int, columns: Sequence[Column], types: Types, stamp: ChangeStamp
    ) -> LakePollTarget:
        """The target of a table's changes."""
        kept = arranged(self._stored(path), wanted_columns(columns, types))
        return LakePollTarget(self.shared, oid, path, kept, stamp)

    def discard_above(self, histories: Sequence[TableHistory], applied_lsn: Lsn) -> Lsn:
        """Remove changes above the applied LSN, left by an interrupted cycle; return the highest LSN of any table."""
        highest = applied_lsn
        for history in histories:
            applied = self.applied_lsn(history.path)
            highest = max(highest, applied, history.last.lsn)
            if applied > applied_lsn:
                files = read_changes(self._path, history.path, applied_lsn).files
                left = [Path(file.path).name for file in files if file.least > applied_lsn]
                remove_files(self._path / history.path / CHANGES, left)
        return highest

    def close(self) -> None:
        """Release the lake's write lock."""
        self._lock.close()

    def _stored(self, path: str) -> tuple[StoredColumn, ...]:
        """The columns of a table's changes."""
        table = self._change_table(path)
        return table.columns if table else ()

    def _change_table(self, path: str) -> ChangeTable | None:
        """The `changes` of a table, or None if it has none yet."""
        folder = self._path / path / CHANGES
        if path not in self._changes and is_there(folder):
            self._changes[path] = ChangeTable(folder)
        return self._changes.get(path)

    def _append(self, path: str, written: Sequence[Written], upto: Lsn) -> None:
        files = [cast(WrittenFile, each) for each in written]
        columns = list(dict.fromkeys(column for each in files for column in each.columns))
        table = self._change_table(path)
        if table is None:
            table = self._changes[path] = ChangeTable.create(self._path / path / CHANGES, columns)
            fail_point(FailPoint.TABLE_CREATED)
        table.require_columns(columns)
        table.append([each.file for each in files], upto)
