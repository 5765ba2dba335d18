"""The registers of a lake, small Delta tables: `_tables` (table events), `_cycles` (watermarks), `_expired`.

The row of a cycle is written when every table has the changes up to `applied_lsn`. `schema_lsn` is the LSN up to which
the definitions of all tables are known, except those in `behind`, which has their own schema LSNs by OID. Both LSNs and
the number of tables behind are also `txn` versions of the commit, so that they can be read in constant time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.dataset import Dataset
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from tidemark.clock import Lsn, Snapshot
from tidemark.errors import LakeInUse
from tidemark.lake.cached import cached
from tidemark.lake.commits import APP, CONFIGURATION, LOG_S, RETRY, TOMBSTONES_S, opened, require_version
from tidemark.lake.files import FileWriter
from tidemark.lake.unlisted import (
    delete,
    has_data,
    names_in,
    remove_others,
    removed_files,
    unlisted_files,
)
from tidemark.schema.fingerprint import Fingerprint, from_plain, to_plain
from tidemark.schema.history import TableEvent, TableEventKind, TableHistory, needed_events, of_events, types_of
from tidemark.schema.table import PgType
from tidemark.storage.fail_points import FailPoint, fail_point

TABLES, CYCLES, EXPIRED = "_tables", "_cycles", "_expired"
_SCHEMA_LSN, _BEHIND = f"{APP}.schema_lsn", f"{APP}.behind"
_COMPACT_EVERY = 100
_THIN_S, _DAY_S = 3600.0, 86400.0
REPLACED_S = LOG_S / 2  # files that were replaced stay for so long; the times are in commits, kept for LOG_S
_IN_ORDER = [(name, "ascending") for name in ("schema_lsn", "applied_lsn", "written_at")]

_TABLES_SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("written_at", pa.timestamp("us", "UTC")),
        ("oid", pa.int64()),
        ("schema", pa.string()),
        ("name", pa.string()),
        ("path", pa.string()),
        ("event", pa.string()),
        ("after_lsn", pa.int64()),
        ("lsn", pa.int64()),
        ("excluded_lsns", pa.list_(pa.field("element", pa.int64()))),
        ("reason", pa.string()),
        ("fix", pa.string()),
        ("definition", pa.string()),
        ("snapshot", pa.string()),
        ("polled", pa.bool_()),
    ]
)
_CYCLES_SCHEMA = pa.schema(
    [
        ("written_at", pa.timestamp("us", "UTC")),
        ("applied_lsn", pa.int64()),
        ("schema_lsn", pa.int64()),
        ("behind", pa.map_(pa.int64(), pa.int64())),
        ("source_time", pa.timestamp("us", "UTC")),
        ("changes", pa.int64()),
        ("tables", pa.int32()),
        ("snapshot", pa.string()),
        ("source_lsn", pa.int64()),
        ("timeline", pa.int64()),
        ("reconciled_lsn", pa.int64()),
    ]
)

_EXPIRED_SCHEMA = pa.schema([("written_at", pa.timestamp("us", "UTC")), ("retained_lsn", pa.int64())])


@dataclass(frozen=True, slots=True)
class Seen:
    """The state that a poll read: a snapshot, the LSN of the source at that time, and its timeline.

    Rows deleted at the source have been detected and removed from the lake up to `reconciled`.
    """

    snapshot: Snapshot
    lsn: Lsn
    timeline: int
    reconciled: Lsn


@dataclass(frozen=True, slots=True)
class Cycle:
    """The watermarks of the lake.

    `source_time` is the source's clock when it was at `schema_lsn`. `seen` is set if the cycle is a poll. `behind` are
    the tables, by OID, whose definitions are known only up to an LSN below `schema_lsn`.
    """

    applied_lsn: Lsn
    schema_lsn: Lsn
    source_time: datetime | None = None
    changes: int = 0
    tables: int = 0
    seen: Seen | None = None
    behind: Mapping[int, Lsn] = field(default_factory=dict)

    @property
    def readable(self) -> Lsn:
        """The LSN up to which the files have everything, and the definitions of all tables but those behind."""
        return min(self.applied_lsn, self.schema_lsn)

    @property
    def complete(self) -> Lsn:
        """The LSN up to which the files have everything, and the definitions of all tables."""
        return min([self.readable, *self.behind.values()])

    def schema_lsn_of(self, oid: int) -> Lsn:
        """The LSN up to which the definition of a table is known."""
        return min(self.schema_lsn, self.behind.get(oid, self.schema_lsn))


class _Register:
    """A Delta table with few rows. From time to time, all files are replaced by one, without the rows that expired."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.folder, self._schema = folder, schema
        DeltaTable.create(folder, schema, mode="ignore", configuration=CONFIGURATION)
        self.table = opened(folder)

    def add(self, rows: Sequence[dict[str, object]], *transactions: Transaction) -> None:
        self._commit(pa.Table.from_pylist(list(rows), self._schema), (), transactions)
        if self.table.version() % _COMPACT_EVERY == 0:
            self._compact()

    def _commit(self, rows: pa.Table, removes: Iterable[str], transactions: Sequence[Transaction]) -> None:
        writer = FileWriter(self.folder, "part")
        writer.write(rows)
        file, before, now = writer.close(), self.table.version(), int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [AddAction(file.path, file.size_bytes, {}, now, True, file.stats)]
        actions += [RemoveAction(path, True, now) for path in removes]
        properties = CommitProperties(app_transactions=list(transactions), max_commit_retries=0)
        try:
            self.table.create_write_transaction(actions, "append", self.table.schema(), commit_properties=properties)
            self.table.update_incremental()
        except Exception as error:
            there = opened(self.folder)
            if file.path not in names_in(there):  # the old handle stays: with a new one, this writer is not fenced off
                raise LakeInUse(f"cannot write {self.folder}: {error}", RETRY) from error
            self.table = there
        require_version(self.table, self.folder, before + 1)

    def _compact(self) -> None:
        """Replace all files by one, and delete those that were replaced long ago."""
        self._commit(self._kept(_dataset(self.table, self.folder).to_table()), names_in(self.table), ())
        removed, long_ago = removed_files(self.folder, REPLACED_S)
        past = time.time() - TOMBSTONES_S
        unlisted = unlisted_files(self.folder)  # one without a record of its removal was removed before, or never used
        left = {file.name for file in unlisted if file.name not in removed and file.modified_at < past}
        delete(self.folder, left | ({file.name for file in unlisted} & long_ago))

    def _kept(self, rows: pa.Table) -> pa.Table:
        """The rows that are needed."""
        return rows


