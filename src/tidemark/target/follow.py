"""Following: the received log is applied to the target, whole transactions in commit order, until it is stopped.

The progress is recorded at the target, in the transactions that make it. So after a crash or a lost connection, also
between COMMIT and its answer, following continues from there. The receiver may remove what the target has had for an
hour, or is 1 GB behind, so a standby of the target that is promoted while it is behind is caught up too.

A comparison can hold the target at an LSN for a moment: a batch that ends above it is rolled back and planned again.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from psycopg import sql

from tidemark.clock import Lsn
from tidemark.errors import (
    LogBehind,
    LogTrimmed,
    ReceiveFailed,
    Retry,
    SourceAltered,
    SourceError,
    TargetBehind,
    TargetDiffers,
    TargetError,
    TargetInUse,
    policy_of,
)
from tidemark.log.disk import Disk
from tidemark.log.forgotten import read_forgotten_lsn
from tidemark.log.reader import LogReader
from tidemark.log.slices import SlicePlan, plan
from tidemark.log.trimming import forget
from tidemark.logs import fields
from tidemark.pipeline.copy.snapshots import LOG_WAIT_S
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.identity import Identity
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.sqlstate import Endpoint, translated
from tidemark.receive.client import ReceiveClient
from tidemark.restarts import next_pause_s
from tidemark.schema.fingerprint import Effect, Fingerprint, compare
from tidemark.schema.relation import Relation, columns_of
from tidemark.storage.fail_points import CloneFailPoint, fail_point
from tidemark.target.alterations import AlteredTable, alterations, described, gone_names, obstacle
from tidemark.target.copying import has_own_rows
from tidemark.target.differences import Differences
from tidemark.target.merging import MergedCounts
from tidemark.target.obstacles import require_direct, require_no_obstacles
from tidemark.target.source_rows import ATTEMPTS, SourceRows, exact_source, read_definition
from tidemark.target.source_tables import CARRY_OR_CLONE_AGAIN, CLONE_AGAIN, Carrying
from tidemark.target.state import ClonedTable, ClonePhase, CloneRecord, CloneState, Held, commit_durably
from tidemark.target.tables import read_tables, target_table
from tidemark.target.writer import FollowedTable, TargetWriter

BATCH_BYTES, SLICE_BYTES = 32 << 20, 32 << 20
WAIT_S, HELD_S, REPORT_S = 0.5, 0.02, 1.0
FIRST_PAUSE_S, MOST_PAUSE_S = 0.2, 10.0
FORGET_S = 60.0  # after this time, indexes of segments that were removed are removed too
STAGES_S = 3600.0  # after this time, stages are dropped and created again
KEEP_S, KEEP_BYTES = 3600.0, 1 << 30  # how long the log is kept after it was applied, and how much of the WAL
_WRITING = Timeouts(lock_s=60.0, statement_s=0, idle_in_transaction_s=0)
# A table with pending checks of deferred constraints cannot be altered.
_NOTHING_PENDING = ("set constraints all immediate", "set constraints all deferred")
_NOT_AT_END = (
    "To repair it, the source is read as of a later position than `--endpos`: run `tidemark clone` with `--follow` and "
    "without `--endpos` until it is repaired."
)
_LOGGER = logging.getLogger("tidemark.target")


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """The log of a source, the target, and the name of the clone there.

    Rows of the target that do not fit the changes are repaired from the source `repair_from`, if that is given. Changes
    of columns are carried if `carrying` is given.
    """

    source: Identity
    target: Dsn
    name: str
    log: Path
    repair_from: Dsn | None = None
    carrying: Carrying | None = None


class CloneFollower:
    """One connection to the target, and what it has of the log."""

    def __init__(self, options: FollowOptions, session: Session, state: CloneState, record: CloneRecord) -> None:
        self._options, self._session, self._record = options, session, record
        self.applied_lsn = state.needed_lsn or Lsn.ZERO
        self._first, self._recorded, self._hold = self.applied_lsn, state.applied_lsn, state.hold_lsn
        self._reader = LogReader(options.log)
        self._tables = dict(state.tables)
        self._known: dict[Relation, FollowedTable | None] = {}
        self._carried: list[str] = []
        self._writer = TargetWriter(session, self._followed)
        self._client: ReceiveClient | None = None
        self._reported_at = self._forgot_at = 0.0
        self._dropped_at = time.monotonic()
        self._reports = deque([(time.monotonic(), Lsn.ZERO)])

    @classmethod
    def open(cls, options: FollowOptions) -> Self:
        """Connect, take the lock of the clone and read its state."""
        session = Session.open(options.target, "clone", _WRITING, server=Endpoint.TARGET)
        try:
            require_direct(session)
            record = CloneRecord(session, options.name)
            record.lock()
            commit_durably(session)
            state = record.existing(options.source)
            _require_copied(options.name, state.phase)
            _require_no_obstacles(session, state.tables)
            return cls(options, session, state, record)
        except BaseException:
            session.close()
            raise

    def check_target(self) -> None:
        """Raise TargetTableUnfit if a trigger, rule or foreign key of the target acts on what is written."""
        _require_no_obstacles(self._session, self._tables)

    def step(self, endpos: Lsn | None = None) -> MergedCounts | None:
        """Apply a batch of what was received, up to `endpos`; None if nothing was applied."""
        self._reader.refresh()
        if self._hold is not None:
            self._hold = self._record.hold_lsn()
        upto = min(each for each in (self._reader.received, endpos, self._hold) if each is not None)
        merged = None
        if upto > self.applied_lsn:
            planned = self._planned(upto, BATCH_BYTES)
            if planned.transactions:
                tables = dict(self._tables)
                try:
                    planned, merged = self._written(planned, endpos)
                except Held:
                    self._take_back(tables)
                    self._hold = self._record.hold_lsn()
                    return None
                if self._is_recorded(merged):
                    self._recorded = planned.upto
                fail_point(CloneFailPoint.BATCH_COMMITTED)
            self.applied_lsn = planned.upto
            self._report_carried()
        self.carry_altered()
        if self._hold is not None and self._recorded != self._hold:
            self.settle()
        self._report()
        return merged

    def carry_altered(self) -> None:
        """Alter tables of which no change was received since they were altered at the source.

        A table that was only rewritten, as by TRUNCATE, gets a new recorded definition.
        """
        altered = self._options.carrying.altered if self._options.carrying is not None else {}
        for oid in [oid for oid, table in altered.items() if table.lsn <= self.applied_lsn]:
            found = altered.pop(oid)
            table = self._tables.get(oid)
            if table is None:
                continue
            with translated("altering a table at the target"), self._session.connection.transaction():
                if compare(table.definition, found.definition).effect is Effect.SAME:
                    self._redefine(table, found.definition)
                else:
                    self._alter(table, found, found.definition)
        self._report_carried()

    def _planned(self, upto: Lsn, most_bytes: int) -> SlicePlan:
        self._require_listed()
        try:
            return plan(self._reader, self.applied_lsn, upto, most_bytes, SLICE_BYTES)
        except LogTrimmed as error:
            raise self._trimmed() from error

    def _written(self, planned: SlicePlan, endpos: Lsn | None) -> tuple[SlicePlan, MergedCounts]:
        """Write a batch; if the target differs and is to be repaired, a larger one, up to the present of the source."""
        tables = dict(self._tables)
        try:
            return planned, self._writer.write(
                planned, self._options.log, lambda merged: self._record_batch(merged, planned.upto)
            )
        except TargetDiffers as error:
            self._take_back(tables)
            if self._options.repair_from is not None:
                _LOGGER.warning("%s; repairing it", error.message)
                return self._repaired(self._options.repair_from, planned, error, endpos)
            raise self._explained(planned, error) from error.__cause__

    def _explained(self, planned: SlicePlan, error: TargetDiffers) -> TargetDiffers:
        """Add to an error which rows do not fit, unless the server has named the row."""
        if error.__cause__ is not None:
            return error
        found = self._writer.unfit(planned, self._options.log).repairs()
        return TargetDiffers("; ".join([error.message, *(each.unfit() for each in found)]), error.hint)

    def _require_listed(self) -> None:
        """Raise an error if commits that the target lacks were removed from the index, which is read before this."""
        if read_forgotten_lsn(self._options.log, Disk()) > self.applied_lsn:
            raise self._trimmed()

    def _trimmed(self) -> LogTrimmed:
        return LogTrimmed(
            f"the target has the changes up to {self.applied_lsn}, and the log no longer has those after it: the "
            "target has lost changes, such as a standby that was promoted while it was behind",
            CLONE_AGAIN,
        )

    def _take_back(self, tables: Mapping[int, ClonedTable]) -> None:
        """Restore the definitions of before a batch that was rolled back."""
        self._tables = dict(tables)
        self._known.clear()
        self._carried.clear()

    def _repaired(
        self, source: Dsn, failed: SlicePlan, error: TargetDiffers, endpos: Lsn | None
    ) -> tuple[SlicePlan, MergedCounts]:
        with exact_source(source, self._options.log) as snapshot, snapshot.shared.session("clone") as session:
            upto = min(snapshot.base.lsn, self._received(snapshot.base.lsn))
            self._reader.refresh()
            if endpos is not None and endpos < upto:
                if self._reader.count(endpos, upto):
                    raise TargetDiffers(self._explained(failed, error).message, _NOT_AT_END) from error
                upto = endpos
            planned = self._planned(upto, sys.maxsize)
            rows = SourceRows(session, {table.name: table.definition for table in self._tables.values()})

            def record(merged: MergedCounts, found: Differences) -> None:
                for repair in found.repairs():
                    self._record.add_repair(repair, planned.upto)
                self._record_batch(merged, planned.upto)

            merged, found = self._writer.repair(planned, self._options.log, record, rows.read)
        for repair in found.repairs():
            _LOGGER.warning("%s", repair, extra=fields(table=repair.table, rows=repair.rows, lsn=planned.upto))
        return planned, merged

    def _received(self, lsn: Lsn) -> Lsn:
        """Wait until the log has everything up to `lsn`, also through a restart of the receiver."""
        deadline = time.monotonic() + LOG_WAIT_S
        while True:
            try:
                return self._receiver().wait(lsn, WAIT_S)
            except LogBehind:
                if time.monotonic() > deadline:
                    raise
            except ReceiveFailed:
                self._leave_receiver()
                if time.monotonic() > deadline:
                    raise
                time.sleep(WAIT_S)

    @property
    def tables(self) -> Mapping[int, ClonedTable]:
        """The tables of the clone, with the definitions that they have at the target."""
        return self._tables

    @property
    def received_lsn(self) -> Lsn:
        """The LSN up to which the log has all changes, as last read."""
        return self._reader.received

    def wait(self, endpos: Lsn | None = None) -> None:
        """Wait until there is more, but not for long. Without an end to reach, nothing is requested from the source."""
        if self._hold is not None and self.applied_lsn >= self._hold:
            time.sleep(HELD_S)
            return
        try:
            following = Lsn(self.applied_lsn.value + 1)
            if self._hold is None and endpos is None:
                self._receiver().follow(following, WAIT_S)
            else:
                self._receiver().wait(self._hold or following, WAIT_S)
        except LogBehind:
            pass
        except ReceiveFailed:
            self._leave_receiver()
            time.sleep(WAIT_S)

    def settle(self) -> None:
        """Record progress that no change has recorded, up to the LSN of a hold."""
        upto = self.applied_lsn if self._hold is None else min(self.applied_lsn, self._hold)
        if upto >= self._first and upto != self._recorded:
            try:
                self._advance(upto)
            except Held:
                self._hold = self._record.hold_lsn()
            else:
                self._recorded = upto

    def close(self) -> None:
        """Close the connections."""
        self._leave_receiver()
        self._record.unlock()
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    def _is_recorded(self, merged: MergedCounts) -> bool:
        """Whether the progress is part of a batch. If the batch writes nothing, `settle` records it later."""
        return not merged.is_empty or bool(self._carried)

    def _record_batch(self, merged: MergedCounts, upto: Lsn) -> None:
        if self._is_recorded(merged):
            self._advance(upto)

    def _advance(self, upto: Lsn) -> None:
        fail_point(CloneFailPoint.BATCH_WRITTEN)
        self._record.advance(self._recorded, upto, self._reader.received)

    def _report(self) -> None:
        """Report to the receiver, once in a while, which segments of the log the target no longer needs."""
        if time.monotonic() < self._reported_at + REPORT_S:
            return
        self._hold = self._record.hold_lsn()  # while the source is idle, no batch finds it
        self.settle()
        self._reported_at = time.monotonic()
        try:
            self._receiver().applied(self._recorded or self._first, self._kept())
        except ReceiveFailed:
            self._leave_receiver()
        if time.monotonic() >= self._forgot_at + FORGET_S:
            forget(self._options.log, self._kept(), dry_run=False)
            self._forgot_at = time.monotonic()
        if time.monotonic() >= self._dropped_at + STAGES_S:
            self._writer.drop_stages()
            self._dropped_at = time.monotonic()

    def _kept(self) -> Lsn:
        """The LSN above which the log is kept: what the target had `KEEP_S` ago, but not more than `KEEP_BYTES`."""
        now, applied = time.monotonic(), self._recorded or self._first
        if now >= self._reports[-1][0] + KEEP_S / 60:
            self._reports.append((now, applied))
        while len(self._reports) > 1 and self._reports[1][0] <= now - KEEP_S:
            self._reports.popleft()
        return max(self._reports[0][1], Lsn(max(0, applied.value - KEEP_BYTES)))

    def _receiver(self) -> ReceiveClient:
        if self._client is None:
            self._client = ReceiveClient(self._options.log)
        return self._client

    def _leave_receiver(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _followed(self, relation: Relation) -> FollowedTable | None:
        if relation not in self._known:
            table = self._tables.get(relation.oid)
            if table is not None and columns_of(relation, table.definition) is None:
                table = self._carry(relation, table)
            self._known[relation] = followed_table(self._session, relation, table) if table is not None else None
        return self._known[relation]

    def _carry(self, relation: Relation, table: ClonedTable) -> ClonedTable:
        """Alter a table as its description in the stream requires; return it unchanged if that is not possible."""
        carrying = self._options.carrying
        if carrying is None or table.base is None:
            return table
        with Session.open(carrying.source, "clone") as session:
            for _ in range(ATTEMPTS):  # a commit is received slightly before it is visible
                found = read_definition(session, relation.oid, table.definition.publications)
                if compare(table.definition, found.definition if found else None).effect is not Effect.SAME:
                    break
                time.sleep(FIRST_PAUSE_S)
        reason = obstacle(table.definition, found)
        definition = described(relation, table.definition, found.definition) if found and not reason else None
        if found is None or definition is None:
            why = reason or "it was altered several times, and the definition in between is not known"
            raise SourceAltered(f"table {table.name} was altered at the source: {why}", CLONE_AGAIN)
        carrying.altered.pop(relation.oid, None)
        return self._alter(table, found, definition)

    def _alter(self, table: ClonedTable, found: AlteredTable, definition: Fingerprint) -> ClonedTable:
        """Change the columns of a table, and its recorded definition, in the current transaction."""
        self._require_unused(table, definition)
        self._writer.flush()
        statements = [each.as_string(None) for each in alterations(table.definition, definition, found.columns)]
        text = "; ".join(statements)
        try:
            for statement in (*_NOTHING_PENDING, *statements):
                self._session.execute(sql.SQL("{}").format(sql.SQL(statement)), f"altering {table.name}")
        except SourceError as error:
            if policy_of(error).retry is not Retry.NEVER:
                raise
            raise SourceAltered(
                f"table {table.name} was altered at the source, and the target cannot be altered: {error.message}",
                f"Remove the cause at the target, and retry the command, which runs `{text}`.",
            ) from error
        self._carried.append(f"table {table.name} was altered as at the source: {text}")
        self._known = {each: known for each, known in self._known.items() if each.oid != definition.oid}
        return self._redefine(table, definition)

    def _redefine(self, table: ClonedTable, definition: Fingerprint) -> ClonedTable:
        self._record.add_table(definition)
        self._tables[definition.oid] = replace(table, definition=definition)
        return self._tables[definition.oid]

    def _require_unused(self, table: ClonedTable, definition: Fingerprint) -> None:
        """Refuse to rename or drop a column that the statements which complete the clone may use."""
        gone = gone_names(table.definition, definition)
        text = self._options.carrying.later() if gone and self._options.carrying is not None else ""
        for name in gone:
            if re.search(rf"(?<!\w){re.escape(name.replace(chr(34), 2 * chr(34)))}(?!\w)", text):
                raise SourceAltered(
                    f"column {name!r} of table {table.name} was renamed or dropped at the source, and a foreign key, "
                    "trigger, policy or privilege that is created when the clone is completed may use it",
                    CLONE_AGAIN,
                )

    def _report_carried(self) -> None:
        for message in self._carried:
            _LOGGER.warning("%s; constraints and indexes of columns that were added are not carried", message)
        self._carried.clear()


def _require_copied(name: str, phase: ClonePhase) -> None:
    """Refuse a clone that is not ready, as after a failover of the target to a standby that was behind."""
    if phase is not ClonePhase.FOLLOW:
        raise TargetBehind(
            f"clone {name} at the target is in phase {phase.value}, in which no changes are applied",
            "Run the command again, which continues from there.",
        )


def _require_no_obstacles(session: Session, tables: Mapping[int, ClonedTable]) -> None:
    definitions = [table.definition for table in tables.values() if has_own_rows(table.definition)]
    with session.transaction():
        require_no_obstacles(session, [(each.schema, each.name) for each in definitions])


def followed_table(session: Session, relation: Relation, table: ClonedTable) -> FollowedTable:
    """Return the table of a relation, if the relation is that of the definition that was copied."""
    name, definition = (table.definition.schema, table.definition.name), table.definition
    if table.base is None or columns_of(relation, definition) is None:
        raise SourceAltered(
            f"table {table.name} was altered at the source after it was copied",
            CARRY_OR_CLONE_AGAIN,
        )
    names = [column.name for column in relation.columns]
    return FollowedTable(target_table(definition, names, read_tables(session, [name]).get(name)), table.base)


def follow(
    options: FollowOptions,
    endpos: Lsn | None,
    stopping: Callable[[], bool],
    watch: Callable[[CloneFollower, MergedCounts | None], None] = lambda _, __: None,
) -> Lsn:
    """Follow until `endpos` is applied or it is stopped; return the applied LSN. `watch` is called after each batch.

    A lost connection and other temporary errors are waited out, with a growing pause.
    """
    pause_s, had_lock = FIRST_PAUSE_S, False
    while True:
        try:
            with CloneFollower.open(options) as following:
                had_lock = True
                while not (stopping() or (endpos is not None and following.applied_lsn >= endpos)):
                    merged = following.step(endpos)
                    if merged is None:
                        following.wait(endpos)
                    watch(following, merged)
                    pause_s = FIRST_PAUSE_S
                following.carry_altered()
                following.settle()
                return following.applied_lsn
        except (SourceError, TargetError) as error:
            ours = had_lock and isinstance(error, TargetInUse)  # the server has not noticed that a connection is lost
            if (policy_of(error).retry is Retry.NEVER and not ours) or stopping():
                raise
            _LOGGER.warning("%s; retrying in %.1f s", error.message, pause_s, extra=fields(pause_s=pause_s))
            time.sleep(pause_s)
            pause_s = next_pause_s(pause_s, FIRST_PAUSE_S, MOST_PAUSE_S)
