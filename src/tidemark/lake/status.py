"""The status of a mirror, from its lake and its log alone: no JVM, no connection to the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.clock import Boundary, Lsn
from tidemark.errors import LogError
from tidemark.lake.changes import ChangeFiles, read_changes
from tidemark.lake.copy_records import recorded_floors
from tidemark.lake.disk_use import DiskUse, disk_use
from tidemark.lake.lake import Lake
from tidemark.lake.leases import Leased, read_leases
from tidemark.lake.lock import has_writer, last_writer
from tidemark.lake.pipeline_state import PipelineState, has_pipeline, read_pipeline_state
from tidemark.lake.polls import Poll, read_polls
from tidemark.lake.registers import Cycle, read_retained
from tidemark.lake.requests import Restart, read_restart, resyncs_of
from tidemark.lake.sync_records import recorded_unmirrored
from tidemark.lake.versions import Versions, held, read_versions
from tidemark.log.reader import LogReader
from tidemark.postgres.unmirrored import Unmirrored
from tidemark.schema.display import type_name
from tidemark.schema.history import Span, TableEventKind, TableHistory, descendants
from tidemark.schema.reasons import NO_REASON, Reason, being_altered
from tidemark.storage.interface import Owner

READABLE = "readable"


@dataclass(frozen=True, slots=True)
class ColumnStatus:
    """A column and its type, as PostgreSQL prints it."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table. `state` is `readable`, or the last event: `waiting`, `gap`, `restarted` or `dropped`.

    For a table that cannot be read up to the applied LSN, `reason` is why, and `fix` the SQL statement or command that
    helps. `readable` are the ranges of LSNs at which it can be read. `rows` is the number of current rows, with those
    of partitions and child tables; None if counting them needs a scan. If `polled`, the table has the state that the
    last poll read.
    """

    name: str
    kind: str
    state: str
    reason: str
    fix: str
    columns: tuple[ColumnStatus, ...]
    rows: int | None
    path: str
    polled: bool
    applied_lsn: Lsn
    folded_lsn: Lsn | None
    readable: tuple[tuple[Lsn, Lsn | None], ...]
    change_files: int
    change_bytes: int
    version_files: int
    version_bytes: int


@dataclass(frozen=True, slots=True)
class LakeStatus:
    """The whole mirror. `received_lsn` is None if the log cannot be read or the mirror is polled.

    `pipeline` is what its pipeline recorded last, and `is_running` whether there is one now. `last_poll` is None if the
    mirror uses logical decoding; `restart` is a pending request to restart it; `unmirrored` are the objects that are
    selected at the source and not mirrored; `copies` are the LSNs above which large copies that have not ended keep
    changes.
    """

    lake: Path
    mirror: str
    database: str
    pipeline: PipelineState | None
    is_running: bool
    log: Path
    received_lsn: Lsn | None
    applied_lsn: Lsn
    schema_lsn: Lsn
    retained_lsn: Lsn
    writer: Owner | None
    readers: tuple[Leased, ...]
    tables: tuple[TableStatus, ...]
    last_poll: Poll | None
    restart: Restart | None
    unmirrored: tuple[Unmirrored, ...]
    disk: DiskUse
    copies: tuple[Lsn, ...]


def status_of(path: Path) -> LakeStatus:
    """Return the status of a lake and its log."""
    lake = Lake.open(path)
    last_poll = read_polls(path).last
    cycle = lake.cycle()
    return LakeStatus(
        path,
        lake.mirror,
        lake.database,
        read_pipeline_state(path),
        has_pipeline(path),
        lake.log,
        _received(lake) if last_poll is None else None,
        cycle.applied_lsn,
        cycle.schema_lsn,
        read_retained(path),
        last_writer(path) if has_writer(path) else None,
        read_leases(path),
        tuple(tables_of(lake)),
        last_poll,
        read_restart(path),
        recorded_unmirrored(path),
        disk_use(lake),
        recorded_floors(path),
    )


def tables_of(lake: Lake) -> list[TableStatus]:
    """Return every table that is or was mirrored, sorted by name."""
    cycle, histories, resyncs = lake.cycle(), lake.tables(), resyncs_of(lake.path)
    found = {oid: _table(lake, history, resyncs, cycle) for oid, history in histories.items()}
    whole = [_with_children(found[oid], history, histories, found) for oid, history in histories.items()]
    return sorted(whole, key=lambda table: (table.name, table.state == TableEventKind.DROPPED.value))


def _received(lake: Lake) -> Lsn | None:
    try:
        return LogReader(lake.log).received
    except LogError:
        return None


def _table(lake: Lake, history: TableHistory, resyncs: Mapping[int, Reason], cycle: Cycle) -> TableStatus:
    """Return the status of a table without its partitions and child tables."""
    changes = read_changes(lake.path, history.path, cycle.applied_lsn)
    sizes: list[int] = changes.adds["size_bytes"].to_pylist() if changes.adds is not None else []
    versions = read_versions(lake.path, history.path)
    version_sizes = [file.size_bytes for file in versions.files] if versions else []
    behind = cycle.behind.get(history.fingerprint.oid)
    reason, spans = _reason(history, resyncs, behind), history.spans()
    return TableStatus(
        history.name,
        _kind(history),
        _state(history),
        reason.text,
        reason.fix,
        tuple(ColumnStatus(each.name, type_name(each.type, each.typmod)) for each in history.fingerprint.columns),
        _rows(history, changes, versions),
        history.path,
        bool(spans) and spans[-1].observed,
        changes.applied,
        versions.folded if versions else None,
        tuple(_upto(span, behind) for span in spans if behind is None or span.begin <= behind),
        len(sizes),
        sum(sizes),
        len(version_sizes),
        sum(version_sizes),
    )


def _kind(history: TableHistory) -> str:
    if history.is_union:
        return "partitioned table"
    return "inheritance parent" if history.fingerprint.children else "table"


def _state(history: TableHistory) -> str:
    if history.live:
        return READABLE
    last = next(event for event in reversed(history.events) if event.kind is not TableEventKind.SEEN)
    return str(last.kind.value)


def _upto(span: Span, behind: Lsn | None) -> tuple[Lsn, Lsn | None]:
    """Return the readable range of a span, of which nothing above the schema LSN of a table behind can be read."""
    ends = [lsn for lsn in (span.end, behind) if lsn is not None]
    return span.begin, min(ends, default=None)


def _reason(history: TableHistory, resyncs: Mapping[int, Reason], behind: Lsn | None) -> Reason:
    """Return why the table cannot be read up to the present, or why a requested resync is not done yet."""
    if not history.live:
        return Reason(history.reason, history.fix)
    if behind is not None:
        return being_altered(history.fingerprint, behind)
    request = resyncs.get(history.fingerprint.oid)
    if request is None:
        return NO_REASON
    return replace(request, text=f"resync requested; {request.text}" if request.text else "resync requested")


def _rows(history: TableHistory, changes: ChangeFiles, versions: Versions | None) -> int | None:
    """Return the number of the table's own rows if it is readable and folded up to its last change."""
    if history.is_union or not history.live:
        return 0 if history.is_union and history.live else None
    base = history.spans()[-1].base
    if versions is None or versions.base != base.lsn:
        return None
    pending = changes.between(held(versions, base), Boundary(changes.applied))
    return None if pending else sum(file.rows for file in versions.live)


