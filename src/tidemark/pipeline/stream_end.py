"""The end of a mirror's stream, before the mirror is restarted or polled.

The data in the lake stays readable up to one position. What was committed between that position and a table's new copy
is a gap. Each step can be repeated, and the request for the restart is removed last. So after a crash at any point, the
next start tries again.

    request       records after which position the gap begins, and why; all later attempts use the same
    tables        each is readable up to there, and above only once it has begun again
    log, slot     are removed; the directory of the log is kept, empty
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from tidemark.clock import Lsn
from tidemark.errors import LogInUse, ObjectExists, Stopped, TidemarkError
from tidemark.lake.commits import applied, is_there, opened
from tidemark.lake.copy_records import remove_records
from tidemark.lake.lake import Lake
from tidemark.lake.lock import WRITING, LakeLock
from tidemark.lake.paths import CHANGES
from tidemark.lake.registers import Cycles, Tables, read_events, read_retained
from tidemark.lake.requests import Restart
from tidemark.log.archive import parse_archive, store_segment, unarchived
from tidemark.log.disk import Disk
from tidemark.log.emptying import empty_log
from tidemark.log.recovery import last_position
from tidemark.log.writer import LogLock
from tidemark.pipeline.plan import PipelineOptions
from tidemark.postgres.identity import Identity
from tidemark.postgres.session import Session
from tidemark.postgres.slot import drop_slot_when_free, read_slot
from tidemark.receive.supervision import ORPHAN_S
from tidemark.schema.history import TableHistory
from tidemark.schema.reasons import Reason
from tidemark.schema.stream_tracker import StreamTracker
from tidemark.schema.tracker import SchemaLsns
from tidemark.storage.fail_points import FailPoint, fail_point

_PAUSE_S = 0.2


@contextmanager
def stream_end(options: PipelineOptions, stopping: Callable[[], bool]) -> Iterator[StreamEnd]:
    """Take the locks of the lake and of its logs: the present one, and that in `options.log_folder`."""
    with ExitStack() as held:
        held.enter_context(LakeLock(options.lake, WRITING))
        lake, disk = Lake.open(options.lake), Disk()
        folders = sorted({options.log_folder, *([lake.log] if lake.log.exists() else [])})
        for folder in folders:
            disk.make_folder(folder)
            held.callback(_locked(folder, stopping).release)
        yield StreamEnd(options, lake, disk, folders, stopping)


class StreamEnd:
    """One attempt, with all locks held."""

    def __init__(
        self, options: PipelineOptions, lake: Lake, disk: Disk, folders: list[Path], stopping: Callable[[], bool]
    ) -> None:
        self.lake, self.disk = lake, disk
        self._receive, self._folders, self._stopping = options.receive, folders, stopping
        self.cycles = Cycles(lake.path)
        cycle, register = self.cycles.last, Tables(lake.path)
        lsns, publication = SchemaLsns(cycle.schema_lsn, cycle.behind), options.names.publication
        self.tables = StreamTracker(read_events(lake.path), register.append, publication, lsns, cycle.applied_lsn)

    def decided(self, request: Restart, decide: Callable[[], tuple[Lsn, str]]) -> Restart:
        """Return the request with its position and cause: as an earlier attempt recorded them, or decided now."""
        if request.after is not None:
            return request
        after, cause = decide()
        request = replace(request, after=after, cause=cause)
        request.write(self.lake.path)
        fail_point(FailPoint.RESTART_DECIDED)
        return request

    def end(self, session: Session, identity: Identity, after: Lsn, reason: Callable[[Lsn], Reason]) -> None:
        """Record where the tables end, then remove the log and the slot."""
        names = self._receive.names
        self.tables.restart(after, reason)
        remove_records(self.lake.path)  # no log has all changes after their snapshots
        for folder in self._folders:
            self._archive(folder)
            empty_log(folder, self.disk, identity, names.mirror)
        fail_point(FailPoint.LOG_EMPTIED)
        drop_slot_when_free(session, names.slot)
        fail_point(FailPoint.SLOT_DROPPED)

    @property
    def highest(self) -> Lsn:
        """The highest LSN that the lake has, or that a read could use: the log is read too."""
        last = self.cycles.last
        reached = (self._reach(each) for each in self.tables.histories.values())
        return max([last.applied_lsn, last.schema_lsn, read_retained(self.lake.path), self._received, *reached])

    @property
    def _received(self) -> Lsn:
        try:
            return last_position(self.lake.log, self.disk) or Lsn.ZERO
        except TidemarkError:
            return Lsn.ZERO  # a damaged log cannot be read

    def require_slot_is_ours(self, session: Session) -> None:
        """Refuse a slot of another database."""
        (database,) = session.row("select current_database()")
        slot = read_slot(session, self._receive.names.slot)
        if slot is not None and slot.database != database:
            raise ObjectExists(
                f'replication slot {slot.name} belongs to database "{slot.database}", not to "{database}"',
                f"If the slot is not used, run `SELECT pg_drop_replication_slot('{slot.name}');` and retry.",
            )

    def _archive(self, folder: Path) -> None:
        """Archive the segments that are not yet, the last one included."""
        if self._receive.archive is not None:
            archive = parse_archive(self._receive.archive)
            for number in unarchived(folder, self.disk):
                store_segment(folder, self.disk, number, archive, self._stopping)

    def _reach(self, history: TableHistory) -> Lsn:
        folder = self.lake.path / history.path / CHANGES
        changed = applied(opened(folder)) if is_there(folder) else Lsn.ZERO
        return max(changed, *(max(event.lsn, event.after) for event in history.events))


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
