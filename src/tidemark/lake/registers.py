"""The registers of a lake, small Delta tables: `_tables` (events of every table), `_cycles` (watermarks), `_expired`.

A cycle's row is written when every table has its changes: that is `applied_lsn`. `schema_lsn` is the position up to
which the definition of every table is known. Both are also the `txn` versions of the commit, which are read at once
however many cycles there were.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from tidemark.clock import Lsn, Snapshot
from tidemark.errors import LakeInUse
from tidemark.lake.commits import APP, CONFIGURATION, RETRY, is_there, opened, require_version
from tidemark.lake.history import Event, Kind
from tidemark.lake.points import Point, reached
from tidemark.schema.plain import from_plain, to_plain

TABLES, CYCLES, VACUUMS = "_tables", "_cycles", "_expired"
_KNOWN = f"{APP}.schema_lsn"
_TOKEN = f"{APP}.token"  # tells our own commit from another's
_COMPACT_EVERY = 100

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
        ("source_time", pa.timestamp("us", "UTC")),
        ("changes", pa.int64()),
        ("tables", pa.int32()),
        ("snapshot", pa.string()),
        ("source_lsn", pa.int64()),
        ("timeline", pa.int64()),
        ("reconciled_lsn", pa.int64()),
    ]
)

_VACUUMS_SCHEMA = pa.schema([("written_at", pa.timestamp("us", "UTC")), ("retained_lsn", pa.int64())])


@dataclass(frozen=True, slots=True)
class Seen:
    """What a poll saw: a snapshot, where the source was then, and on which timeline.

    Rows that are gone from the source are gone from the lake up to `reconciled`.
    """

    snapshot: Snapshot
    lsn: Lsn
    timeline: int
    reconciled: Lsn


@dataclass(frozen=True, slots=True)
class Cycle:
    """How far the lake has come; `source_time` is what the source's clock said when it was at `known`."""

    safe: Lsn
    known: Lsn
    source_time: datetime | None = None
    changes: int = 0
    tables: int = 0
    seen: Seen | None = None


