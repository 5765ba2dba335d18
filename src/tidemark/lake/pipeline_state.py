"""`_pipeline.json`: what the pipeline of a lake does, since when, how far it is, and its last error.

A running pipeline has a lock, and writes the record when its state changes and otherwise every few seconds. The record
of a pipeline that was killed therefore has a running state and no lock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from tidemark.clock import Lsn
from tidemark.errors import LakeDamaged
from tidemark.storage import open_storage
from tidemark.units import format_duration, format_size

NAME, LOCK = "_pipeline.json", "_pipeline.lock"
MISSING = "missing"  # in place of a wal_status: there is no such slot


class State(Enum):
    """The state of a pipeline."""

    STARTING = "starting"
    COPYING = "copying"  # tables are copied, and the stream is applied
    CATCHING_UP = "catching up"  # the stream is applied, and is behind
    FOLLOWING = "following"  # the stream is applied, and no table waits for a copy
    POLLING = "polling"
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def has_ended(self) -> bool:
        """Whether no pipeline runs in this state."""
        return self in (State.STOPPED, State.FAILED)

    @property
    def is_ready(self) -> bool:
        """Whether the present can be read, but for the lag."""
        return self in (State.CATCHING_UP, State.FOLLOWING, State.POLLING)


@dataclass(frozen=True, slots=True)
class TableCopyProgress:
    """One table in `Copies`; `state` is copying or failed. Bytes are those of its pages."""

    table: str
    state: str
    size_bytes: int
    copied_bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Copies:
    """All copies since the start. `remaining_s` is an estimate from the rate so far.

    `tables` are those whose copy is not complete: a mirror of many tables reports its progress several times a second.
    """

    tables_total: int
    tables_copied: int
    size_bytes: int
    copied_bytes: int
    rows: int
    bytes_per_s: float
    remaining_s: float | None
    tables: tuple[TableCopyProgress, ...]

    @property
    def are_complete(self) -> bool:
        """Whether no copy is in progress."""
        return self.tables_copied >= self.tables_total

    def __str__(self) -> str:
        remaining = f", {format_duration(self.remaining_s)} left" if self.remaining_s else ""
        return (
            f"copied {self.tables_copied} of {self.tables_total} tables, {format_size(self.copied_bytes)} of "
            f"{format_size(self.size_bytes)}, {self.rows:,} rows, {format_size(self.bytes_per_s)}/s{remaining}"
        )


@dataclass(frozen=True, slots=True)
class SlotUse:
    """The slot, and the WAL that the source retains for it; `wal_status` is as in pg_replication_slots, or MISSING."""

    name: str
    is_active: bool
    wal_status: str | None
    retained_bytes: int | None
    invalidation_reason: str | None


@dataclass(frozen=True, slots=True)
class Failure:
    """An error or a warning, when it occurred last, and how many times in sequence."""

    message: str
    hint: str
    time: datetime
    count: int


@dataclass(frozen=True, slots=True)
class PipelineState:
    """The record. LSNs and the lag are those of the time at which it was written."""

    state: State
    since: datetime
    reported_at: datetime
    applied_lsn: Lsn | None = None
    received_lsn: Lsn | None = None
    source_lsn: Lsn | None = None
    lag_bytes: int | None = None
    lag_s: float | None = None
    changes_per_s: float = 0.0
    copies: Copies | None = None
    slot: SlotUse | None = None
    last_error: Failure | None = None

    def write(self, lake: Path) -> None:
        """Replace the record."""
        open_storage(lake).write(NAME, json.dumps(plain(self), indent=1).encode())

    @classmethod
    def parse(cls, found: dict[str, Any]) -> PipelineState:
        """Convert from JSON."""
        copies, slot, error = found["copies"], found["slot"], found["last_error"]
        return cls(
            State(found["state"]),
            datetime.fromisoformat(found["since"]),
            datetime.fromisoformat(found["reported_at"]),
            _lsn(found["applied_lsn"]),
            _lsn(found["received_lsn"]),
            _lsn(found["source_lsn"]),
            found["lag_bytes"],
            found["lag_s"],
            found["changes_per_s"],
            copies and Copies(**{**copies, "tables": tuple(TableCopyProgress(**each) for each in copies["tables"])}),
            slot and SlotUse(**slot),
            error and Failure(**{**error, "time": datetime.fromisoformat(error["time"])}),
        )


def read_pipeline_state(lake: Path) -> PipelineState | None:
    """Return the record of a lake, or None if no pipeline has run."""
    data = open_storage(lake).read(NAME)
    if data is None:
        return None
    try:
        return PipelineState.parse(json.loads(data))
    except (ValueError, TypeError, KeyError) as error:
        raise LakeDamaged(f"{lake / NAME} is not valid", "Remove it: the next `tidemark sync` writes it.") from error


def has_pipeline(lake: Path) -> bool:
    """Return whether a pipeline runs now."""
    return open_storage(lake).is_locked(LOCK)


def plain(value: Any) -> Any:
    """Return a value of a record or an event for `json.dumps`."""
    if isinstance(value, Lsn):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return round(value, 3)
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return value


def _lsn(text: str | None) -> Lsn | None:
    return Lsn.parse(text) if text is not None else None
