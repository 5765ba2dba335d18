"""A clone of a source in another PostgreSQL: its schema, a copy of all rows, its indexes, and every change since.

The phases are recorded at the target, and each can be repeated: run again, a clone continues where it stopped. Foreign
keys, triggers, policies, privileges on tables and the values of sequences come last, when all changes are applied: none
of them may act on changes that the source has already made. Until then the target is only for reading.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from pyspark.sql import SparkSession

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue, LogDamaged, SourceAltered, SourceError, Stopped, TableChanged
from tidemark.log.disk import Disk
from tidemark.log.mirror import read_mirror
from tidemark.logs import fields
from tidemark.pipeline.copy.progress import CopyProgress
from tidemark.pipeline.copy.snapshots import CopySnapshot, copy_snapshot, locked_snapshot
from tidemark.pipeline.publishing import require_published
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.identity import Identity, locate
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.publication import drop_statement
from tidemark.postgres.session import Session
from tidemark.postgres.slot import drop_slot_when_free
from tidemark.postgres.sqlstate import Endpoint
from tidemark.receive.options import ReceiveOptions
from tidemark.receive.supervision import Receiving
from tidemark.schema.fingerprint import Effect, Fingerprint, compare
from tidemark.schema.selection import Selection
from tidemark.spark import Stopped as CopyStopped
from tidemark.target.alterations import AlteredTable, obstacle
from tidemark.target.archive import Archive, dump_schema, open_archive
from tidemark.target.columns import can_stream_binary
from tidemark.target.copying import TableCopied, TableFailed, copy_tables, has_own_rows
from tidemark.target.definitions import restore_stage, stage_text
from tidemark.target.dependents import selected_tables
from tidemark.target.follow import CARRY_OR_CLONE_AGAIN, CLONE_AGAIN, Carrying, FollowOptions, follow
from tidemark.target.large_objects import copy_large_objects, remove_large_objects
from tidemark.target.needs import may_set_owners, missing_at_target
from tidemark.target.probes import read_target_state
from tidemark.target.programs import Programs, find_programs
from tidemark.target.rights import require_target
from tidemark.target.sequences import read_sequences, set_sequences
from tidemark.target.source_rows import read_altered
from tidemark.target.stages import Stage
from tidemark.target.state import ClonedTable, CloneRecord, CloneState, PartRecorder, Phase

SCHEMA, LOG = "schema", "log"
WATCH_S = 5.0
_LATER = "Use a later `--endpos`, or none."
_EXTENDED = "select objid::bigint from pg_depend where classid = 'pg_class'::regclass and deptype = 'e'"
_LOGGER = logging.getLogger("tidemark.target")


@dataclass(frozen=True, slots=True)
class CloneOptions:
    """The source and the target, the selected tables, and how far to go.

    `folder` is a local directory for the log and the dumped schema. With `follows`, the clone follows its source until
    `endpos`, or until it is stopped, and can be continued; without, it is completed at `endpos`, or at the position
    that the source has when everything is copied. With `repairs`, rows of the target that do not fit the changes are
    repaired; with `carries`, changes of columns at the source are made at the target too.
    """

    source: Dsn
    target: Dsn
    names: MirrorNames
    folder: Path
    selection: Selection = field(default_factory=Selection)
    follows: bool = False
    endpos: Lsn | None = None
    jobs: int = 2
    pg_bin: Path | None = None
    with_schema: bool = True
    repairs: bool = False
    carries: bool = True

    def receive(self, *, binary: bool) -> ReceiveOptions:
        """The options of the receiver."""
        return ReceiveOptions(self.source, self.folder / LOG, self.names, binary=binary)


@dataclass(frozen=True, slots=True)
class Cloned:
    """How far a clone came, and how many rows of the target were repaired since it was begun."""

    phase: Phase
    applied_lsn: Lsn | None
    repaired: int = 0


class Clone:
    """Clones a source. `spark` is called if there are rows to copy."""

    def __init__(
        self, options: CloneOptions, spark: Callable[[], SparkSession | None], progress: CopyProgress | None = None
    ) -> None:
        self._options, self._spark, self.progress = options, spark, progress or CopyProgress()
        self._stopping: Callable[[], bool] = lambda: False

    def run(self, stopping: Callable[[], bool] = lambda: False) -> Cloned:
        """Clone, or continue to, until the end that the options give, or until it is stopped."""
        self._stopping = stopping
        options = self._options
        with self._source() as session:
            source = locate(session, options.source, may_replicate=True).identity
        with self._recorded() as record:
            state = record.read(source) if record.exists else None
        if state is not None and state.phase is Phase.COMPLETE:
            self._leave_source()
            return Cloned(state.phase, state.applied_lsn, state.repaired)
        if state is None:
            with self._source() as session:
                require_target(read_target_state(session, options.source, options.target, options.selection))
        else:
            self._require_log(state)
        require_published(options, strict=state is None)
        with self._source() as session, self._target() as target:
            binary = can_stream_binary(session.version_num, target.version_num)
        with Receiving(options.receive(binary=binary), stopping) as receiving:
            with self._recorded() as record:
                self._fill(record, source, receiving)
            ended = self._followed(source)
        if ended.phase is Phase.COMPLETE:
            self._leave_source()
        return ended

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
            yield record

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

    def _fill(self, record: CloneRecord, source: Identity, receiving: Receiving) -> None:
        """Create the definitions, copy the rows and create the indexes, as far as that is not done.

        From the first record at the target on, the slot and the log are kept: the copies rely on them.
        """
        options = self._options
        state = record.read(source) if record.exists else None
        if state is not None:
            receiving.keep()
        changed: Sequence[Fingerprint] = ()
        while state is None or state.phase in (Phase.DEFINITIONS, Phase.COPY):
            with self._snapshot(changed) as snapshot:
                definitions = _definitions(snapshot, options.selection)
                if state is None or state.phase is Phase.DEFINITIONS:
                    self._define(record, source, snapshot, definitions)
                    receiving.keep()
                changed = self._copy(record, source, snapshot, definitions)
                if not changed:
                    record.set_phase(Phase.INDEXES)
            state = record.existing(source)
        if state.phase is Phase.INDEXES:
            for stage in (Stage.KEYS, Stage.INDEXES):
                self._restore(stage)
            record.set_phase(Phase.FOLLOW)

    def _define(
        self, record: CloneRecord, source: Identity, snapshot: CopySnapshot, definitions: Mapping[int, Fingerprint]
    ) -> None:
        """Create the definitions at the target; nothing is created if it lacks something that they need."""
        options = self._options
        if options.with_schema:
            chosen = definitions if options.selection != Selection() else None
            archive = dump_schema(
                self._programs(), options.source, snapshot.shared.name, options.folder / SCHEMA, chosen
            )
            self._require_room(archive)
        record.create()
        if record.read(source) is None:
            record.begin(source)
        if options.with_schema:
            self._restore(Stage.DEFINITIONS)
        for each in definitions.values():
            record.add_table(each)
        record.set_phase(Phase.COPY)

    def _require_room(self, archive: Archive) -> None:
        with self._target() as session:
            needs = missing_at_target(session, archive)
        needs.require()
        for entry in needs.superuser:
            _LOGGER.warning("not cloned, because only a superuser can create it: %s", entry)

    def _copy(
        self, record: CloneRecord, source: Identity, snapshot: CopySnapshot, definitions: Mapping[int, Fingerprint]
    ) -> list[Fingerprint]:
        """Copy the tables that are not copied yet in this snapshot; return those that were truncated meanwhile."""
        options, state = self._options, record.existing(source)
        _require_unaltered(state, definitions)
        wanted = [definitions[oid] for oid, table in state.tables.items() if table.base is None]
        for each in wanted:
            record.add_table(each)
            if not has_own_rows(each):
                record.set_copied(each.oid, snapshot.base, 0)
        recorder = PartRecorder(options.names.mirror, uuid4().hex)
        spark = self._spark() if any(has_own_rows(each) for each in wanted) else None
        failed: list[TableFailed] = []
        results = copy_tables(
            spark, snapshot.shared, options.target, wanted, options.jobs, recorder, self.progress, self._stopping
        )
        for result in self._until_stopped(results):
            if isinstance(result, TableFailed):
                failed.append(result)
                continue
            table = result.fingerprint
            record.set_copied(table.oid, snapshot.base, result.rows)
            name = f"{table.schema}.{table.name}"
            message = "table %s: copied %s rows, as of %s"
            extra = fields(table=name, rows=result.rows, lsn=snapshot.base.lsn)
            _LOGGER.info(message, name, f"{result.rows:,}", snapshot.base.lsn, extra=extra)
        for failure in failed:
            if not isinstance(failure.error, TableChanged):
                raise failure.error
            _LOGGER.info("%s; it is copied in another snapshot, in which it is locked", failure.error.message)
        if not failed:
            with snapshot.shared.session("clone") as session, self._target() as target:
                copy_large_objects(session, target)
        return [each.fingerprint for each in failed]

    @contextmanager
    def _snapshot(self, changed: Sequence[Fingerprint]) -> Iterator[CopySnapshot]:
        """The snapshot of a copy. Tables that were truncated during an earlier one are locked."""
        options = self._options
        log = options.folder / LOG
        taken = locked_snapshot(options.source, log, changed) if changed else copy_snapshot(options.source, log)
        with taken as snapshot:
            yield snapshot

    def _until_stopped(self, results: Iterator[TableCopied | TableFailed]) -> Iterator[TableCopied | TableFailed]:
        try:
            yield from results
        except CopyStopped as error:
            raise Stopped("stopped during the copy; run the command again to continue") from error

    def _followed(self, source: Identity) -> Cloned:
        """Apply changes up to the end; complete the clone there unless it is to be followed."""
        options = self._options
        repair_from = options.source if options.repairs else None
        carrying = Carrying(options.source, self._later) if options.carries else None
        following = FollowOptions(
            source, options.target, options.names.mirror, options.folder / LOG, repair_from, carrying
        )
        endpos = options.endpos
        _require_end(self._state(source), endpos)
        with self._source() as session:
            watch = _Watch(session, lambda: self._state(source), options.selection, carrying)
            watch.check()
            if endpos is None and not options.follows:
                endpos = self._position()
            applied = follow(following, endpos, self._stopping, watch.step)
            watch.check()
        if options.follows or endpos is None or applied < endpos:
            return Cloned(Phase.FOLLOW, applied, self._state(source).repaired)
        if carrying is not None:
            _require_carried(self._state(source), carrying.altered, applied)
        self._complete(source)
        return Cloned(Phase.COMPLETE, applied, self._state(source).repaired)

    def _later(self) -> str:
        """The SQL that completes the clone."""
        return stage_text(self._programs(), self._archive(), Stage.LAST) if self._options.with_schema else ""

    def _state(self, source: Identity) -> CloneState:
        with self._target() as session:
            return CloneRecord(session, self._options.names.mirror).existing(source)

    def _complete(self, source: Identity) -> None:
        """Create what is created last, set the sequences, and remove what the clone needed at the source."""
        options = self._options
        with self._recorded() as record:
            record.existing(source)
            if options.with_schema:
                self._restore(Stage.LAST)
            self._copy_large_objects_again()
            self._set_sequences()
            record.set_phase(Phase.COMPLETE)

    def _copy_large_objects_again(self) -> None:
        """Copy what has changed since the copy: the stream has no changes of large objects."""
        with self._source() as source, self._target() as target, source.transaction():
            remove_large_objects(target, copy_large_objects(source, target).extra)

    def _set_sequences(self) -> None:
        options = self._options
        wanted = self._archive().sequences if options.with_schema else None
        with self._source() as source, self._target() as target:
            set_sequences(target, read_sequences(source, wanted))

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

    def _restore(self, stage: Stage) -> None:
        options = self._options
        if options.with_schema:
            begin, archive = time.monotonic(), self._archive()
            with self._target() as session:
                keep_owners = may_set_owners(session, archive)
                without = {entry.dump_id for entry in missing_at_target(session, archive).superuser}
            restore_stage(
                self._programs(), options.target, archive, stage, options.jobs, keep_owners=keep_owners, without=without
            )
            _LOGGER.info("%s created in %.1f s", stage.value, time.monotonic() - begin, extra=fields(stage=stage.value))

    def _archive(self) -> Archive:
        return open_archive(self._options.folder / SCHEMA)

    def _programs(self) -> Programs:
        with self._source() as source, self._target() as target:
            return find_programs(source.version_num, target.version_num, self._options.pg_bin)

    def _position(self) -> Lsn:
        with self._source() as session:
            return Lsn.parse(session.row("select pg_current_wal_insert_lsn()::text")[0])


class _Watch:
    """Notices that tables were altered at the source, also where the stream has no trace of it."""

    def __init__(
        self, session: Session, read_state: Callable[[], CloneState], selection: Selection, carrying: Carrying | None
    ) -> None:
        self._session, self._read_state, self._selection = session, read_state, selection
        self._carrying = carrying
        self._next = time.monotonic() + WATCH_S
        self._new: frozenset[str] = frozenset()

    def step(self) -> None:
        """Check if it is time."""
        if time.monotonic() >= self._next:
            self.check()
            self._next = time.monotonic() + WATCH_S

    def check(self) -> None:
        """Raise SourceAltered if a table was altered in a way that is not carried; name tables that are not cloned."""
        state = self._read_state()
        with self._session.transaction():
            definitions = _selected(self._session, self._selection)
            if self._carrying is None:
                _require_unaltered(state, definitions, CARRY_OR_CLONE_AGAIN)
            else:
                self._find_altered(state, definitions, self._carrying.altered)
        new = frozenset(f"{d.schema}.{d.name}" for oid, d in definitions.items() if oid not in state.tables)
        for name in sorted(new - self._new):
            _LOGGER.warning("table %s was created at the source after the copy and is not cloned", name)
        self._new |= new

    def _find_altered(
        self, state: CloneState, definitions: Mapping[int, Fingerprint], altered: dict[int, AlteredTable]
    ) -> None:
        altered.clear()
        for oid, table in state.tables.items():
            if table.definition != definitions.get(oid):
                found = read_altered(self._session, definitions[oid]) if oid in definitions else None
                reason = obstacle(table.definition, found)
                if found is None or reason:
                    raise _altered(table, reason or "it was dropped")
                altered[oid] = found


def _definitions(snapshot: CopySnapshot, selection: Selection) -> dict[int, Fingerprint]:
    """The selected tables as of a snapshot."""
    with snapshot.shared.session("clone") as session:
        return _selected(session, selection)


def _selected(session: Session, selection: Selection) -> dict[int, Fingerprint]:
    """The selected tables, without those of extensions, which CREATE EXTENSION creates at the target."""
    catalog = read_catalog(session)
    chosen = selected_tables(catalog, selection)
    extended = {oid for (oid,) in session.rows(_EXTENDED)}
    tables = [table for table in catalog.tables if table.oid not in extended]
    return {table.oid: Fingerprint.of(table, ()) for table in tables if chosen is None or table.oid in chosen}


def _require_end(state: CloneState, endpos: Lsn | None) -> None:
    """Refuse an end before what the target has, or before the tables are as of one position."""
    least = max(state.consistent_lsn, state.applied_lsn or Lsn.ZERO)
    if endpos is not None and endpos < least:
        raise InvalidValue(f"--endpos {endpos} is before {least}, up to which the target has changes", _LATER)


def _require_unaltered(state: CloneState, definitions: Mapping[int, Fingerprint], hint: str = CLONE_AGAIN) -> None:
    """Raise an error if a table is not what it was when its definition was created at the target."""
    for oid, table in state.tables.items():
        found = compare(table.definition, definitions.get(oid))
        if found.effect is not Effect.SAME:
            raise _altered(table, found.reasons[0], hint)


def _require_carried(state: CloneState, altered: Mapping[int, AlteredTable], applied: Lsn) -> None:
    """Raise an error if a table was altered at the source and it is not known whether that was before the end."""
    for oid, found in altered.items():
        table = state.tables[oid]
        if compare(table.definition, found.definition).effect is not Effect.SAME:
            raise SourceAltered(
                f"table {table.name} was altered at the source, possibly after {applied}, where the clone is to end",
                "Retry the command, with a later `--endpos` or none.",
            )


def _altered(table: ClonedTable, reason: str, hint: str = CLONE_AGAIN) -> SourceAltered:
    return SourceAltered(f"table {table.name} was altered at the source since it was cloned: {reason}", hint)