class _Register:
    """A Delta table of few rows, kept in few files."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.folder, self._schema = folder, schema
        DeltaTable.create(folder, schema, mode="ignore", configuration=CONFIGURATION)
        self.table = opened(folder)

    def add(self, rows: Sequence[dict[str, object]], *transactions: Transaction) -> None:
        before, token = self.table.version(), uuid4().hex
        properties = CommitProperties(
            custom_metadata={_TOKEN: token}, app_transactions=list(transactions), max_commit_retries=0
        )
        try:
            write_deltalake(
                self.table,
                pa.Table.from_pylist(list(rows), self._schema),
                mode="append",
                commit_properties=properties,
            )
        except Exception as error:
            there = opened(self.folder)
            if there.history(1)[0].get(_TOKEN) != token:
                raise LakeInUse(f"cannot write {self.folder}: {error}", RETRY) from error
        self.table = opened(self.folder)
        require_version(self.table, self.folder, before + 1)
        if self.table.version() % _COMPACT_EVERY == 0:
            self.table.optimize.compact()
            self.table.vacuum(retention_hours=1, enforce_retention_duration=False, dry_run=False)


class Tables(_Register):
    """`_tables`, as its writer holds it."""

    def __init__(self, lake: Path) -> None:
        super().__init__(lake / TABLES, _TABLES_SCHEMA)
        self._number = self.table.transaction_version(APP) or 0

    @property
    def number(self) -> int:
        """How many events there are."""
        return self._number

    def tell(self, *events: Event) -> None:
        """Add events, all at once."""
        rows = [_event_row(event, number) for number, event in enumerate(events, self._number + 1)]
        self._number += len(rows)
        self.add(rows, Transaction(APP, self._number))
        reached(Point.HISTORY_TOLD)


def _event_row(event: Event, number: int) -> dict[str, object]:
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
    """`_cycles`, as its writer holds it."""

    def __init__(self, lake: Path) -> None:
        super().__init__(lake / CYCLES, _CYCLES_SCHEMA)

    @property
    def last(self) -> Cycle:
        """How far the lake has come."""
        return _last(self.table)

    def tell(self, cycle: Cycle) -> None:
        """Add a row, once every table has what it says."""
        row = {
            "written_at": datetime.now(UTC),
            "applied_lsn": cycle.safe.value,
            "schema_lsn": cycle.known.value,
            "source_time": cycle.source_time,
            "changes": cycle.changes,
            "tables": cycle.tables,
            **(_seen_row(cycle.seen) if cycle.seen is not None else {}),
        }
        self.add([row], Transaction(APP, cycle.safe.value), Transaction(_KNOWN, cycle.known.value))
        reached(Point.CYCLE_TOLD)


def _seen_row(seen: Seen) -> dict[str, object]:
    return {
        "snapshot": str(seen.snapshot),
        "source_lsn": seen.lsn.value,
        "timeline": seen.timeline,
        "reconciled_lsn": seen.reconciled.value,
    }


class Vacuums(_Register):
    """`_expired`: the oldest position that can be read, as the process that expires data holds it."""

    def __init__(self, lake: Path) -> None:
        super().__init__(lake / VACUUMS, _VACUUMS_SCHEMA)

    def tell(self, retained: Lsn) -> None:
        """Say that nothing below a position can be read any more. It never goes back."""
        if retained > _retained(self.table):
            row = {"written_at": datetime.now(UTC), "retained_lsn": retained.value}
            self.add([row], Transaction(APP, retained.value))
            reached(Point.WINDOW_TOLD)


def read_retained(lake: Path) -> Lsn:
    """The oldest position that can be read."""
    return _retained(opened(lake / VACUUMS)) if is_there(lake / VACUUMS) else Lsn.ZERO


def _retained(table: DeltaTable) -> Lsn:
    return Lsn(table.transaction_version(APP) or 0)


def read_events(lake: Path) -> tuple[Event, ...]:
    """What became of every table, in order."""
    if not is_there(lake / TABLES):
        return ()
    rows = _rows(lake / TABLES).sort_by("number").to_pylist()
    return tuple(
        Event(
            Kind(row["event"]),
            from_plain(json.loads(row["definition"])),
            row["path"],
            Lsn(row["after_lsn"]),
            Lsn(row["lsn"]),
            frozenset(map(Lsn, row["excluded_lsns"])),
            row["reason"],
            Snapshot.parse(row["snapshot"]) if row["snapshot"] is not None else None,
            row["polled"],
            row["fix"],
        )
        for row in rows
    )


def read_cycle(lake: Path) -> Cycle:
    """How far the lake has come, by its `txn` versions alone."""
    if not is_there(lake / CYCLES):
        return Cycle(Lsn.ZERO, Lsn.ZERO)
    return _last(opened(lake / CYCLES))


def read_seen(lake: Path) -> Seen | None:
    """What the last cycle saw, if that was a poll."""
    if not is_there(lake / CYCLES):
        return None
    cycles = read_times(lake)
    return seen_in(cycles.slice(len(cycles) - 1).to_pylist()[0]) if len(cycles) else None


def seen_in(row: Mapping[str, Any]) -> Seen | None:
    """What a cycle saw, if that was a poll."""
    if row["snapshot"] is None:
        return None
    snapshot, lsn, reconciled = Snapshot.parse(row["snapshot"]), Lsn(row["source_lsn"]), Lsn(row["reconciled_lsn"])
    return Seen(snapshot, lsn, row["timeline"], reconciled)


def read_times(lake: Path) -> pa.Table:
    """All cycles: when, how far, and the source's clock."""
    return _rows(lake / CYCLES).sort_by([(name, "ascending") for name in ("schema_lsn", "applied_lsn", "written_at")])


def _rows(folder: Path) -> pa.Table:
    """All rows, by Arrow's own file system.

    With deltalake's, Arrow's threads run Python, and one that still does so when the interpreter ends aborts it.
    """
    files = SubTreeFileSystem(str(folder), LocalFileSystem())
    return opened(folder).to_pyarrow_dataset(filesystem=files).to_table()


def _last(table: DeltaTable) -> Cycle:
    return Cycle(Lsn(table.transaction_version(APP) or 0), Lsn(table.transaction_version(_KNOWN) or 0))
