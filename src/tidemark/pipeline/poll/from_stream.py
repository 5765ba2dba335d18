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
from tidemark.errors import InvalidValue, NotPermitted, NotTheSameSource, TidemarkError
from tidemark.lake.registers import Cycle
from tidemark.lake.requests import Restart, read_restart
from tidemark.logs import fields
from tidemark.pipeline.plan import PipelineOptions
from tidemark.pipeline.stream_end import StreamEnd, stream_end
from tidemark.postgres.identity import locate
from tidemark.postgres.session import Session
from tidemark.postgres.slot import drop_slot_when_free
from tidemark.schema.reasons import polled_since

_LOGGER = logging.getLogger("tidemark.pipeline")


def leave_stream(options: PipelineOptions, stopping: Callable[[], bool]) -> None:
    """End the stream of a mirror; what it applied stays readable."""
    slot, begun = options.names.slot, read_restart(options.lake)
    with stream_end(options, stopping) as end, Session.open(options.source, "poll") as session:
        source = locate(session, options.source, may_replicate=False)
        end.lake.require_own(source.identity)
        _require_names(end, options)
        _require_primary(session)
        end.require_slot_is_ours(session)
        highest, applied_lsn = end.highest, end.cycles.last.applied_lsn
        request = begun or Restart(datetime.now(UTC).isoformat(timespec="seconds"))
        request = end.decided(request, lambda: (end.tables.readable_upto(applied_lsn, None), "polling was requested"))
        try:
            drop_slot_when_free(session, slot)
        except TidemarkError as error:
            if begun is None:
                Restart.remove(options.lake)  # nothing has changed
            if not isinstance(error, NotPermitted):
                raise
            raise NotPermitted(
                f"the role cannot drop replication slot {slot}, which would retain WAL while the mirror is polled: "
                f"{error.message}",
                f"Have a role that may use replication slots run `SELECT pg_drop_replication_slot('{slot}');` and "
                "retry the command.",
            ) from error
        after = request.after or Lsn.ZERO
        end.end(session, source.identity, after, lambda upto: polled_since(str(upto)))
        end.cycles.record(Cycle(max(source.position, highest), after))
    _LOGGER.warning(
        "changed from logical decoding to polling: replication slot %s was dropped, and changes committed after %s and "
        "before the first poll are missing",
        slot,
        after,
        extra=fields(slot=slot, lsn=after),
    )


def _require_names(end: StreamEnd, options: PipelineOptions) -> None:
    """Refuse other names than those of the mirror, whose slot would remain at the source."""
    if end.lake.mirror != options.names.mirror:
        raise NotTheSameSource(
            f"{end.lake.path} is the lake of mirror {end.lake.mirror!r}, not of {options.names.mirror!r}",
            f"Use `--name {end.lake.mirror}`.",
        )


def _require_primary(session: Session) -> None:
    """Refuse a standby: the slot is at the primary, and the standby may lag behind what the mirror has."""
    if session.row("select pg_is_in_recovery()")[0]:
        raise InvalidValue(
            "the mirror follows the stream, and SOURCE is a standby: the replication slot at the primary would remain",
            "Use the primary as SOURCE for the first `tidemark sync --mode poll`. Then the standby can be polled.",
        )
