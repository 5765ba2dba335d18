"""The first part of a clone: definitions, rows and indexes, as far as they are not at the target yet.

Each step is recorded when it is done. If the process ends before that, the next one repeats the step.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from uuid import uuid4

from pyspark.sql import SparkSession

from tidemark.clock import Boundary, Lsn
from tidemark.errors import Stopped, TableChanged, UnsupportedServer
from tidemark.lake.pipeline_state import State
from tidemark.pipeline.copy.progress import CopyProgress
from tidemark.pipeline.copy.snapshots import CopySnapshot, copy_snapshot, locked_snapshot
from tidemark.pipeline.events import TableCopied
from tidemark.pipeline.poll.snapshot_session import open_poll_snapshot
from tidemark.pipeline.reporting import PROGRESS_S, Reporter
from tidemark.postgres.capability import Mode
from tidemark.postgres.identity import Identity
from tidemark.postgres.session import Session
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.selection import Selection
from tidemark.schema.table import Persistence
from tidemark.spark import TasksStopped
from tidemark.storage.fail_points import CloneFailPoint, fail_point
from tidemark.target.copying import FilledTable, TableFailed, copy_tables, has_own_rows
from tidemark.target.folder import CloneFolder
from tidemark.target.large_objects import copy_large_objects, require_unused_oids
from tidemark.target.obstacles import obstacles_of
from tidemark.target.options import CloneOptions
from tidemark.target.publishing import TablePublishing
from tidemark.target.schema import CloneSchema, indexed_at_once
from tidemark.target.source_tables import read_selected, require_unaltered
from tidemark.target.stages import CloneStage
from tidemark.target.state import ClonePhase, CloneRecord, CloneState, PartRecorder, PollWatermark
from tidemark.target.writer import compile_kernels

_STOPPED = "stopped during the copy; run the command again to continue"
_LOGGER = logging.getLogger("tidemark.target")


class Filling:
    """Fills a target. `spark` is called at most once, if there are rows to copy.

    `stops` returns whether to stop, or raises the error of a receiver that has ended; it is called often.
    """

    def __init__(
        self,
        options: CloneOptions,
        schema: CloneSchema,
        spark: Callable[[], SparkSession | None],
        reporter: Reporter,
        stops: Callable[[], bool],
    ) -> None:
        self._options, self._schema, self._reporter = options, schema, reporter
        self._spark = cache(spark)  # for every round of copies
        self._stops = stops
        self.progress = CopyProgress()

    def fill(
        self,
        record: CloneRecord,
        source: Identity,
        mode: Mode,
        keep: Callable[[], None] = lambda: None,
        publishing: TablePublishing | None = None,
    ) -> None:
        """Create the definitions, copy the rows and create the indexes, as far as that is not done.

        `keep` is called from the first record at the target on: the copies rely on the slot and the log then. With
        `publishing`, tables are recorded as of a snapshot in which they were published.
        """
        state = record.read(source) if record.exists else None
        if state is not None:
            keep()
        compile_ahead = compile_kernels if mode is Mode.LOGICAL else lambda: None
        compiling = threading.Thread(target=compile_ahead, name="compile")
        compiling.start()
        changed: Sequence[Fingerprint] = ()
        with indexed_at_once(self._schema, self._stops) as index:
            while state is None or state.phase in (ClonePhase.DEFINITIONS, ClonePhase.COPY):
                is_defined = state is not None and state.phase is ClonePhase.COPY
                if publishing is not None and not is_defined:
                    publishing.wait(self._require_running)
                with self._snapshot(mode, changed) as (snapshot, watermark):
                    with snapshot.shared.session("clone") as session:
                        definitions = self._read(session, mode)
                    if is_defined or publishing is None or publishing.includes(definitions):
                        if not is_defined:
                            self._define(record, source, mode, snapshot, definitions)
                            keep()
                        changed = self._copy(record, source, snapshot, definitions, watermark, index)
                        if not changed:
                            record.set_phase(ClonePhase.INDEXES)
                        state = record.existing(source)
                        continue
                publishing.publish()
        if state.phase is ClonePhase.INDEXES:
            self._schema.create(CloneStage.KEYS, stopping=self._stops)
            fail_point(CloneFailPoint.KEYS_CREATED)
            self._schema.create(CloneStage.INDEXES, stopping=self._stops)
            fail_point(CloneFailPoint.INDEXES_CREATED)
            compiling.join()
            record.set_phase(ClonePhase.FOLLOW)

    def _read(self, session: Session, mode: Mode) -> dict[int, Fingerprint]:
        return read_selected(session, self._options.selection, publications=self._options.publications(mode))

    def _define(
        self,
        record: CloneRecord,
        source: Identity,
        mode: Mode,
        snapshot: CopySnapshot,
        definitions: Mapping[int, Fingerprint],
    ) -> None:
        """Create the definitions at the target; nothing is created if it lacks something that they need."""
        chosen = definitions if self._options.selection != Selection() else None
        begun = record.exists and record.read(source) is not None
        self._schema.dump(snapshot.shared.name, chosen, begun=begun)
        if not begun:
            with snapshot.shared.session("clone") as session, self._options.open_target() as target:
                require_unused_oids(session, target)
        record.create()
        if record.read(source) is None:
            CloneFolder(self._options).own(record.begin(source, mode, self._options.selection))
        fail_point(CloneFailPoint.RECORDED)
        self._schema.create(CloneStage.DEFINITIONS)
        fail_point(CloneFailPoint.DEFINED)
        for each in definitions.values():
            record.add_table(each)
        record.set_phase(ClonePhase.COPY)

    def _copy(
        self,
        record: CloneRecord,
        source: Identity,
        snapshot: CopySnapshot,
        definitions: Mapping[int, Fingerprint],
        watermark: PollWatermark | None,
        then: Callable[[FilledTable], None],
    ) -> list[Fingerprint]:
        """Copy the tables that are not copied yet in this snapshot; return those that were truncated meanwhile."""
        state = record.existing(source)
        require_unaltered(state.tables, definitions)
        wanted = [definitions[oid] for oid, table in state.tables.items() if table.base is None]
        for each in wanted:
            record.add_table(each)
            if not has_own_rows(each):
                record.set_copied(each.oid, snapshot.base, 0, watermark)
        failed = self._copy_rows(record, snapshot, wanted, watermark, then)
        if not failed:
            with snapshot.shared.session("clone") as session, self._options.open_target() as target:
                copy_large_objects(session, target, record.name)
        return failed

    def _copy_rows(
        self,
        record: CloneRecord,
        snapshot: CopySnapshot,
        wanted: Sequence[Fingerprint],
        watermark: PollWatermark | None = None,
        then: Callable[[FilledTable], None] = lambda _: None,
    ) -> list[Fingerprint]:
        """Copy tables in this snapshot, and do `then` with each; return those that were truncated meanwhile."""
        options = self._options
        recorder = PartRecorder(options.names.mirror, uuid4().hex)
        spark = self._spark() if any(has_own_rows(each) for each in wanted) else None
        failed: list[TableFailed] = []
        results = copy_tables(
            spark, snapshot.shared, options.target, wanted, options.jobs, recorder, self.progress, self._stops
        )
        for result in self._reported(results):
            if isinstance(result, TableFailed):
                failed.append(result)
                continue
            table = result.fingerprint
            record.set_copied(table.oid, snapshot.base, result.rows, watermark)
            fail_point(CloneFailPoint.TABLE_COPIED)
            name = table.qualified
            self._reporter.emit(TableCopied(name, snapshot.base.lsn, result.rows, self.progress.seconds(table.oid)))
            then(result)
        for failure in failed:
            if not isinstance(failure.error, TableChanged):
                raise failure.error
            _LOGGER.info("%s; it is copied in another snapshot", failure.error.message)
        return [each.fingerprint for each in failed]

    def copy_unlogged_again(self, record: CloneRecord, state: CloneState) -> None:
        """Copy the unlogged tables as they are now: the stream has no changes of them."""
        oids = [table.definition.oid for table in state.unlogged]
        changed: Sequence[Fingerprint] = ()
        while oids:
            with self._snapshot(state.mode, changed) as (snapshot, _):
                with snapshot.shared.session("clone") as session:
                    definitions = self._read(session, state.mode)
                require_unaltered(state.tables, definitions)
                changed = self._copy_rows(record, snapshot, [definitions[oid] for oid in oids])
                oids = [table.oid for table in changed]

    def refill_emptied(self, record: CloneRecord, state: CloneState) -> bool:
        """Copy unlogged tables again that a crash of the target has emptied; return whether there are any.

        All unlogged tables are copied, as when the completion began. Their triggers, rules and foreign keys that the
        clone has created are dropped, and have to be created again.
        """
        emptied = record.emptied(state.unlogged)
        if not emptied:
            return False
        names = [(table.definition.schema, table.definition.name) for table in state.unlogged]
        _LOGGER.warning(
            "a crash of the target emptied %s, copying them again", ", ".join(each.name for each in emptied)
        )
        if self._schema.is_cloned:
            with self._options.open_target() as session, session.transaction(read_only=False):
                for obstacle in obstacles_of(session, names):
                    obstacle.drop(session)
        self.copy_unlogged_again(record, state)
        return True

    def _require_running(self) -> None:
        if self._stops():
            raise Stopped(_STOPPED)

    @contextmanager
    def _snapshot(
        self, mode: Mode, changed: Sequence[Fingerprint]
    ) -> Iterator[tuple[CopySnapshot, PollWatermark | None]]:
        """The snapshot of a copy, and in poll mode its watermark.

        In logical mode, tables that were truncated during an earlier one are locked.
        """
        options = self._options
        log = options.log
        if mode is Mode.POLL:
            with open_poll_snapshot(options.source) as seen:
                seen.wait_until_durable()
                if seen.on_standby:
                    _require_logged(read_selected(seen.session, options.selection))
                watermark = PollWatermark(seen.snapshot, seen.lsn, seen.identity.timeline)
                yield CopySnapshot(Boundary(seen.lsn), seen.shared), watermark
            return
        self._require_running()
        taken = locked_snapshot(options.source, log, changed) if changed else copy_snapshot(options.source, log)
        with taken as snapshot:
            yield snapshot, None

    def _reported(self, results: Iterator[FilledTable | TableFailed]) -> Iterator[FilledTable | TableFailed]:
        """The results of a copy, whose progress is reported meanwhile."""
        done = threading.Event()

        def report() -> None:
            while not done.wait(PROGRESS_S):
                self._reporter.clone(self.progress, Lsn.ZERO, None)

        self._reporter.enter(State.COPYING)
        thread = threading.Thread(target=report, name="progress", daemon=True)
        thread.start()
        try:
            yield from results
        except TasksStopped as error:
            raise Stopped(_STOPPED) from error
        finally:
            done.set()
            thread.join()


def _require_logged(definitions: Mapping[int, Fingerprint]) -> None:
    """Refuse unlogged tables: a standby does not have their rows."""
    for table in definitions.values():
        if table.persistence is Persistence.UNLOGGED:
            raise UnsupportedServer(
                f"unlogged table {table.qualified} cannot be read on a standby",
                "Connect to the primary, or leave the table out with `--exclude`.",
            )