class Tables(_Register):
    """The `_tables` register, opened by its writer."""

    def __init__(self, lake: Path) -> None:
        super().__init__(lake / TABLES, _TABLES_SCHEMA)
        self._lake = lake
        self._number = self.table.transaction_version(APP) or 0

    @property
    def number(self) -> int:
        """The number of events."""
        return self._number

    def append(self, events: Sequence[TableEvent]) -> None:
        """Append events in one commit."""
        rows = [_event_row(event, number) for number, event in enumerate(events, self._number + 1)]
        self._number += len(rows)
        self.add(rows, Transaction(APP, self._number))
        fail_point(FailPoint.EVENTS_COMMITTED)

    def forget(self, retained: Lsn) -> frozenset[int]:
        """Delete the events that no read at or above an LSN needs; return the OIDs of the tables that are forgotten.

        These are the tables that were dropped below it and have no data. Their directories are removed, and those that
        no event names.
        """
        rows = _dataset(self.table, self.folder).to_table().sort_by("number")
        numbered = dict(zip(rows["number"].to_pylist(), _events_of(rows), strict=True))
        histories = of_events(numbered.values())
        gone = frozenset(oid for oid, each in histories.items() if self._is_gone(each, retained))
        needed = {id(event) for history in histories.values() for event in needed_events(history.events, retained)}
        kept = [n for n, event in numbered.items() if id(event) in needed and event.fingerprint.oid not in gone]
        if len(kept) < len(rows):
            chosen = pc.is_in(rows["number"], value_set=pa.array(kept, pa.int64()))
            self._commit(rows.filter(chosen), names_in(self.table), ())
        remove_others(self._lake, {each.path for oid, each in histories.items() if oid not in gone})
        return gone

    def _is_gone(self, history: TableHistory, retained: Lsn) -> bool:
        last = history.last
        return last.kind is TableEventKind.DROPPED and last.lsn < retained and not has_data(self._lake / history.path)


def _event_row(event: TableEvent, number: int) -> dict[str, object]:
    return {
        "number": number,
        "written_at": datetime.now(UTC),
        "oid": event.fingerprint.oid,
        "schema": event.fingerprint.schema,
        "name": event.fingerprint.name,
        "path": event.path,
        "event": event.kind.value,
        "after_lsn": event.after.value,
        "lsn": event.lsn.value,
        "excluded_lsns": sorted(lsn.value for lsn in event.excluded),
        "reason": event.reason,
        "fix": event.fix,
        "definition": json.dumps(to_plain(event.fingerprint)),
        "snapshot": str(event.snapshot) if event.snapshot is not None else None,
        "polled": event.observed,
    }


