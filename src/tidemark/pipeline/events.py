"""Events of a running pipeline. Each has a line for people (`str`) and fields for programs (`as_json`).

Everything that has no event of its own is logged by the logger `tidemark.pipeline`.

As JSON an event is one object: `event`, its name; `time`, in ISO 8601 and UTC; and the fields of its class. LSNs are
text as PostgreSQL prints them, sizes are bytes, durations are seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from tidemark.clock import Lsn
from tidemark.lake.pipeline_state import Copies, State, plain
from tidemark.logs import MIRROR, current_mirror
from tidemark.pipeline.fold.policy import fold_line
from tidemark.postgres.capability import Mode
from tidemark.units import format_duration, format_size

if TYPE_CHECKING:
    from tidemark.pipeline.expire.expiry import Expired
    from tidemark.pipeline.fold.compactor import Folded


@dataclass(frozen=True, slots=True)
class ModeSelected:
    """The replication mode, and the reason for it."""

    event: ClassVar[str] = "mode"
    level: ClassVar[int] = logging.INFO

    mode: Mode
    reason: str

    def __str__(self) -> str:
        return f"mode {self.mode.value}: {self.reason}"


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The state has changed."""

    event: ClassVar[str] = "state"
    level: ClassVar[int] = logging.DEBUG

    state: State

    def __str__(self) -> str:
        return self.state.value


@dataclass(frozen=True, slots=True)
class MirrorRestarted:
    """The mirror has a new slot, from `lsn` on; until a table is copied, it is readable up to `readable_lsn`."""

    event: ClassVar[str] = "restarted"
    level: ClassVar[int] = logging.INFO

    lsn: Lsn
    slot: str
    readable_lsn: Lsn

    def __str__(self) -> str:
        readable = f"each table can be read up to {self.readable_lsn} until it is copied again"
        return f"mirror restarted at {self.lsn} with new replication slot {self.slot}: {readable}"


@dataclass(frozen=True, slots=True)
class CycleApplied:
    """A cycle of the stream was applied; every commit up to `lsn` is in the lake."""

    event: ClassVar[str] = "applied"
    level: ClassVar[int] = logging.DEBUG

    lsn: Lsn
    transactions: int
    changes: int
    tables: int
    size_bytes: int
    seconds: float

    def __str__(self) -> str:
        return f"applied up to {self.lsn}: {self.transactions:,} transactions, {self.changes:,} changes"


@dataclass(frozen=True, slots=True)
class PollApplied:
    """A poll was applied. If it is `reconciled`, it also detected deleted rows."""

    event: ClassVar[str] = "polled"
    level: ClassVar[int] = logging.DEBUG

    lsn: Lsn
    tables: int
    changes: int
    copied: int
    reconciled: bool
    seconds: float

    def __str__(self) -> str:
        skipped = "" if self.reconciled else "; deleted rows not checked"
        return f"polled at {self.lsn}: {self.changes:,} changes{skipped}"


@dataclass(frozen=True, slots=True)
class TableCopied:
    """A table was copied as of `lsn`; from there on it follows the stream."""

    event: ClassVar[str] = "copied"
    level: ClassVar[int] = logging.INFO

    table: str
    lsn: Lsn
    rows: int
    seconds: float

    def __str__(self) -> str:
        copied = f"copied {self.rows:,} row{'s' * (self.rows != 1)} in {format_duration(self.seconds)}"
        return f"table {self.table}: {copied}, as of {self.lsn}"


@dataclass(frozen=True, slots=True)
class CopyFailed:
    """The copy of a table failed, and starts again after `retry_s`."""

    event: ClassVar[str] = "copy_failed"
    level: ClassVar[int] = logging.WARNING

    table: str
    reason: str
    retry_s: float

    def __str__(self) -> str:
        return f"table {self.table}: copy failed, retry in {format_duration(self.retry_s)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class TableFolded:
    """The changes of a table up to `lsn` were folded into its versions."""

    event: ClassVar[str] = "folded"
    level: ClassVar[int] = logging.INFO

    table: str
    lsn: Lsn
    changes: int
    size_bytes: int
    seconds: float

    @classmethod
    def of(cls, folded: Folded, seconds: float) -> TableFolded:
        """The event for the result of a fold."""
        return cls(folded.name, folded.upto, folded.changes, folded.size_bytes, seconds)

    def __str__(self) -> str:
        return fold_line(self.table, self.lsn, self.changes, self.seconds)


