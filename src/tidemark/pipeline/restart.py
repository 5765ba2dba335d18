"""Restarts a mirror in place: a new slot, a new log, and every table is copied again.

This is for a mirror whose stream cannot be continued: its slot or its log is lost, or a publication may have left out
changes. First the old stream ends (`stream_end.py`). Then the new slot and the new log are created, as at a first
start, the lake continues from the position of the slot, and the request is removed.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemark.clock import Lsn
from tidemark.errors import (
    LogDamaged,
    PublicationDiffers,
    SlotAhead,
    SlotInvalidated,
    SlotMissing,
    SlotRecreated,
    SourceForked,
    TidemarkError,
)
from tidemark.lake.registers import Cycle
from tidemark.lake.requests import Restart, read_restart
from tidemark.log.mirror import LogMirror, read_mirror
from tidemark.log.recovery import last_position
from tidemark.pipeline.events import MirrorRestarted
from tidemark.pipeline.plan import PipelineOptions
from tidemark.pipeline.stream_end import StreamEnd, stream_end
from tidemark.postgres.catalog_reading import read_catalog_snapshot
from tidemark.postgres.identity import check_same, locate
from tidemark.postgres.session import Session
from tidemark.postgres.slot import SlotWait
from tidemark.receive.beginning import mirror_of
from tidemark.receive.checks import check_marks, check_slot, check_source
from tidemark.receive.options import ReceiveOptions
from tidemark.schema.catalog_snapshot import CatalogSnapshot
from tidemark.schema.reasons import restarted
from tidemark.storage.fail_points import FailPoint, fail_point

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
    with stream_end(options, stopping) as end:
        request = read_restart(options.lake)
        return _RestartAttempt(options.receive, end, stopping).run(request) if request is not None else None


class _RestartAttempt:
    """One attempt, with all locks held."""

    def __init__(self, receive: ReceiveOptions, end: StreamEnd, stopping: Callable[[], bool]) -> None:
        self._receive, self._end, self._stopping = receive, end, stopping
        self._lake, self._disk = end.lake, end.disk

    def run(self, request: Restart) -> MirrorRestarted:
        receive, names, end = self._receive, self._receive.names, self._end
        with Session.open(receive.source, "restart") as session:
            source = check_source(session, receive.source, names, None, Lsn.ZERO)
            self._lake.require_own(source.identity)
            catalog = read_catalog_snapshot(session, names, end.tables.watched, lambda _: ())
            self._require_above(catalog.lsn)
            end.require_slot_is_ours(session)
            request = end.decided(request, lambda: self._decide(session, catalog))
            after, cause = request.after or Lsn.ZERO, request.cause
            end.end(session, source.identity, after, lambda upto: restarted(str(upto), cause))
        start = self._begun()
        fail_point(FailPoint.LOG_BEGUN)
        end.cycles.record(Cycle(start, after))
        Restart.remove(self._lake.path)
        return MirrorRestarted(start, names.slot, after)

    def _decide(self, session: Session, catalog: CatalogSnapshot) -> tuple[Lsn, str]:
        """After which position the gap begins, and why."""
        cause, same_history = self._cause(session)
        applied_lsn = self._end.cycles.last.applied_lsn
        return self._end.tables.readable_upto(applied_lsn, catalog if same_history else None), cause

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
        highest = self._end.highest
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
