"""What `tidemark status LAKE` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tidemark.cli.printing import unreconciled
from tidemark.clock import Lsn
from tidemark.lake.health import ended, lag_s
from tidemark.lake.pipeline_state import SlotUse, State, plain
from tidemark.postgres.capability import Mode
from tidemark.postgres.unmirrored import summarize
from tidemark.units import FOREVER, format_duration, format_size

if TYPE_CHECKING:
    from tidemark.lake.disk_use import DiskUse
    from tidemark.lake.polls import Poll
    from tidemark.lake.status import LakeStatus, TableStatus
    from tidemark.receive.client import Position

_HEADER = ("Table", "State", "Rows", "Readable from", "to", "Folded LSN", "Size")
_NUMBERS = frozenset({"Rows", "Size"})


def lake_json(found: LakeStatus, receiver: Position | None) -> dict[str, Any]:
    """Return the status for `json.dumps`."""
    received, poll = receiver.received if receiver else found.received_lsn, found.last_poll
    return {
        "lake": str(found.lake),
        "mirror": found.mirror,
        "database": found.database,
        "pipeline": plain(found.pipeline) if found.pipeline is not None else None,
        "is_running": found.is_running,
        "mode": (Mode.LOGICAL if poll is None else Mode.POLL).value,
        "log": str(found.log),
        "received_lsn": _text(received),
        "flushed_lsn": _text(receiver.durable if receiver else None),
        "applied_lsn": str(found.applied_lsn),
        "schema_lsn": str(found.schema_lsn),
        "retained_lsn": str(found.retained_lsn),
        "lag_bytes": _lag(found, received),
        "polled_at": poll.time.isoformat() if poll is not None else None,
        "snapshot": str(poll.seen.snapshot) if poll is not None else None,
        "reconciled_lsn": str(poll.seen.reconciled) if poll is not None else None,
        "receiver": receiver.state if receiver else None,
        "writer": found.writer.plain() if found.writer else None,
        "readers": [reader.plain() for reader in found.readers],
        "copies": [str(copy) for copy in found.copies],
        "disk": _plain_disk(found.disk),
        "restart_requested_at": found.restart.asked_at if found.restart else None,
        "tables": [_plain_table(table) for table in found.tables],
        "unmirrored": [asdict(each) for each in found.unmirrored],
    }


def _plain_disk(disk: DiskUse) -> dict[str, Any]:
    retention = disk.retention
    return {
        "current_bytes": disk.current_bytes,
        "history_bytes": disk.history_bytes,
        "unlisted_bytes": disk.unlisted_bytes,
        "log_bytes": disk.log_bytes,
        "free_bytes": disk.free_bytes,
        "total_bytes": disk.total_bytes,
        "history_bytes_per_day": disk.history_bytes_per_day,
        "expected_bytes": disk.expected_bytes,
        "covered_s": disk.covered_s,
        "keep": None if retention is None else FOREVER if retention.keep_s is None else retention.keep_s,
    }


def _plain_table(table: TableStatus) -> dict[str, Any]:
    return {
        "name": table.name,
        "kind": table.kind,
        "state": table.state,
        "reason": table.reason or None,
        "fix": table.fix or None,
        "rows": table.rows,
        "polled": table.polled,
        "path": table.path,
        "applied_lsn": str(table.applied_lsn),
        "folded_lsn": _text(table.folded_lsn),
        "readable": [{"from_lsn": str(begin), "to_lsn": _text(end)} for begin, end in table.readable],
        "change_files": table.change_files,
        "change_bytes": table.change_bytes,
        "version_files": table.version_files,
        "version_bytes": table.version_bytes,
    }


def lake_lines(found: LakeStatus, receiver: Position | None) -> list[str]:
    """Return the status for people."""
    progress = [("Lake", str(found.lake)), ("Mirror", f"{found.mirror} of database {found.database}")]
    progress += _pipeline(found) if found.pipeline is not None else []
    progress += _progress(found, receiver) if found.last_poll is None else _polled(found, found.last_poll)
    progress += [("Retained LSN", str(found.retained_lsn))] if found.retained_lsn > Lsn.ZERO else []
    progress += _disk(found.disk)
    progress += [("Reader", str(reader)) for reader in found.readers]
    progress += [("Copy", f"not ended, keeps changes above {copy}") for copy in found.copies]
    lines = [f"{name + ':':<14} {value}" for name, value in progress]
    if found.tables:
        lines += ["", *_columns([_HEADER, *(row for table in found.tables for row in _rows(table))])]
    lines += [line for table in found.tables if table.reason for line in _explained(table)]
    unmirrored = summarize(found.unmirrored)
    return [*lines, *(["", "Not mirrored:", *(f"  {line}" for line in unmirrored)] if unmirrored else [])]


def _pipeline(found: LakeStatus) -> list[tuple[str, str]]:
    """Return what the pipeline does, or how it ended."""
    state = found.pipeline
    assert state is not None  # noqa: S101
    now = datetime.now(UTC)
    age = format_duration((now - state.since).total_seconds())
    lines = [("State", f"{state.state.value}, for {age}" if found.is_running else ended(state))]
    behind_s = lag_s(found, now)
    lag = [format_size(state.lag_bytes)] if state.lag_bytes is not None else []
    lag += [format_duration(behind_s)] if behind_s is not None else []
    lines += [("Lag", ", ".join(lag))] if lag else []
    lines += [("Copies", str(state.copies))] if state.copies is not None else []
    lines += [("Slot", _slot(state.slot))] if state.slot is not None else []
    if (error := state.last_error) is not None:
        times = f", {error.count} times" if error.count > 1 else ""
        lines.append(("Last error", f"{_ago(error.time, now)}{times}: {error.message}"))
        lines += [("Fix", error.hint)] if error.hint and state.state is State.FAILED else []
    return lines


def _slot(slot: SlotUse) -> str:
    retained = f", retains {format_size(slot.retained_bytes)} of WAL" if slot.retained_bytes is not None else ""
    invalid = f", invalidated: {slot.invalidation_reason}" if slot.invalidation_reason is not None else ""
    active = "active" if slot.is_active else "not active"
    return f"{slot.name}: {slot.wal_status or 'unknown'}, {active}{retained}{invalid}"


def _ago(time: datetime, now: datetime) -> str:
    return f"{format_duration(max(0.0, (now - time).total_seconds()))} ago"


def _progress(found: LakeStatus, receiver: Position | None) -> list[tuple[str, str]]:
    received = receiver.received if receiver else found.received_lsn
    lag, writer = _lag(found, received), str(found.writer) if found.writer else "not running"
    is_left = found.pipeline is not None and found.pipeline.state is State.POLLING
    lines = [
        ("Mode", "polling: the first poll copies every table" if is_left else "logical decoding"),
        ("Receiver", receiver.state if receiver else "not running"),
        ("Writer", writer),
        ("Received LSN", _text(received) or "unknown"),
        *([("Flushed LSN", str(receiver.durable))] if receiver else []),
        ("Applied LSN", str(found.applied_lsn) + (f", {format_size(lag)} behind" if lag else "")),
        ("Schema LSN", str(found.schema_lsn)),
    ]
    if found.restart is not None:
        lines.append(("Restart", f"requested at {found.restart.asked_at}, done by the next `tidemark sync`"))
    return lines


def _polled(found: LakeStatus, poll: Poll) -> list[tuple[str, str]]:
    return [
        ("Mode", "polling: each table is as of the last poll"),
        ("Writer", str(found.writer) if found.writer else "not running"),
        ("Last poll", f"{poll.lsn} at {poll.time.isoformat(' ', 'seconds')}, snapshot {poll.seen.snapshot}"),
        ("Deletes", "included" if poll.is_reconciled else unreconciled(poll)),
    ]


def _disk(disk: DiskUse) -> list[tuple[str, str]]:
    parts = [("current rows", disk.current_bytes), ("history", disk.history_bytes), ("log", disk.log_bytes)]
    parts += [("unlisted files", disk.unlisted_bytes)] if disk.unlisted_bytes else []
    used = f"{format_size(disk.total_bytes)}: {', '.join(f'{name} {format_size(n)}' for name, n in parts)}"
    lines = [("Disk", f"{used}; {format_size(disk.free_bytes)} free")]
    if disk.retention is None:
        return lines
    keep_s, full_in_s = disk.retention.keep_s, disk.full_in_s
    kept = FOREVER if keep_s is None else format_duration(keep_s)
    if keep_s is None and disk.history_bytes_per_day is not None:
        kept += f", {format_size(disk.history_bytes_per_day)} of history per day at the present rate"
    elif disk.expected_bytes is not None and full_in_s:
        kept += f", {format_size(disk.expected_bytes)} expected in {format_duration(full_in_s)} at the present rate"
    return [*lines, ("Retention", kept)]


def _rows(table: TableStatus) -> list[tuple[str, ...]]:
    """Return a line for each range of LSNs at which a table can be read."""
    rows = f"{table.rows:,}" if table.rows is not None else ""
    size = format_size(table.change_bytes + table.version_bytes)
    ranges = [(str(begin), _text(end) or "now") for begin, end in table.readable] or [("", "")]
    first = (table.name, table.state, rows, *ranges[0], _text(table.folded_lsn) or "", size)
    return [first, *(("", "", "", *each, "", "") for each in ranges[1:])]


def _explained(table: TableStatus) -> list[str]:
    fix = [f"  Fix: {table.fix}"] if table.fix else []
    return ["", f"{table.name}: {table.reason}", *fix]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a table as psql does."""
    header, *body = rows
    widths = [max(len(row[at]) for row in rows) for at in range(len(header))]
    numbers = [name in _NUMBERS for name in header]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, numbers, strict=True)
        return " | ".join(cell.rjust(width) if number else cell.ljust(width) for cell, width, number in cells).rstrip()

    title = " | ".join(cell.center(width) for cell, width in zip(header, widths, strict=True)).rstrip()
    return [title, "-+-".join("-" * width for width in widths), *map(line, body)]


def _lag(found: LakeStatus, received: Lsn | None) -> int | None:
    return max(0, received - found.applied_lsn) if received is not None else None


def _text(lsn: Lsn | None) -> str | None:
    return str(lsn) if lsn is not None else None
