"""A clone of a source in another PostgreSQL: its schema, a copy of all rows, its indexes, and every change since.

The phases are recorded at the target, and each can be repeated: run again, a clone continues where it stopped. Foreign
keys, triggers, policies, privileges on tables and the values of sequences come last, when all changes are applied: none
of them may act on changes that the source has already made. Until then the target is only for reading.

Changes come from the stream, or from polls where logical decoding is not available. Polls create nothing at the source.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

from pyspark.sql import SparkSession

from tidemark.clock import Boundary, Lsn
from tidemark.errors import (
    RESYNC_ALL,
    InvalidValue,
    LogDamaged,
    SourceError,
    Stopped,
    TableChanged,
    TargetBehind,
    TidemarkError,
    UnsupportedServer,
)
from tidemark.log.disk import Disk
from tidemark.log.mirror import read_mirror
from tidemark.pipeline.copy.progress import CopyProgress
from tidemark.pipeline.copy.snapshots import CopySnapshot, copy_snapshot, locked_snapshot
from tidemark.pipeline.events import Emit, ModeSelected, PollApplied, State, TableCopied
from tidemark.pipeline.plan import INTERVAL_S, require_interval
from tidemark.pipeline.poll.polling import Polling
from tidemark.pipeline.poll.snapshot_session import open_poll_snapshot
from tidemark.pipeline.publishing import require_published
from tidemark.pipeline.reporting import PROGRESS_S, Reporter
from tidemark.postgres.capability import Choice, Mode, choose_mode
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.identity import Identity, locate
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.publication import drop_statement
from tidemark.postgres.session import Session
from tidemark.postgres.shared import table_label
from tidemark.postgres.slot import drop_slot_when_free
from tidemark.postgres.sqlstate import Endpoint
from tidemark.receive.options import ReceiveOptions
from tidemark.receive.supervision import Receiving
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.selection import Selection
from tidemark.schema.table import Persistence
from tidemark.spark import Stopped as CopyStopped
from tidemark.storage.fail_points import CloneFailPoint, fail_point
from tidemark.target.columns import can_stream_binary
from tidemark.target.copying import FilledTable, TableFailed, copy_tables, has_own_rows
from tidemark.target.dry_run import schema_lines, source_lines, table_lines
from tidemark.target.follow import Following, FollowOptions, follow
from tidemark.target.large_objects import copy_large_objects, remove_large_objects
from tidemark.target.merging import Merged
from tidemark.target.poll import TargetPolled, TargetPoller, TargetPollOptions
from tidemark.target.probes import read_target_state
from tidemark.target.rights import require_target
from tidemark.target.schema import CloneSchema, indexed_at_once
from tidemark.target.sequences import read_sequences, set_sequences
from tidemark.target.source_tables import (
    Carrying,
    SourceWatch,
    read_selected,
    require_carried,
    require_unaltered,
)
from tidemark.target.stages import Stage
from tidemark.target.state import CloneRecord, CloneState, PartRecorder, Phase, PollWatermark
from tidemark.target.writer import compile_kernels

LOG = "log"
_LATER = "Use a later `--endpos`, or none."
_LOGGER = logging.getLogger("tidemark.target")


@dataclass(frozen=True, slots=True)
class CloneOptions:
    """The source and the target, the selected tables, and how far to go.

    `folder` is a local directory for the log and the dumped schema. With `follows`, the clone follows its source until
    `endpos`, or until it is stopped, and can be continued; without, it is completed at `endpos`, or at the position
    that the source has when everything is copied. With `once`, it ends at that position in either case. With `repairs`,
    rows of the target that do not fit the changes are repaired; with `carries`, changes of columns at the source are
    made at the target too.

    Without a `mode`, polls are used only if the source does not support logical decoding. A poll has no `endpos`:
    without `follows`, the clone is completed after one poll.
    """

    source: Dsn
    target: Dsn
    names: MirrorNames
    folder: Path
    selection: Selection = field(default_factory=Selection)
    follows: bool = False
    endpos: Lsn | None = None
    once: bool = False
    jobs: int = 2
    pg_bin: Path | None = None
    with_schema: bool = True
    mode: Mode | None = None
    interval_s: float = INTERVAL_S
    repairs: bool = False
    carries: bool = True

    def receive(self, *, binary: bool) -> ReceiveOptions:
        """The options of the receiver."""
        return ReceiveOptions(self.source, self.folder / LOG, self.names, binary=binary)


@dataclass(frozen=True, slots=True)
class Cloned:
    """How far a clone came, and how many rows of the target were repaired since it was begun."""

    event: ClassVar[str] = "ended"

    phase: Phase
    applied_lsn: Lsn | None
    repaired: int = 0


class Clone:
    """Clones a source. `spark` is called if there are rows to copy, and events are emitted as by a pipeline."""

    def __init__(
        self, options: CloneOptions, spark: Callable[[], SparkSession | None], emit: Emit = lambda _: None
    ) -> None:
        self._options, self._spark, self._progress = options, spark, CopyProgress()
        self._reporter = Reporter(emit)
        self._emit = self._reporter.emit
        self._stopping: Callable[[], bool] = lambda: False
        self._check_receiver: Callable[[], None] = lambda: None
        self._schema = CloneSchema(
            options.source, options.target, options.folder, options.jobs, options.pg_bin, options.with_schema
        )

    def run(self, stopping: Callable[[], bool] = lambda: False) -> Cloned:
        """Clone, or continue to, until the end that the options give, or until it is stopped."""
        self._stopping = stopping
        try:
            return self._run()
        except TidemarkError as error:
            if "LAKE" in error.hint:  # it names what resolves the error of a mirror
                before = error.hint.partition(RESYNC_ALL)[0] if RESYNC_ALL in error.hint else ""
                error.hint = f"{before}{self._start_over()}"
            raise

    def _start_over(self) -> str:
        """The hint for a slot or a log that is lost."""
        drop = f"select pg_drop_replication_slot('{self._options.names.slot}')"
        return (
            "To start over, drop what was cloned, and schema tidemark, at the target, remove the directory "
            f"{self._options.folder}, run `{drop}` at the source if this slot exists, and clone again."
        )

    def _run(self) -> Cloned:
        options = self._options
        mode = self._choice().mode
        with self._source() as session:
            source = locate(session, options.source, may_replicate=mode is Mode.LOGICAL).identity
        with self._recorded() as record:
            state = record.read(source) if record.exists else None
        if state is not None and state.phase is Phase.COMPLETE:
            if mode is Mode.LOGICAL:
                self._leave_source()
            return Cloned(state.phase, state.applied_lsn, state.repaired)
        if state is None:
            with self._source() as session:
                require_target(read_target_state(session, options.source, options.target, options.selection))
        return self._by_stream(source, state) if mode is Mode.LOGICAL else self._by_polls(source)

    def describe(self) -> Iterator[str]:
        """Yield what `run` would do, line by line, after checking that it can. Nothing is created at either server."""
        options, choice = self._options, self._choice()
        with self._source() as session, self._target() as target:
            record = CloneRecord(target, options.names.mirror)
            source = locate(session, options.source, may_replicate=choice.mode is Mode.LOGICAL).identity
            state = record.read(source) if record.exists else None
            if state is not None:
                yield f"-- Mode {choice.mode.value}: {choice.why}"
                yield f"-- Clone {options.names.mirror} is in phase {state.phase.value}, and continues there."
                return
            require_target(read_target_state(session, options.source, options.target, options.selection))
            with session.transaction():
                tables = read_selected(session, options.selection)
                sizes = list(table_lines(session, tables))
        yield from source_lines(options.source, options.names, options.selection, choice)
        if options.with_schema:
            chosen = tables if options.selection != Selection() else None
            yield from schema_lines(options.source, options.target, self._schema.programs(), chosen)
        yield from sizes

    def _choice(self) -> Choice:
        """The mode: that of the clone if it exists, as requested, or as the source supports it."""
        options = self._options
        with self._target() as session:
            record = CloneRecord(session, options.names.mirror)
            recorded = record.mode if record.exists else None
        if recorded is not None and options.mode not in (None, recorded):
            raise InvalidValue(
                f"clone {options.names.mirror} was begun in mode {recorded.value}, which cannot be changed",
                f"Use `--mode {recorded.value}`, or drop what was cloned, and schema tidemark, at the target, and "
                "clone again.",
            )
        mode, why = recorded or options.mode, "as requested by --mode"
        if recorded is not None:
            why = f"clone {options.names.mirror} was begun in this mode"
        elif mode is None:
            with self._source() as session:
                choice = choose_mode(session, options.source, options.names, options.selection)
            mode, why = choice.mode, choice.why
            self._emit(ModeSelected(mode, why))
        assert mode is not None  # noqa: S101
        if mode is Mode.POLL:
            if options.endpos is not None:
                hint = "Omit `--endpos`: without `--follow`, the clone is completed after one poll."
                raise InvalidValue(f"--endpos {options.endpos} needs mode logical: {why}", hint)
            if options.repairs:
                hint = "Run `tidemark compare SOURCE TARGET` to list differences, and undo them at the target."
                raise InvalidValue(f"--on-difference repair needs mode logical: {why}", hint)
            require_interval(options.interval_s)
        return Choice(mode, why)

    def _by_stream(self, source: Identity, state: CloneState | None) -> Cloned:
        options = self._options
        if state is not None:
            self._require_log(state)
        require_published(options, strict=state is None)
        with self._source() as session, self._target() as target:
            binary = can_stream_binary(session.version_num, target.version_num)
        with Receiving(options.receive(binary=binary), self._stopping) as receiving:
            self._check_receiver = receiving.check
            with self._recorded() as record:
                self._fill(record, source, Mode.LOGICAL, receiving.keep)
            ended = self._followed(source)
        if ended.phase is Phase.COMPLETE:
            self._leave_source()
        return ended

    def _by_polls(self, source: Identity) -> Cloned:
        with self._recorded() as record:
            self._fill(record, source, Mode.POLL, lambda: None)
        return self._polled(source)

    def _source(self) -> Session:
        return Session.open(self._options.source, "clone")

    def _target(self) -> Session:
        return Session.open(self._options.target, "clone", server=Endpoint.TARGET)

    @contextmanager
    def _recorded(self) -> Iterator[CloneRecord]:
        """The record of the clone, which no other process writes meanwhile."""
        with self._target() as session:
            record = CloneRecord(session, self._options.names.mirror)
            record.lock()
            try:
                yield record
            finally:
                record.unlock()

    def _require_log(self, state: CloneState) -> None:
        """Refuse a log that does not have every change above what the target has, before another slot is created."""
        log, needed = self._options.folder / LOG, state.needed_lsn
        mirror = read_mirror(log, Disk()) if log.exists() else None
        start = mirror.start if mirror is not None else None
        if needed is not None and (start is None or start > needed):
            raise LogDamaged(
                f"the target has the changes up to {needed}, and {log} is not its log"
                + (f": it begins at {start}" if start is not None else ""),
                "If the directory was moved, pass it with `--state`. If it is lost, drop what was cloned, and schema "
                "tidemark, at the target, and clone again.",
            )

    def _fill(self, record: CloneRecord, source: Identity, mode: Mode, keep: Callable[[], None]) -> None:
        """Create the definitions, copy the rows and create the indexes, as far as that is not done.

        `keep` is called from the first record at the target on: the copies rely on the slot and the log then.
        """
        options = self._options
        state = record.read(source) if record.exists else None
        if state is not None:
            keep()
        compile_ahead = compile_kernels if mode is Mode.LOGICAL else lambda: None
        compiling = threading.Thread(target=compile_ahead, name="compile")
        compiling.start()
        changed: Sequence[Fingerprint] = ()
        with indexed_at_once(self._schema, self._stops) as index:
            while state is None or state.phase in (Phase.DEFINITIONS, Phase.COPY):
                with self._snapshot(mode, changed) as (snapshot, watermark):
                    with snapshot.shared.session("clone") as session:
                        definitions = read_selected(session, options.selection)
                    if state is None or state.phase is Phase.DEFINITIONS:
                        self._define(record, source, mode, snapshot, definitions)
                        keep()
                    changed = self._copy(record, source, snapshot, definitions, watermark, index)
                    if not changed:
                        record.set_phase(Phase.INDEXES)
                state = record.existing(source)
        if state.phase is Phase.INDEXES:
            self._schema.create(Stage.KEYS, stopping=self._stops)
            fail_point(CloneFailPoint.KEYS_CREATED)
            self._schema.create(Stage.INDEXES, stopping=self._stops)
            fail_point(CloneFailPoint.INDEXES_CREATED)
            compiling.join()
            record.set_phase(Phase.FOLLOW)

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
        record.create()
        if record.read(source) is None:
            record.begin(source, mode)
        fail_point(CloneFailPoint.RECORDED)
        self._schema.create(Stage.DEFINITIONS)
        fail_point(CloneFailPoint.DEFINED)
        for each in definitions.values():
            record.add_table(each)
        record.set_phase(Phase.COPY)

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
            with snapshot.shared.session("clone") as session, self._target() as target:
                copy_large_objects(session, target)
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
            spark, snapshot.shared, options.target, wanted, options.jobs, recorder, self._progress, self._stops
        )
        for result in self._reported(results):
            if isinstance(result, TableFailed):
                failed.append(result)
                continue
            table = result.fingerprint
            record.set_copied(table.oid, snapshot.base, result.rows, watermark)
            fail_point(CloneFailPoint.TABLE_COPIED)
            name = f"{table.schema}.{table.name}"
            self._emit(TableCopied(name, snapshot.base.lsn, result.rows, self._progress.seconds(table.oid)))
            then(result)
        for failure in failed:
            if not isinstance(failure.error, TableChanged):
                raise failure.error
            _LOGGER.info("%s; it is copied in another snapshot", failure.error.message)
        return [each.fingerprint for each in failed]

    def _stops(self) -> bool:
        """Whether to stop; the receiver is restarted if it was killed, since the source keeps WAL for it."""
        self._check_receiver()
        return self._stopping()

    @contextmanager
    def _snapshot(
        self, mode: Mode, changed: Sequence[Fingerprint]
    ) -> Iterator[tuple[CopySnapshot, PollWatermark | None]]:
        """The snapshot of a copy, and in poll mode its watermark.

        In logical mode, tables that were truncated during an earlier one are locked.
        """
        options = self._options
        log = options.folder / LOG
        if mode is Mode.POLL:
            with open_poll_snapshot(options.source) as seen:
                seen.wait_until_durable()
                if seen.on_standby:
                    _require_logged(read_selected(seen.session, options.selection))
                watermark = PollWatermark(seen.snapshot, seen.lsn, seen.identity.timeline)
                yield CopySnapshot(Boundary(seen.lsn), seen.shared), watermark
            return
        self._check_receiver()
        taken = locked_snapshot(options.source, log, changed) if changed else copy_snapshot(options.source, log)
        with taken as snapshot:
            yield snapshot, None

    def _reported(self, results: Iterator[FilledTable | TableFailed]) -> Iterator[FilledTable | TableFailed]:
        """The results of a copy, whose progress is reported meanwhile."""
        done = threading.Event()

        def report() -> None:
            while not done.wait(PROGRESS_S):
                self._reporter.clone(self._progress, Lsn.ZERO, None)

        self._reporter.enter(State.COPYING)
        thread = threading.Thread(target=report, name="progress", daemon=True)
        thread.start()
        try:
            yield from results
        except CopyStopped as error:
            raise Stopped("stopped during the copy; run the command again to continue") from error
        finally:
            done.set()
            thread.join()

    def _followed(self, source: Identity) -> Cloned:
        """Apply changes up to the end; complete the clone there unless it is to be followed.

        If the completion has begun, triggers may exist, and no other change is applied.
        """
        options = self._options
        if self._state(source).phase is Phase.COMPLETION:
            return self._completed(source)
        repair_from = options.source if options.repairs else None
        carrying = Carrying(options.source, self._schema.last_sql) if options.carries else None
        following = FollowOptions(
            source, options.target, options.names.mirror, options.folder / LOG, repair_from, carrying
        )
        endpos = options.endpos
        _require_end(self._state(source), endpos)
        with self._source() as session:
            watch = SourceWatch(options.selection, carrying)
            watch.check(session, self._state(source).tables)
            if endpos is None and (options.once or not options.follows):
                endpos = self._position()

            def observe(now: Following, merged: Merged | None) -> None:
                self._check_receiver()
                if watch.is_due:
                    watch.check(session, now.tables)
                changes = merged.changes if merged is not None else 0
                self._reporter.clone(self._progress, now.applied_lsn, now.received_lsn, changes)

            self._reporter.enter(State.FOLLOWING)
            applied = follow(following, endpos, self._stopping, observe)
            watch.check(session, self._state(source).tables)
        if options.follows or endpos is None or applied < endpos:
            return Cloned(Phase.FOLLOW, applied, self._state(source).repaired)
        if carrying is not None:
            require_carried(self._state(source).tables, carrying.altered, applied)
        with self._recorded() as record:
            state = record.existing(source)
            if state.phase is not Phase.FOLLOW or state.applied_lsn is None or state.applied_lsn < endpos:
                raise TargetBehind(
                    f"the target is in phase {state.phase.value} with the changes up to {state.applied_lsn}, not up to "
                    f"{endpos}, where it is to be completed: a comparison holds it, or it has lost changes",
                    "Run the command again, which continues.",
                )
            self._copy_unlogged_again(record, state)
            record.set_phase(Phase.COMPLETION)
        return self._completed(source)

    def _polled(self, source: Identity) -> Cloned:
        """Poll until stopped, or once; then complete the clone.

        If the completion has begun, triggers may exist, and there is no other poll.
        """
        options = self._options
        if self._state(source).phase is Phase.FOLLOW:
            how = TargetPollOptions(
                options.source, options.target, options.names.mirror, options.selection, options.jobs
            )
            with TargetPoller(how, self._stopping) as poller:
                self._reporter.enter(State.POLLING)
                polling = Polling(poller.step, None, options.interval_s, self._stopping)
                polling.run(self._report_poll, once=options.once or not options.follows)
            if options.follows or self._stopping():
                return Cloned(Phase.FOLLOW, self._state(source).applied_lsn)
            with self._recorded() as record:
                record.set_phase(Phase.COMPLETION)
        return self._completed(source)

    def _report_poll(self, polled: TargetPolled) -> None:
        merged = polled.merged
        changes = merged.inserted + merged.updated + merged.deleted
        self._emit(PollApplied(polled.lsn, polled.tables, changes, 0, reconciled=True))
        self._reporter.clone(self._progress, polled.lsn, None)

    def _state(self, source: Identity) -> CloneState:
        with self._target() as session:
            return CloneRecord(session, self._options.names.mirror).existing(source)

    def _completed(self, source: Identity) -> Cloned:
        """Create what is created last, and set the sequences."""
        with self._recorded() as record:
            self._schema.create(Stage.LAST)
            fail_point(CloneFailPoint.CONSTRAINTS_CREATED)
            self._copy_large_objects_again()
            self._set_sequences()
            fail_point(CloneFailPoint.SEQUENCES_SET)
            record.set_phase(Phase.COMPLETE)
            fail_point(CloneFailPoint.COMPLETED)
            state = record.existing(source)
        return Cloned(state.phase, state.applied_lsn, state.repaired)

    def _copy_unlogged_again(self, record: CloneRecord, state: CloneState) -> None:
        """Copy the unlogged tables as they are now: the stream has no changes of them."""
        oids = [oid for oid, table in state.tables.items() if table.definition.persistence is Persistence.UNLOGGED]
        changed: Sequence[Fingerprint] = ()
        while oids:
            with self._snapshot(state.mode, changed) as (snapshot, _):
                with snapshot.shared.session("clone") as session:
                    definitions = read_selected(session, self._options.selection)
                require_unaltered(state.tables, definitions)
                changed = self._copy_rows(record, snapshot, [definitions[oid] for oid in oids])
                oids = [table.oid for table in changed]

    def _copy_large_objects_again(self) -> None:
        """Copy what has changed since the copy: the stream has no changes of large objects."""
        with self._source() as source, self._target() as target, source.transaction():
            remove_large_objects(target, copy_large_objects(source, target).extra)

    def _set_sequences(self) -> None:
        with self._source() as source, self._target() as target:
            set_sequences(target, read_sequences(source, self._schema.sequences()))

    def _leave_source(self) -> None:
        """Drop the slot and the publications at the source; what the role may not drop is named."""
        options = self._options
        with self._source() as session:
            drop_slot_when_free(session, options.names.slot)
            for name in options.names.all_publications:
                try:
                    session.execute(drop_statement(name), f"dropping publication {name}")
                except SourceError as error:
                    _LOGGER.warning("%s; drop it when nothing else uses it", error.message)

    def _position(self) -> Lsn:
        with self._source() as session:
            return Lsn.parse(session.row("select pg_current_wal_insert_lsn()::text")[0])


def _require_logged(definitions: Mapping[int, Fingerprint]) -> None:
    """Refuse unlogged tables: a standby does not have their rows."""
    for table in definitions.values():
        if table.persistence is Persistence.UNLOGGED:
            raise UnsupportedServer(
                f"unlogged table {table_label(table)} cannot be read on a standby",
                "Connect to the primary, or leave the table out with `--exclude`.",
            )


def _require_end(state: CloneState, endpos: Lsn | None) -> None:
    """Refuse an end before what the target has, or before the tables are as of one position."""
    least = max(state.consistent_lsn, state.applied_lsn or Lsn.ZERO)
    if endpos is not None and endpos < least:
        raise InvalidValue(f"--endpos {endpos} is before {least}, up to which the target has changes", _LATER)
