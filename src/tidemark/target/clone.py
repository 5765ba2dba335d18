"""A clone of a source in another PostgreSQL: its schema, a copy of all rows, its indexes, and every change since.

The phases are recorded at the target, and each can be repeated: run again, a clone continues where it stopped. Foreign
keys, triggers, policies, privileges on tables and the values of sequences come last, when all changes are applied: none
of them may act on changes that the source has already made. Until then the target is only for reading.

Changes come from the stream, or from polls where logical decoding is not available. Polls create nothing at the source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import SparkSession

from tidemark.clock import Lsn
from tidemark.errors import (
    RESYNC_ALL,
    InvalidValue,
    LogDamaged,
    NotTheSameSource,
    PublicationDiffers,
    SourceError,
    TargetBehind,
    TidemarkError,
)
from tidemark.lake.pipeline_state import State
from tidemark.log.disk import Disk
from tidemark.log.mirror import read_mirror
from tidemark.pipeline.events import Emit, ModeSelected, PollApplied
from tidemark.pipeline.plan import require_interval
from tidemark.pipeline.poll.polling import Polling
from tidemark.pipeline.reporting import Reporter
from tidemark.postgres.capability import Choice, Mode, choose_mode
from tidemark.postgres.identity import Identity, locate
from tidemark.postgres.publication import PRINT_SETUP, drop_statement
from tidemark.postgres.slot import drop_slot_when_free
from tidemark.receive.supervision import Receiving
from tidemark.schema.selection import Selection
from tidemark.storage.fail_points import CloneFailPoint, fail_point
from tidemark.target.columns import can_stream_binary
from tidemark.target.dry_run import schema_lines, source_lines, table_lines
from tidemark.target.filling import Filling
from tidemark.target.folder import CloneFolder
from tidemark.target.follow import CloneFollower, FollowOptions, follow
from tidemark.target.large_objects import copy_large_objects, remove_large_objects
from tidemark.target.merging import MergedCounts
from tidemark.target.options import CloneOptions
from tidemark.target.poll import TargetPolled, TargetPoller, TargetPollOptions
from tidemark.target.probes import read_target_state
from tidemark.target.publishing import TablePublishing
from tidemark.target.rights import not_cloned, require_target
from tidemark.target.schema import CloneSchema
from tidemark.target.sequences import read_sequences, set_sequences
from tidemark.target.source_tables import (
    Carrying,
    SourceWatch,
    read_selected,
    require_carried,
    require_members,
    require_selection,
)
from tidemark.target.stages import CloneStage
from tidemark.target.state import ClonedTable, ClonePhase, CloneRecord, CloneState

_LATER = "Use a later `--endpos`, or none."
_LOGGER = logging.getLogger("tidemark.target")


@dataclass(frozen=True, slots=True)
class Cloned:
    """How far a clone came, and how many rows of the target were repaired since it was begun."""

    event: ClassVar[str] = "ended"

    phase: ClonePhase
    applied_lsn: Lsn | None
    repaired: int = 0


class Clone:
    """Clones a source. `spark` is called if there are rows to copy, and events are emitted as by a pipeline."""

    def __init__(
        self, options: CloneOptions, spark: Callable[[], SparkSession | None], emit: Emit = lambda _: None
    ) -> None:
        self._options, self._reporter = options, Reporter(emit)
        self._emit = self._reporter.emit
        self._stopping: Callable[[], bool] = lambda: False
        self._check_receiver: Callable[[], None] = lambda: None
        self._schema = CloneSchema(
            options.source, options.target, options.folder, options.jobs, options.pg_bin, options.with_schema
        )
        self._folder = CloneFolder(options)
        self._filling = Filling(options, self._schema, spark, self._reporter, self._stops)

    def run(self, stopping: Callable[[], bool] = lambda: False) -> Cloned:
        """Clone, or continue to, until the end that the options give, or until it is stopped."""
        self._stopping = stopping
        try:
            return self._run()
        except TidemarkError as error:
            if "LAKE" in error.hint and isinstance(error, NotTheSameSource):
                error.hint = "Connect to the source of the clone, or use another `--name` for another clone."
            elif isinstance(error, PublicationDiffers) and error.hint == PRINT_SETUP:
                error.hint = self._start_over()
            elif "LAKE" in error.hint:  # it names what resolves the error of a mirror
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
        with self._options.open_source() as session:
            source = locate(session, options.source, may_replicate=mode is Mode.LOGICAL).identity
        with self._options.recorded() as record:
            state = record.read(source) if record.exists else None
        if state is not None and state.phase is ClonePhase.COMPLETE:
            if self._folder.is_of(state):
                self._leave(mode)
            return Cloned(state.phase, state.applied_lsn, state.repaired)
        if state is not None:
            require_selection(options.names.mirror, state.selection, options.selection)
        else:
            with self._options.open_source() as session:
                there = read_target_state(session, options.source, options.target, options.selection)
                require_target(there, mode)
            self._require_later_end()
            for each in not_cloned(there):
                _LOGGER.warning("%s", each)
        self._folder.prepare(source, state, mode)
        return self._by_stream(source, state) if mode is Mode.LOGICAL else self._by_polls(source)

    def describe(self) -> Iterator[str]:
        """Yield what `run` would do, line by line, after checking that it can. Nothing is created at either server."""
        options, choice = self._options, self._choice()
        with self._options.open_source() as session, self._options.open_target() as target:
            record = CloneRecord(target, options.names.mirror)
            source = locate(session, options.source, may_replicate=choice.mode is Mode.LOGICAL).identity
            state = record.read(source) if record.exists else None
            if state is not None:
                require_selection(options.names.mirror, state.selection, options.selection)
                yield f"-- Mode {choice.mode.value}: {choice.why}"
                yield f"-- Clone {options.names.mirror} is in phase {state.phase.value}, and continues there."
                return
            there = read_target_state(session, options.source, options.target, options.selection)
            require_target(there, choice.mode)
            self._require_later_end()
            with session.transaction():
                tables = read_selected(session, options.selection)
                sizes = list(table_lines(session, tables))
        yield from source_lines(options.source, options.names, options.selection, choice)
        if options.with_schema:
            chosen = tables if options.selection != Selection() else None
            yield from schema_lines(options.source, options.target, self._schema.programs(), chosen)
        yield from (f"-- {each[0].upper()}{each[1:]}" for each in not_cloned(there))
        yield from sizes

    def _choice(self) -> Choice:
        """The mode: that of the clone if it exists, as requested, or as the source supports it."""
        options = self._options
        with self._options.open_target() as session:
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
            with self._options.open_source() as session:
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
        publishing = TablePublishing(options)
        if state is not None:
            self._require_log(state)
        if state is None or state.phase is ClonePhase.DEFINITIONS:
            publishing.publish(strict=state is None)
        else:
            self._require_members(state)
        with self._options.open_source() as session, self._options.open_target() as target:
            binary = can_stream_binary(session.version_num, target.version_num)
        with Receiving(options.receive(binary=binary), self._stopping) as receiving:
            self._check_receiver = receiving.check
            with self._options.recorded() as record:
                self._filling.fill(record, source, Mode.LOGICAL, receiving.keep, publishing)
            ended = self._followed(source)
        if ended.phase is ClonePhase.COMPLETE:
            self._leave(Mode.LOGICAL)
        return ended

    def _by_polls(self, source: Identity) -> Cloned:
        with self._options.recorded() as record:
            self._filling.fill(record, source, Mode.POLL)
        ended = self._polled(source)
        if ended.phase is ClonePhase.COMPLETE:
            self._leave(Mode.POLL)
        return ended

    def _require_log(self, state: CloneState) -> None:
        """Refuse a log that does not have every change above what the target has, before another slot is created."""
        log, needed = self._options.log, state.needed_lsn
        mirror = read_mirror(log, Disk()) if log.exists() else None
        start = mirror.start if mirror is not None else None
        if needed is not None and (start is None or start > needed):
            raise LogDamaged(
                f"the target has the changes up to {needed}, and {log} is not its log"
                + (f": it begins at {start}" if start is not None else ""),
                "If the directory was moved, pass it with `--state`. If it is lost, drop what was cloned, and schema "
                "tidemark, at the target, and clone again.",
            )

    def _require_members(self, state: CloneState) -> None:
        """Refuse a clone of which a table was not published for some time, before anything else is done."""
        options = self._options
        with options.open_source() as session, session.transaction():
            found = read_selected(session, options.selection, publications=options.publications(state.mode))
        require_members(state.tables, found)

    def _stops(self) -> bool:
        """Whether to stop; the receiver is restarted if it was killed, since the source keeps WAL for it."""
        self._check_receiver()
        return self._stopping()

    def _followed(self, source: Identity) -> Cloned:
        """Apply changes up to the end; complete the clone there unless it is to be followed.

        If the completion has begun, triggers may exist, and no other change is applied.
        """
        options = self._options
        if self._state(source).phase is ClonePhase.COMPLETION:
            return self._completed(source)
        repair_from = options.source if options.repairs else None
        carrying = Carrying(options.source, self._schema.last_sql) if options.carries else None
        following = FollowOptions(source, options.target, options.names.mirror, options.log, repair_from, carrying)
        endpos = options.endpos
        _require_end(self._state(source), endpos)
        watch = SourceWatch(options.selection, carrying, options.publications(Mode.LOGICAL))

        def check_source(tables: Mapping[int, ClonedTable]) -> None:
            """In a session of its own: following continues after a restart of the source."""
            with options.open_source() as session:
                watch.check(session, tables)

        check_source(self._state(source).tables)
        if endpos is None and (options.once or not options.follows):
            endpos = self._position()

        def observe(now: CloneFollower, merged: MergedCounts | None) -> None:
            self._check_receiver()
            if watch.is_due:
                now.check_target()
                check_source(now.tables)
            changes = merged.changes if merged is not None else 0
            self._reporter.clone(self._filling.progress, now.applied_lsn, now.received_lsn, changes)

        self._reporter.enter(State.FOLLOWING)
        applied = follow(following, endpos, self._stopping, observe)
        check_source(self._state(source).tables)
        if options.follows or endpos is None or applied < endpos:
            return Cloned(ClonePhase.FOLLOW, applied, self._state(source).repaired)
        if carrying is not None:
            require_carried(self._state(source).tables, carrying.altered, applied)
        with self._options.recorded() as record:
            state = record.existing(source)
            if state.phase is not ClonePhase.FOLLOW or state.applied_lsn is None or state.applied_lsn < endpos:
                raise TargetBehind(
                    f"the target is in phase {state.phase.value} with the changes up to {state.applied_lsn}, not up to "
                    f"{endpos}, where it is to be completed: a comparison holds it, or it has lost changes",
                    "Run the command again, which continues.",
                )
            self._filling.copy_unlogged_again(record, state)
            self._begin_completion(record, state)
        return self._completed(source)

    def _polled(self, source: Identity) -> Cloned:
        """Poll until stopped, or once; then complete the clone.

        If the completion has begun, triggers may exist, and there is no other poll.
        """
        options = self._options
        if self._state(source).phase is ClonePhase.FOLLOW:
            how = TargetPollOptions(
                options.source, options.target, options.names.mirror, options.selection, options.jobs
            )
            with TargetPoller(how, self._stopping) as poller:
                self._reporter.enter(State.POLLING)
                polling = Polling(poller.step, None, options.interval_s, self._stopping)
                polling.run(self._report_poll, once=options.once or not options.follows)
            if options.follows or self._stopping():
                return Cloned(ClonePhase.FOLLOW, self._state(source).applied_lsn)
            with self._options.recorded() as record:
                self._begin_completion(record, record.existing(source))
        return self._completed(source)

    def _begin_completion(self, record: CloneRecord, state: CloneState) -> None:
        """Dump what is created last as the source has it now: a privilege may have been revoked since the copy."""
        self._schema.dump_last(state.tables.keys() if state.selection != Selection() else None)
        record.set_phase(ClonePhase.COMPLETION)

    def _report_poll(self, polled: TargetPolled, seconds: float) -> None:
        merged = polled.merged
        changes = merged.inserted + merged.updated + merged.deleted
        self._emit(PollApplied(polled.lsn, polled.tables, changes, 0, reconciled=True, seconds=seconds))
        self._reporter.clone(self._filling.progress, polled.lsn, None)

    def _state(self, source: Identity) -> CloneState:
        with self._options.open_target() as session:
            return CloneRecord(session, self._options.names.mirror).existing(source)

    def _completed(self, source: Identity) -> Cloned:
        """Create what is created last, and set the sequences."""
        with self._options.recorded() as record:
            self._filling.refill_emptied(record, record.existing(source))
            self._schema.create(CloneStage.LAST)
            fail_point(CloneFailPoint.CONSTRAINTS_CREATED)
            self._copy_large_objects_again()
            self._set_sequences()
            fail_point(CloneFailPoint.SEQUENCES_SET)
            while self._filling.refill_emptied(record, record.existing(source)):
                self._schema.create(CloneStage.LAST)
            record.set_phase(ClonePhase.COMPLETE)
            fail_point(CloneFailPoint.COMPLETED)
            state = record.existing(source)
        return Cloned(state.phase, state.applied_lsn, state.repaired)

    def _copy_large_objects_again(self) -> None:
        """Copy what has changed since the copy: the stream has no changes of large objects."""
        clone = self._options.names.mirror
        with self._options.open_source() as source, self._options.open_target() as target, source.transaction():
            remove_large_objects(target, clone, copy_large_objects(source, target, clone).extra)

    def _set_sequences(self) -> None:
        with self._options.open_source() as source, self._options.open_target() as target:
            set_sequences(target, read_sequences(source, self._schema.sequences()))

    def _leave(self, mode: Mode) -> None:
        """Remove what a complete clone no longer needs, at the source and on this machine."""
        if mode is Mode.LOGICAL:
            self._leave_source()
        self._folder.remove()

    def _leave_source(self) -> None:
        """Drop the slot and the publications at the source; what the role may not drop is named."""
        options = self._options
        with self._options.open_source() as session:
            drop_slot_when_free(session, options.names.slot)
            for name in options.names.all_publications:
                try:
                    session.execute(drop_statement(name), f"dropping publication {name}")
                except SourceError as error:
                    _LOGGER.warning("%s; drop it when nothing else uses it", error.message)

    def _position(self) -> Lsn:
        with self._options.open_source() as session:
            return Lsn.parse(session.row("select pg_current_wal_insert_lsn()::text")[0])

    def _require_later_end(self) -> None:
        """Refuse an end that is before the copy, which is as of a later position than the present one."""
        endpos = self._options.endpos
        if endpos is not None and endpos < (now := self._position()):
            raise InvalidValue(f"--endpos {endpos} is before {now}, the position of the source before the copy", _LATER)


def _require_end(state: CloneState, endpos: Lsn | None) -> None:
    """Refuse an end before what the target has, or before the tables are as of one position."""
    least = max(state.consistent_lsn, state.applied_lsn or Lsn.ZERO)
    if endpos is not None and endpos < least:
        raise InvalidValue(f"--endpos {endpos} is before {least}, up to which the target has changes", _LATER)
