"""Whether a mirror is well: its pipeline runs, is not too far behind, its slot is in order, and its disk has room."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tidemark.lake.pipeline_state import MISSING, PipelineState, State
from tidemark.lake.status import LakeStatus
from tidemark.units import format_duration, format_size

SCARCE_BYTES = 64 << 20  # with less free space, files of the next cycle or the next segment of the log may not fit
SILENT_S = 300.0  # a pipeline that reports nothing for this time does not progress
_BAD = ("unreserved", "lost", MISSING)


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """The largest lag that is accepted; None for any."""

    lag_s: float | None = None
    lag_bytes: int | None = None


def problems_of(found: LakeStatus, limits: HealthLimits, now: datetime | None = None) -> list[str]:
    """Return what an operator must know, or nothing."""
    return list(_problems(found, limits, now or datetime.now(UTC)))


def is_silent(found: LakeStatus, now: datetime | None = None) -> bool:
    """Return whether a running pipeline has not reported for so long that it may hang."""
    state = found.pipeline
    if state is None or not found.is_running:
        return False
    return _age_s(state.reported_at, now or datetime.now(UTC)) > SILENT_S


def lag_s(found: LakeStatus, now: datetime | None = None) -> float | None:
    """Return how old the mirror's rows are at most; None if that is not known.

    Without a running pipeline it grows. A mirror that polls is as old as its last poll.
    """
    now, state = now or datetime.now(UTC), found.pipeline
    if found.last_poll is not None:
        return max(0.0, (now - found.last_poll.time).total_seconds())
    if state is None or state.lag_s is None:
        return None
    return state.lag_s if found.is_running else state.lag_s + _age_s(state.reported_at, now)


def _problems(found: LakeStatus, limits: HealthLimits, now: datetime) -> Iterator[str]:
    state = found.pipeline
    yield from _of_process(found, state, now)
    behind_s, behind_bytes = lag_s(found, now), state.lag_bytes if state is not None else None
    if limits.lag_s is not None and (behind_s is None or behind_s > limits.lag_s):
        lag = "unknown" if behind_s is None else format_duration(behind_s)
        yield f"lag {lag}, more than {format_duration(limits.lag_s)}"
    if limits.lag_bytes is not None and behind_bytes is not None and behind_bytes > limits.lag_bytes:
        yield f"lag {format_size(behind_bytes)}, more than {format_size(limits.lag_bytes)}"
    slot = state.slot if state is not None else None
    if slot is not None and slot.wal_status in _BAD:
        yield f"replication slot {slot.name} is {slot.wal_status}"
    if found.disk.free_bytes < SCARCE_BYTES:
        yield f"only {format_size(found.disk.free_bytes)} of disk space are free"
    if found.restart is not None:
        yield "a restart of the mirror is requested"


def _of_process(found: LakeStatus, state: PipelineState | None, now: datetime) -> Iterator[str]:
    if state is None:
        yield "no sync has run"
    elif not found.is_running:
        yield ended(state)
    elif state.state is State.PAUSED:
        yield "paused"
    elif is_silent(found, now):
        yield f"no report of the running sync for {format_duration(_age_s(state.reported_at, now))}"


def ended(state: PipelineState) -> str:
    """Return how a pipeline ended that does not run."""
    if not state.state.has_ended:
        return f"killed while {state.state.value}, after {_time(state.reported_at)}"
    return f"{state.state.value} since {_time(state.since)}"


def _age_s(time: datetime, now: datetime) -> float:
    return max(0.0, (now - time) / timedelta(seconds=1))


def _time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(" ", "seconds").replace("+00:00", "Z")
