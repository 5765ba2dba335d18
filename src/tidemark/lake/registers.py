"""The small Delta tables of a lake: `_tables`, what became of every table, `_cycles`, how far it has come, `_vacuums`.

A cycle's row is written when every table has its changes: `safe` is then true of all of them. `known` is the position
up to which the schema of every table is known. Both are also the `txn` versions of the commit, which are read at once
however many cycles there were.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from tidemark.clock import Lsn, Snapshot
from tidemark.errors import LakeInUse
from tidemark.lake.commits import APP, CONFIGURATION, is_there, opened, require_version
from tidemark.lake.history import Event, Kind
from tidemark.lake.points import Point, reached
from tidemark.schema.plain import from_plain, to_plain

TABLES, CYCLES, VACUUMS = "_tables", "_cycles", "_vacuums"
_KNOWN = f"{APP}.known"
_TOKEN = f"{APP}.token"  # tells our own commit from another's
_COMPACT_EVERY = 100

_TABLES_SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("oid", pa.int64()),
        ("schema", pa.string()),
        ("name", pa.string()),
        ("path", pa.string()),
        ("event", pa.string()),
        ("after", pa.int64()),
        ("lsn", pa.int64()),
        ("excluded", pa.list_(pa.field("element", pa.int64()))),
        ("reason", pa.string()),
        ("fingerprint", pa.string()),
        ("number", pa.int64()),
        ("snapshot", pa.string()),
        ("observed", pa.bool_()),
    ]
)
_CYCLES_SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("safe", pa.int64()),
        ("known", pa.int64()),
        ("source_time", pa.timestamp("us", "UTC")),
        ("changes", pa.int64()),
        ("tables", pa.int32()),
        ("snapshot", pa.string()),
        ("seen", pa.int64()),
        ("timeline", pa.int64()),
        ("reconciled", pa.int64()),
    ]
)

_VACUUMS_SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("retained", pa.int64())])


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
                raise LakeInUse(f"{self.folder} could not be written: {error}", "again; or the other writer") from error
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
        "at": datetime.now(UTC),
        "oid": event.fingerprint.oid,
        "schema": event.fingerprint.schema,
        "name": event.fingerprint.name,
        "path": event.path,
        "event": event.kind.value,
        "after": event.after.value,
        "lsn": event.lsn.value,
        "excluded": sorted(lsn.value for lsn in event.excluded),
        "reason": event.reason,
        "fingerprint": json.dumps(to_plain(event.fingerprint)),
        "number": number,
        "snapshot": str(event.snapshot) if event.snapshot is not None else None,
        "observed": event.observed,
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
            "at": datetime.now(UTC),
            "safe": cycle.safe.value,
            "known": cycle.known.value,
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
        "seen": seen.lsn.value,
        "timeline": seen.timeline,
        "reconciled": seen.reconciled.value,
    }


class Vacuums(_Register):
    """`_vacuums`: up to where the past was let go, as the one who does it holds it."""

    def __init__(self, lake: Path) -> None:
        super().__init__(lake / VACUUMS, _VACUUMS_SCHEMA)

    def tell(self, retained: Lsn) -> None:
        """Say that nothing below a position can be read any more. It never goes back."""
        if retained > _retained(self.table):
            row = {"at": datetime.now(UTC), "retained": retained.value}
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
            from_plain(json.loads(row["fingerprint"])),
            row["path"],
            Lsn(row["after"]),
            Lsn(row["lsn"]),
            frozenset(map(Lsn, row["excluded"])),
            row["reason"],
            Snapshot.parse(row["snapshot"]) if row["snapshot"] is not None else None,
            row["observed"],
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
    rows = read_times(lake).select(["snapshot", "seen", "timeline", "reconciled"]).to_pylist()
    if not rows or rows[-1]["snapshot"] is None:
        return None
    last = rows[-1]
    return Seen(Snapshot.parse(last["snapshot"]), Lsn(last["seen"]), last["timeline"], Lsn(last["reconciled"]))


def read_times(lake: Path) -> pa.Table:
    """All cycles: when, how far, and the source's clock."""
    return _rows(lake / CYCLES).sort_by([("known", "ascending"), ("safe", "ascending"), ("at", "ascending")])


def _rows(folder: Path) -> pa.Table:
    """All rows, by Arrow's own file system.

    With deltalake's, Arrow's threads run Python, and one that still does so when the interpreter ends aborts it.
    """
    files = SubTreeFileSystem(str(folder), LocalFileSystem())
    return opened(folder).to_pyarrow_dataset(filesystem=files).to_table()


def _last(table: DeltaTable) -> Cycle:
    return Cycle(Lsn(table.transaction_version(APP) or 0), Lsn(table.transaction_version(_KNOWN) or 0))