class Cycles(_Register):
    """The `_cycles` register, opened by its writer."""

    def __init__(self, lake: Path) -> None:
        super().__init__(lake / CYCLES, _CYCLES_SCHEMA)
        self._lake = lake
        self._last = _last(self.table, self.folder)

    @property
    def last(self) -> Cycle:
        """The watermarks of the last cycle. There is one writer, so that they are read once."""
        return self._last

    def record(self, cycle: Cycle) -> None:
        """Append a cycle, which must be committed in every table before."""
        row = {
            "written_at": datetime.now(UTC),
            "applied_lsn": cycle.applied_lsn.value,
            "schema_lsn": cycle.schema_lsn.value,
            "behind": [(oid, lsn.value) for oid, lsn in sorted(cycle.behind.items())],
            "source_time": cycle.source_time,
            "changes": cycle.changes,
            "tables": cycle.tables,
            **(_seen_row(cycle.seen) if cycle.seen is not None else {}),
        }
        self.add(
            [row],
            Transaction(APP, cycle.applied_lsn.value),
            Transaction(_SCHEMA_LSN, cycle.schema_lsn.value),
            Transaction(_BEHIND, len(cycle.behind)),
        )
        self._last = Cycle(cycle.applied_lsn, cycle.schema_lsn, behind=dict(cycle.behind))
        fail_point(FailPoint.CYCLE_COMMITTED)

    def _kept(self, rows: pa.Table) -> pa.Table:
        return kept_cycles(rows.sort_by(_IN_ORDER), read_retained(self._lake), datetime.now(UTC))


def kept_cycles(cycles: pa.Table, retained: Lsn, now: datetime) -> pa.Table:
    """Return the cycles that reads and expiry need, of cycles in order; `retained` is the retained LSN.

    These are the last cycle at or below the retained LSN, those with the same LSN, and those after it. Of polls that
    found no change, the first, the last and the latest by the source's clock are kept. Of cycles of the stream that are
    older than an hour, the last of each minute is kept, and after a day the last of each hour, as only the expire job
    needs them. The last poll before the stream, and the cycle that followed it, show when the stream replaced polls.
    """
    lsns = np.maximum(cycles["schema_lsn"].to_numpy(), cycles["applied_lsn"].to_numpy())
    polled = cycles["snapshot"].is_valid().to_numpy()
    written = cycles["written_at"].cast(pa.int64()).to_numpy()
    ages_s = now.timestamp() - written / 1_000_000
    periods_s = np.where(ages_s < _DAY_S, 60, 3600)
    periods = written // (periods_s * 1_000_000)
    last_of_period = np.append((periods[1:] != periods[:-1]) | (periods_s[1:] != periods_s[:-1]), True)
    changed = np.append(True, lsns[1:] != lsns[:-1])
    last_of_lsn = np.append(changed[1:], True)
    followed = (ages_s <= _THIN_S) | last_of_period
    follows_poll = np.append(False, polled[:-1])
    kept = np.where(polled, changed | last_of_lsn | _is_latest(cycles, changed), followed | follows_poll)
    highest = np.maximum.accumulate(lsns)
    last_below = max(0, int(np.searchsorted(highest, retained.value, side="right")) - 1)
    kept[: int(np.searchsorted(highest, highest[last_below], side="left"))] = False
    kept[[last_below, len(cycles) - 1, int(np.argmax(written))]] = True
    if polled.any():
        last_poll = int(np.flatnonzero(polled)[-1])
        kept[last_poll : last_poll + 2] = True
    return cycles.filter(pa.array(kept))


def _is_latest(cycles: pa.Table, changed: Any) -> Any:
    """Return which cycles have the latest source time so far, as the last of those with their LSN."""
    latest = np.fmax.accumulate(cycles["source_time"].to_numpy())
    rises = np.flatnonzero(np.append(True, latest[1:] > latest[:-1]))
    runs = np.cumsum(changed) - 1
    last_rises = np.full(runs[-1] + 1, rises[0])
    np.maximum.at(last_rises, runs[rises], rises)
    found = np.zeros(len(cycles), bool)
    found[last_rises] = True
    return found


def _seen_row(seen: Seen) -> dict[str, object]:
    return {
        "snapshot": str(seen.snapshot),
        "source_lsn": seen.lsn.value,
        "timeline": seen.timeline,
        "reconciled_lsn": seen.reconciled.value,
    }


class ExpiryRegister(_Register):
    """The `_expired` register, opened by the expire job: the oldest LSN that can be read."""

    def __init__(self, lake: Path) -> None:
        super().__init__(lake / EXPIRED, _EXPIRED_SCHEMA)

    def _kept(self, rows: pa.Table) -> pa.Table:
        return rows.sort_by("retained_lsn").slice(len(rows) - 1)

    def record(self, retained: Lsn) -> None:
        """Record that nothing below an LSN can be read. A lower LSN than the recorded one is ignored."""
        if retained > _retained(self.table):
            row = {"written_at": datetime.now(UTC), "retained_lsn": retained.value}
            self.add([row], Transaction(APP, retained.value))
            fail_point(FailPoint.RETENTION_COMMITTED)