def _limited(table: TableStatus, children: Sequence[TableStatus]) -> TableStatus:
    """Return a table that can be read only as far as each of its child tables."""
    ends = [child for child in children if child.readable and child.readable[-1][1] is not None and child.reason]
    if not ends or not table.readable or table.reason:
        return table
    first = min(ends, key=lambda child: child.readable[-1][1] or Lsn.ZERO)
    begin, end = table.readable[-1]
    upto = min(lsn for lsn in (first.readable[-1][1], end) if lsn is not None)
    reason = f"child table {first.name}: {first.reason}"
    return replace(table, readable=(*table.readable[:-1], (begin, upto)), reason=reason, fix=first.fix)


def _with_children(
    table: TableStatus,
    history: TableHistory,
    histories: Mapping[int, TableHistory],
    found: Mapping[int, TableStatus],
) -> TableStatus:
    """Return a table as queries read it: with its partitions and child tables, and readable only if they all are."""
    if not history.live or not history.fingerprint.children:
        return table
    children = [(child.name, found.get(child.oid)) for child in descendants(history, histories)]
    unreadable = sorted(name for name, child in children if child is None or child.state != READABLE)
    counts = [table.rows, *(child.rows if child is not None else None for _, child in children)]
    known = [count for count in counts if count is not None]
    rows = sum(known) if len(known) == len(counts) else None
    if not unreadable:
        return _limited(replace(table, rows=rows), [child for _, child in children if child is not None])
    what = "partitions" if history.is_union else "child tables"
    reason = f"{what} that cannot be read: {', '.join(unreadable)}"
    return replace(table, state=TableEventKind.WAITING.value, reason=reason, readable=(), rows=None)