@dataclass(frozen=True, slots=True)
class HistoryExpired:
    """Files were deleted that the retention does not need; history is kept from `lsn` on, or all of it if it is 0/0."""

    event: ClassVar[str] = "expired"
    level: ClassVar[int] = logging.INFO

    lsn: Lsn
    files: int
    size_bytes: int
    seconds: float

    @classmethod
    def of(cls, expired: Expired, seconds: float) -> HistoryExpired:
        """The event for the result of a run."""
        removals = expired.removals
        files, size_bytes = sum(each.files for each in removals), sum(each.size_bytes for each in removals)
        return cls(expired.retained, files, size_bytes, seconds)

    def __str__(self) -> str:
        kept = f"from {self.lsn} on" if self.lsn > Lsn.ZERO else "from the beginning"
        return f"deleted {self.files:,} files, {format_size(self.size_bytes)}; history is kept {kept}"


@dataclass(frozen=True, slots=True)
class SyncProgress:
    """The current position and lag. `source_lsn` is the position of the source when it was last read.

    Every commit at or below `applied_lsn` can be read; it is 0/0 while a clone has nothing but copies. Values that are
    not known yet are None.
    """

    event: ClassVar[str] = "progress"
    level: ClassVar[int] = logging.INFO

    state: State
    applied_lsn: Lsn
    received_lsn: Lsn | None
    source_lsn: Lsn | None
    lag_bytes: int | None
    lag_s: float | None
    changes_per_s: float
    copies: Copies
    last_fold: TableFolded | None
    last_fold_s: float | None

    def __str__(self) -> str:
        lag = f", lag {self.lag}" if self.lag else ""
        copies = "" if self.copies.are_complete else f"; {self.copies}"
        if self.applied_lsn == Lsn.ZERO:
            return f"{self.state.value}{copies}"
        return f"{self.state.value}: {self.applied_lsn}{lag}, {self.changes_per_s:,.0f} changes/s{copies}"

    @property
    def lag(self) -> str:
        """The lag for people, as far as it is known."""
        size = format_size(self.lag_bytes) if self.lag_bytes is not None else ""
        return ", ".join(
            [text for text in (size, format_duration(self.lag_s) if self.lag_s is not None else "") if text]
        )


@dataclass(frozen=True, slots=True)
class SyncEnded:
    """The sync ended at `lsn`: complete, if it reached its end; otherwise it was stopped, `lag_bytes` behind."""

    event: ClassVar[str] = "ended"
    level: ClassVar[int] = logging.INFO

    complete: bool
    lsn: Lsn
    lag_bytes: int | None

    def __str__(self) -> str:
        if self.complete:
            return f"complete up to {self.lsn}"
        return f"stopped at {self.lsn}" + ("" if self.lag_bytes is None else f"; {format_size(self.lag_bytes)} behind")


SyncEvent: TypeAlias = (
    ModeSelected
    | StateChanged
    | MirrorRestarted
    | CycleApplied
    | PollApplied
    | TableCopied
    | CopyFailed
    | TableFolded
    | HistoryExpired
    | SyncProgress
    | SyncEnded
)
Emit: TypeAlias = Callable[[SyncEvent], None]


class NamedEvent(Protocol):
    """An event with a name; its fields are those of a dataclass."""

    event: ClassVar[str]


def as_json(event: NamedEvent) -> dict[str, Any]:
    """The event for `json.dumps`; with the name of the mirror if the process has several."""
    mirror = current_mirror()
    named = {MIRROR: mirror} if mirror else {}
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {"event": event.event, "time": now, **named, **plain(event)}
