"""Records of large copies, from which another process continues them: `_copies/ID.json`, and an object for each part.

The record of a copy is created when its parts are planned, before any is copied. The object of a part is created when
the part is complete, so it names files that exist. The process that copies has the lock of the record; a record
without a lock was left by a process that was killed. It keeps changes and files until another process continues the
copy, or until the expire job removes it, `ABANDONED_S` after its last part.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.errors import LakeInUse
from tidemark.schema.fingerprint import Fingerprint, from_plain, to_plain
from tidemark.schema.history import TableEventKind, TableHistory
from tidemark.storage import open_storage
from tidemark.storage.interface import StorageLock

FOLDER = "_copies"
_RECORD, _PART, _LOCK = ".json", ".part", ".lock"
ABANDONED_S = 6 * 3600.0
_WAIT_S = 5.0  # the process that holds the snapshot locks a record for a moment

PartRange = tuple[int, int | None, int]


@dataclass(frozen=True, slots=True)
class RecordedTable:
    """One table of a copy: its definition, and its parts (first page, end, bytes).

    `last_event` is the last of its events, when the copy started, that affects what can be read.
    """

    fingerprint: Fingerprint
    parts: tuple[PartRange, ...]
    last_event: str


@dataclass(frozen=True, slots=True)
class RecordedCopy:
    """A copy of several tables in one snapshot, which another process holds under the name `snapshot_id`."""

    snapshot_id: str
    snapshot: Snapshot
    base: Boundary
    tables: Mapping[int, RecordedTable]

    def packed(self) -> bytes:
        """The record as JSON."""
        plain = {
            "written_at": time.time(),
            "snapshot_id": self.snapshot_id,
            "snapshot": str(self.snapshot),
            "lsn": str(self.base.lsn),
            "excluded": sorted(map(str, self.base.excluded)),
            "tables": [
                {
                    "definition": to_plain(table.fingerprint),
                    "parts": table.parts,
                    "last_event": table.last_event,
                }
                for table in self.tables.values()
            ],
        }
        return json.dumps(plain).encode()

    @classmethod
    def parse(cls, data: bytes) -> RecordedCopy:
        """Parse a record."""
        plain = json.loads(data)
        tables = [
            RecordedTable(
                from_plain(each["definition"]),
                tuple((first, end, size) for first, end, size in each["parts"]),
                each["last_event"],
            )
            for each in plain["tables"]
        ]
        base = Boundary(Lsn.parse(plain["lsn"]), frozenset(map(Lsn.parse, plain["excluded"])))
        by_oid = {table.fingerprint.oid: table for table in tables}
        return cls(plain["snapshot_id"], Snapshot.parse(plain["snapshot"]), base, by_oid)


@dataclass(frozen=True, slots=True)
class RecordedPart:
    """A complete part of a table, by its first page, and its files as the sink describes them."""

    oid: int
    first: int
    rows: int
    files: Sequence[Mapping[str, Any]]


class CopyRecord:
    """The record of a copy, locked until `close` or `remove`, or the end of the process."""

    def __init__(self, lake: Path, identifier: str | None = None) -> None:
        self.id = identifier or uuid4().hex
        self._storage = open_storage(lake)
        lock = self._storage.lock(self._key(_LOCK), _WAIT_S)
        if lock is None:
            raise LakeInUse(f"another process continues the copy {self.id} in {lake}", "Stop that process first.")
        self._lock: StorageLock = lock

    def write(self, copy: RecordedCopy) -> None:
        """Record the plan of the copy."""
        self._storage.write(self._key(_RECORD), copy.packed())

    def read(self) -> RecordedCopy | None:
        """Return the recorded plan, or None if there is none or it is of another version of Tidemark."""
        data = self._storage.read(self._key(_RECORD))
        try:
            return RecordedCopy.parse(data) if data is not None else None
        except (ValueError, KeyError, TypeError):
            return None

    def add(self, part: RecordedPart) -> None:
        """Record a complete part."""
        plain = {"oid": part.oid, "first": part.first, "rows": part.rows, "files": list(part.files)}
        plain["written_at"] = time.time()
        self._storage.write(self._key(f"-{part.oid}-{part.first}{_PART}"), json.dumps(plain).encode())

    def parts(self) -> list[RecordedPart]:
        """Return the complete parts."""
        return [part for key, part in _parts(self._storage.root) if key.startswith(f"{FOLDER}/{self.id}-")]

    def remove(self) -> None:
        """Delete the record, its parts first: the copy has ended. The process that holds the snapshot ends then."""
        try:
            for key in self._storage.list_keys(FOLDER, _PART):
                if key.startswith(f"{FOLDER}/{self.id}-"):
                    self._storage.delete(key)
            self._storage.delete(self._key(_RECORD))
            self._storage.delete(self._key(_LOCK))
        finally:
            self._lock.close()

    def close(self) -> None:
        """Release the lock, and leave the record to another process."""
        self._lock.close()

    def _key(self, suffix: str) -> str:
        return f"{FOLDER}/{self.id}{suffix}"


def left_records(lake: Path) -> list[CopyRecord]:
    """Lock and return the records that processes have left which were killed."""
    keys = open_storage(lake).list_keys(FOLDER, _RECORD)
    with ExitStack() as failing:
        records = []
        for key in keys:
            record = CopyRecord(lake, key.removeprefix(f"{FOLDER}/").removesuffix(_RECORD))
            failing.callback(record.close)
            records.append(record)
        failing.pop_all()
    return records


def remove_records(lake: Path) -> None:
    """Delete the records that killed processes have left: their copies cannot be continued."""
    for record in left_records(lake):
        record.remove()


def remove_abandoned(lake: Path) -> None:
    """Delete the records that no process has continued for `ABANDONED_S`, and locks that were left without a record."""
    storage, past = open_storage(lake), time.time() - ABANDONED_S
    written: dict[str, float] = {}
    for suffix in (_LOCK, _RECORD, _PART):
        for key in storage.list_keys(FOLDER, suffix):
            identifier, at = key.removeprefix(f"{FOLDER}/").removesuffix(suffix).partition("-")[0], 0.0
            if suffix != _LOCK:
                with suppress(ValueError, KeyError, TypeError):  # of another version of Tidemark
                    at = json.loads(storage.read(key) or b"")["written_at"]
            written[identifier] = max(at, written.get(identifier, 0.0))
    for identifier in [identifier for identifier, at in written.items() if at < past]:
        if not is_copying(lake, identifier):
            with suppress(LakeInUse):
                CopyRecord(lake, identifier).remove()


def is_recorded(lake: Path, identifier: str) -> bool:
    """Whether a copy has not ended."""
    return open_storage(lake).read(f"{FOLDER}/{identifier}{_RECORD}") is not None


def is_copying(lake: Path, identifier: str) -> bool:
    """Whether a process has the lock of a record."""
    return open_storage(lake).is_locked(f"{FOLDER}/{identifier}{_LOCK}")


def recorded_files(lake: Path) -> set[str]:
    """Return the names of the files of all complete parts, which belong to no table yet."""
    return {str(file["path"]) for _, part in _parts(str(lake)) for file in part.files}


def recorded_floors(lake: Path) -> tuple[Lsn, ...]:
    """Return the LSN of each copy that has not ended, sorted: to continue it, the changes above this are needed."""
    storage, floors = open_storage(lake), []
    for key in storage.list_keys(FOLDER, _RECORD):
        data = storage.read(key)
        with suppress(ValueError, KeyError, TypeError):  # of another version of Tidemark: it cannot be continued
            floors.append(RecordedCopy.parse(data or b"").base.floor)
    return tuple(sorted(floors))


def last_event(history: TableHistory) -> str:
    """The last event of a table that affects what can be read; it is kept when earlier ones expire."""
    lasting = [event for event in history.events if event.kind is not TableEventKind.WAITING]
    return f"{lasting[-1].kind.value} {lasting[-1].after} {lasting[-1].lsn}" if lasting else ""


def _parts(lake: str) -> list[tuple[str, RecordedPart]]:
    storage = open_storage(Path(lake))
    found = []
    for key in storage.list_keys(FOLDER, _PART):
        data = storage.read(key)
        with suppress(ValueError, KeyError, TypeError):  # of another version of Tidemark
            plain = json.loads(data or b"")
            found.append((key, RecordedPart(plain["oid"], plain["first"], plain["rows"], plain["files"])))
    return found