def read_retained(lake: Path) -> Lsn:
    """Return the oldest LSN that can be read."""
    return cached(lake / EXPIRED, "retained LSN", _retained) or Lsn.ZERO


def _retained(table: DeltaTable) -> Lsn:
    return Lsn(table.transaction_version(APP) or 0)


def read_events(lake: Path) -> tuple[TableEvent, ...]:
    """Return the events of all tables, in order."""
    return cached(lake / TABLES, "events", lambda table: _events(table, lake / TABLES)) or ()


@dataclass(frozen=True, slots=True)
class KnownTables:
    """The history of every table, and every type that a column of any has or had, by OID."""

    histories: Mapping[int, TableHistory]
    types: Mapping[int, PgType]


def read_tables(lake: Path) -> KnownTables:
    """Return all tables. They are kept until the register changes, because a mirror may have thousands."""
    return cached(lake / TABLES, "tables", lambda table: _known(table, lake / TABLES)) or KnownTables({}, {})


def _known(table: DeltaTable, folder: Path) -> KnownTables:
    histories = of_events(_events(table, folder))
    return KnownTables(histories, types_of(histories.values()))


def _events(table: DeltaTable, folder: Path) -> tuple[TableEvent, ...]:
    return tuple(_events_of(_dataset(table, folder).to_table().sort_by("number")))


def _events_of(rows: pa.Table) -> Iterator[TableEvent]:
    """The events in the rows of `_tables`. Those with the same definition share it."""
    definitions: dict[str, Fingerprint] = {}
    for row in rows.to_pylist():
        text = row["definition"]
        if text not in definitions:
            definitions[text] = from_plain(json.loads(text))
        yield TableEvent(
            TableEventKind(row["event"]),
            definitions[text],
            row["path"],
            Lsn(row["after_lsn"]),
            Lsn(row["lsn"]),
            frozenset(map(Lsn, row["excluded_lsns"])),
            row["reason"],
            Snapshot.parse(row["snapshot"]) if row["snapshot"] is not None else None,
            row["polled"],
            row["fix"],
        )


def read_cycle(lake: Path) -> Cycle:
    """Return the watermarks of the lake, from `txn` versions alone unless tables are behind."""
    found = cached(lake / CYCLES, "cycle", lambda table: _last(table, lake / CYCLES))
    return found if found is not None else Cycle(Lsn.ZERO, Lsn.ZERO)


def read_seen(lake: Path) -> Seen | None:
    """Return the state that the last cycle read, if it was a poll."""
    cycles = read_times(lake)
    return seen_in(cycles.slice(len(cycles) - 1).to_pylist()[0]) if len(cycles) else None


def seen_in(row: Mapping[str, Any]) -> Seen | None:
    """Return the state that the cycle in this row read, if it was a poll."""
    if row["snapshot"] is None:
        return None
    snapshot, lsn, reconciled = Snapshot.parse(row["snapshot"]), Lsn(row["source_lsn"]), Lsn(row["reconciled_lsn"])
    return Seen(snapshot, lsn, row["timeline"], reconciled)


def read_times(lake: Path) -> pa.Table:
    """Return all cycles, ordered by schema LSN, applied LSN and time."""
    found = cached(lake / CYCLES, "times", lambda table: _times(table, lake / CYCLES))
    return found if found is not None else _CYCLES_SCHEMA.empty_table()


def _times(table: DeltaTable, folder: Path) -> pa.Table:
    return _dataset(table, folder).to_table().sort_by(_IN_ORDER)


def _dataset(table: DeltaTable, folder: Path) -> Dataset:
    """The rows of a table, read through Arrow's own file system.

    With deltalake's file system, Arrow's threads run Python code, and a thread that still does so at interpreter
    shutdown aborts the process.
    """
    return table.to_pyarrow_dataset(filesystem=SubTreeFileSystem(str(folder), LocalFileSystem()))


def _last(table: DeltaTable, folder: Path) -> Cycle:
    applied_lsn, schema_lsn = table.transaction_version(APP) or 0, table.transaction_version(_SCHEMA_LSN) or 0
    behind: dict[int, Lsn] = {}
    if table.transaction_version(_BEHIND):
        same = (pc.field("applied_lsn") == applied_lsn) & (pc.field("schema_lsn") == schema_lsn)
        rows = _dataset(table, folder).to_table(["written_at", "behind"], filter=same)
        last = rows.sort_by("written_at").slice(len(rows) - 1).to_pylist()[0]
        behind = {oid: Lsn(lsn) for oid, lsn in last["behind"]}
    return Cycle(Lsn(applied_lsn), Lsn(schema_lsn), behind=behind)
