"""The change from the stream to polling, on request: `--mode poll` for a mirror that follows the stream.

It does not need logical decoding, which the source may have lost. What was applied stays readable, and the first poll
copies every table. Until that poll is recorded, the request for a restart remains in the lake, so that a mirror that is
not polled after all is restarted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from tidemark.clock import Lsn
from tidemark.errors import NotPermitted
from tidemark.lake.registers import Cycle
from tidemark.lake.requests import Restart, read_restart
from tidemark.logs import fields
from tidemark.pipeline.plan import PipelineOptions
from tidemark.pipeline.stream_end import stream_end
from tidemark.postgres.identity import locate
from tidemark.postgres.session import Session
from tidemark.postgres.slot import drop_slot_when_free, read_slot
from tidemark.schema.reasons import polled_since

_LOGGER = logging.getLogger("tidemark.pipeline")
_MAY_DROP = "select rolsuper or rolreplication from pg_roles where rolname = current_user"


def leave_stream(options: PipelineOptions, stopping: Callable[[], bool]) -> None:
    """End the stream of a mirror; what it applied stays readable."""
    slot = options.names.slot
    with stream_end(options, stopping) as end, Session.open(options.source, "poll") as session:
        source = locate(session, options.source, may_replicate=False)
        end.lake.require_own(source.identity)
        end.require_slot_is_ours(session)
        _drop(session, slot)  # the only step that may be refused
        request = read_restart(options.lake) or Restart(datetime.now(UTC).isoformat(timespec="seconds"))
        applied_lsn = end.cycles.last.applied_lsn
        request = end.decided(request, lambda: (end.tables.readable_upto(applied_lsn, None), "polling was requested"))
        after = request.after or Lsn.ZERO
        end.end(session, source.identity, after, lambda upto: polled_since(str(upto)))
        end.cycles.record(Cycle(max(source.position, end.highest), after))
    _LOGGER.info(
        "changed from logical decoding to polling: replication slot %s is dropped, and changes committed after %s and "
        "before the first poll are missing",
        slot,
        after,
        extra=fields(slot=slot, lsn=after),
    )


def _drop(session: Session, slot: str) -> None:
    if read_slot(session, slot) is None:
        return
    if not session.row(_MAY_DROP)[0]:
        raise NotPermitted(
            f"the role cannot drop replication slot {slot}, which would retain WAL while the mirror is polled",
            f"Have a superuser run `SELECT pg_drop_replication_slot('{slot}');` and retry the command.",
        )
    drop_slot_when_free(session, slot)
