"""How a mirror does, from its lake and its log alone: no JVM, no question to the source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from tidemark.clock import Lsn
from tidemark.errors import LogError
from tidemark.lake.commits import applied, is_there
from tidemark.lake.history import Kind, TableHistory
from tidemark.lake.lake import Lake
from tidemark.lake.leases import Leased, read_leases
from tidemark.lake.lock import Owner, is_held, read_owner
from tidemark.lake.paths import CHANGES
from tidemark.lake.polls import Poll, read_polls
from tidemark.lake.registers import read_retained
from tidemark.lake.requests import Restart, read_restart, resyncs_of
from tidemark.lake.versions import read_versions
from tidemark.log.reader import LogReader


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table: whether it can be read and where, and what its changes and versions take. `folded` if it ever was.

    What is `observed` is known as polls saw it.
    """

    name: str
    state: str
    path: str
    applied: Lsn
    readable: tuple[tuple[Lsn, Lsn | None], ...]
    reason: str
    files: int
    size_bytes: int
    folded: Lsn | None
    version_files: int
    version_bytes: int
    observed: bool


@dataclass(frozen=True, slots=True)
class LakeStatus:
    """The whole mirror. `received` is None where the log cannot be reached; reads begin at `retained`.

    `polled` is the last poll; None if the mirror follows the stream. `restart` is a request to start it over.
    """

    lake: Path
    mirror: str
    database: str
    log: Path
    received: Lsn | None
    safe: Lsn
    known: Lsn
    retained: Lsn
    writer: Owner | None
    readers: tuple[Leased, ...]
    tables: tuple[TableStatus, ...]
    polled: Poll | None
    restart: Restart | None


def status_of(path: Path) -> LakeStatus:
    """Look at a lake and its log."""
    lake = Lake.open(path)
    polled = read_polls(path).last
    cycle = lake.cycle()
    tables = sorted(_tables(lake, lake.tables().values(), cycle.safe), key=lambda each: each.name)
    writer = read_owner(path) if is_held(path) else None
    return LakeStatus(
        path,
        lake.mirror,
        lake.database,
        lake.log,
        _received(lake) if polled is None else None,
        cycle.safe,
        cycle.known,
        read_retained(path),
        writer,
        read_leases(path),
        tuple(tables),
        polled,
        read_restart(path),
    )


def _received(lake: Lake) -> Lsn | None:
    try:
        return LogReader(lake.log).received
    except LogError:
        return None


def _tables(lake: Lake, histories: Iterable[TableHistory], safe: Lsn) -> Iterable[TableStatus]:
    resyncs = resyncs_of(lake.path)
    for history in histories:
        folder = lake.path / history.path / CHANGES
        there = DeltaTable(folder) if is_there(folder) else None
        sizes: list[int] = pa.table(there.get_add_actions())["size_bytes"].to_pylist() if there else []
        versions = read_versions(lake.path, history.path)
        spans = history.spans()
        version_sizes = [file.size_bytes for file in versions.files] if versions else []
        yield TableStatus(
            f"{history.fingerprint.schema}.{history.fingerprint.name}",
            _state(history),
            history.path,
            max(applied(there), safe) if there else safe,
            tuple((span.begin, span.end) for span in spans),
            _reason(history, resyncs),
            len(sizes),
            sum(sizes),
            versions.folded if versions else None,
            len(version_sizes),
            sum(version_sizes),
            bool(spans) and spans[-1].observed,
        )


def _reason(history: TableHistory, resyncs: Mapping[int, str]) -> str:
    """Why it cannot be read, or what is still to come of it."""
    if not history.live:
        return history.reason
    why = resyncs.get(history.fingerprint.oid)
    return "" if why is None else f"to be copied anew: {why}" if why else "to be copied anew"


def _state(history: TableHistory) -> str:
    if history.live:
        return "live"
    return next(event.kind for event in reversed(history.events) if event.kind is not Kind.SEEN).name.lower()
