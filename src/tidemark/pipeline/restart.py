"""Restarts a mirror in place: a new slot, a new log, and every table is copied again.

This is for a mirror whose stream cannot be continued: its slot or its log is lost, or a publication may have left out
changes. The data in the lake stays readable up to one position. What was committed between that position and a table's
new copy is a gap.

Each step can be repeated, and the request for the restart is removed last. So after a crash at any point, the next
start tries again.

    request       records after which position the gap begins, and why; all later attempts use the same
    tables        each is readable up to there, and above only once it has begun again
    log, slot     the old ones are removed, then the new ones are created, as at a first start
    cycle         the lake continues from the position of the new slot
    request       is removed
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tidemark.clock import Lsn
from tidemark.errors import (
    LogDamaged,
    LogInUse,
    ObjectExists,
    PublicationDiffers,
    SlotAhead,
    SlotInvalidated,
    SlotMissing,
    SlotRecreated,
    SourceForked,
    Stopped,
    TidemarkError,
)
from tidemark.lake.commits import applied, is_there, opened
from tidemark.lake.copy_records import remove_records
from tidemark.lake.lake import Lake
from tidemark.lake.lock import WRITING, LakeLock
from tidemark.lake.paths import CHANGES
from tidemark.lake.registers import Cycle, Cycles, Tables, read_events, read_retained
from tidemark.lake.requests import Restart, read_restart
from tidemark.log.archive import parse_archive, store_segment, unarchived
from tidemark.log.disk import Disk
from tidemark.log.emptying import empty_log
from tidemark.log.mirror import LogMirror, read_mirror
from tidemark.log.recovery import last_position
from tidemark.log.writer import LogLock
from tidemark.pipeline.events import MirrorRestarted
from tidemark.pipeline.plan import PipelineOptions
from tidemark.postgres.catalog_reading import read_catalog_snapshot
from tidemark.postgres.identity import check_same, locate
from tidemark.postgres.session import Session
from tidemark.postgres.slot import SlotWait, drop_slot_when_free, read_slot
from tidemark.receive.beginning import mirror_of
from tidemark.receive.checks import check_marks, check_slot, check_source
from tidemark.receive.options import ReceiveOptions
from tidemark.receive.supervision import ORPHAN_S
from tidemark.schema.catalog_snapshot import CatalogSnapshot
from tidemark.schema.history import TableHistory
from tidemark.schema.reasons import restarted
from tidemark.schema.stream_tracker import StreamTracker
from tidemark.schema.tracker import SchemaLsns
from tidemark.storage.fail_points import FailPoint, fail_point

_PAUSE_S = 0.2
_BREAKS = (
    LogDamaged,
    PublicationDiffers,
    SlotAhead,
    SlotInvalidated,
    SlotMissing,
    SlotRecreated,
    SourceForked,
)


def restart_if_requested(
    options: PipelineOptions, stopping: Callable[[], bool] = lambda: False
) -> MirrorRestarted | None:
    """Execute the request for a restart, if there is one; the new log is stored in `options.log_folder`."""
    if read_restart(options.lake) is None:
        return None
    with ExitStack() as held:
        held.enter_context(LakeLock(options.lake, WRITING))
        request = read_restart(options.lake)
        if request is None:
            return None
        lake, disk = Lake.open(options.lake), Disk()
        folders = {options.log_folder, *([lake.log] if lake.log.exists() else [])}
        for folder in sorted(folders):
            disk.make_folder(folder)
            held.callback(_locked(folder, stopping).release)
        return _RestartAttempt(options.receive, lake, disk, stopping).run(request, folders)


class _RestartAttempt:
    """One attempt, with all locks held."""

    def __init__(self, receive: ReceiveOptions, lake: Lake, disk: Disk, stopping: Callable[[], bool]) -> None:
        self._receive, self._lake, self._disk, self._stopping = receive, lake, disk, stopping
        self._cycles = Cycles(lake.path)
        cycle, register = self._cycles.last, Tables(lake.path)
        lsns, publication = SchemaLsns(cycle.schema_lsn, cycle.behind), receive.names.publication
        self._tables = StreamTracker(read_events(lake.path), register.append, publication, lsns, cycle.applied_lsn)

    def run(self, request: Restart, folders: set[Path]) -> MirrorRestarted:
        receive, names = self._receive, self._receive.names
        with Session.open(receive.source, "restart") as session:
            source = check_source(session, receive.source, names, None, Lsn.ZERO)
            self._lake.require_own(source.identity)
            look = read_catalog_snapshot(session, names, self._tables.watched, lambda _: ())
            self._require_above(look.lsn)
            self._require_slot_is_ours(session)
            after, cause = self._decided(request, session, look)
            self._tables.restart(after, lambda upto: restarted(str(upto), cause))
            remove_records(self._lake.path)  # no log has all changes after their snapshots
            for folder in sorted(folders):
                self._archive(folder)
                empty_log(folder, self._disk, source.identity, names.mirror)
            fail_point(FailPoint.LOG_EMPTIED)
            drop_slot_when_free(session, names.slot)
            fail_point(FailPoint.SLOT_DROPPED)
        start = self._begun()
        fail_point(FailPoint.LOG_BEGUN)
        self._cycles.record(Cycle(start, after))
        Restart.remove(self._lake.path)
        return MirrorRestarted(start, names.slot, after)

    def _archive(self, folder: Path) -> None:
        """Archive the segments that are not yet, the last one included."""
        if self._receive.archive is not None:
            archive = parse_archive(self._receive.archive)
            for number in unarchived(folder, self._disk):
                store_segment(folder, self._disk, number, archive, self._stopping)

    def _decided(self, request: Restart, session: Session, look: CatalogSnapshot) -> tuple[Lsn, str]:
        """After which position the gap begins, and why: as an earlier attempt recorded it, or determined now."""
        if request.after is not None:
            return request.after, request.cause
        cause, same_history = self._cause(session)
        after = self._tables.readable_upto(self._cycles.last.applied_lsn, look if same_history else None)
        replace(request, after=after, cause=cause).write(self._lake.path)
        fail_point(FailPoint.RESTART_DECIDED)
        return after, cause

    def _cause(self, session: Session) -> tuple[str, bool]:
        """Why the stream cannot be continued, if it cannot; and whether the source has all commits of the lake."""
        receive, names = self._receive, self._receive.names
        same_history = False
        try:
            mirror = self._old_mirror()
            check_same(
                mirror.identity, locate(session, receive.source, may_replicate=True), self._lake.cycle().applied_lsn
            )
            same_history = True
            position = last_position(self._lake.log, self._disk)
            check_marks(session, names, mirror.marks)
            check_slot(session, names, position)
        except _BREAKS as error:
            return error.message, same_history
        except TidemarkError:
            pass
        return "as requested", same_history

    def _old_mirror(self) -> LogMirror:
        mirror = read_mirror(self._lake.log, self._disk) if self._lake.log.exists() else None
        if mirror is None:
            raise LogDamaged(f"the log at {self._lake.log} does not exist")
        return mirror

    def _begun(self) -> Lsn:
        """Create the new slot and the new log; return the position at which it begins."""
        wait = SlotWait(self._receive.slot_wait_s, self._stopping)
        return mirror_of(self._receive, self._disk, wait).start or Lsn.ZERO

    def _require_above(self, position: Lsn) -> None:
        """Refuse a source that is behind the lake: it would assign the same LSNs to other commits."""
        highest = max([*self._cycles_reach(), *(self._reach(each) for each in self._tables.histories.values())])
        if position < highest:
            advance = (
                f"DO $$BEGIN WHILE pg_current_wal_lsn() <= '{highest}' LOOP "
                "PERFORM pg_logical_emit_message(false, 'tidemark', ''), pg_switch_wal(); END LOOP; END$$;"
            )
            raise SourceForked(
                f"the source is at {position}, before the last LSN in the lake ({highest}): it was restored to an "
                "earlier state, and would assign the same LSNs to other commits",
                f"Run `{advance}` at the source and retry the command, or run `tidemark sync SOURCE LAKE` with another "
                "directory.",
            )

    def _cycles_reach(self) -> tuple[Lsn, ...]:
        last = self._cycles.last
        return last.applied_lsn, last.schema_lsn, read_retained(self._lake.path)

    def _reach(self, history: TableHistory) -> Lsn:
        folder = self._lake.path / history.path / CHANGES
        changed = applied(opened(folder)) if is_there(folder) else Lsn.ZERO
        return max(changed, *(max(event.lsn, event.after) for event in history.events))

    def _require_slot_is_ours(self, session: Session) -> None:
        (database,) = session.row("select current_database()")
        slot = read_slot(session, self._receive.names.slot)
        if slot is not None and slot.database != database:
            raise ObjectExists(
                f'replication slot {slot.name} belongs to database "{slot.database}", not to "{database}"',
                f"If the slot is not used, run `SELECT pg_drop_replication_slot('{slot.name}');` and retry.",
            )


def _locked(folder: Path, stopping: Callable[[], bool]) -> LogLock:
    """The lock of a log. The receiver of a pipeline that was killed may hold it for some seconds, so this waits."""
    until = time.monotonic() + ORPHAN_S
    while True:
        try:
            return LogLock(folder)
        except LogInUse:
            if time.monotonic() > until:
                raise
        if stopping():
            raise Stopped("stopped while waiting for the lock of the log; nothing was changed")
        time.sleep(_PAUSE_S)
