"""The plan of a copy: all tables that are copied in one snapshot, with the parts that are missing and complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.errors import UNREADABLE, TableChanged, TidemarkError, TimedOut, UnexpectedSourceError
from tidemark.lake.copy_records import RecordedTable
from tidemark.pipeline.copy.job import CopiedPart, CopiedTable, CopyWork
from tidemark.pipeline.copy.parts import Part, parts_of
from tidemark.pipeline.copy.reading import pages_of
from tidemark.pipeline.copy.snapshots import CopySnapshot
from tidemark.pipeline.copy.sources import PartSources
from tidemark.pipeline.sinks.sink import STAGING, Sink, TableCopy
from tidemark.postgres.blockers import naming_lockers
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.reads.shown import is_streamed
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableHistory
from tidemark.values.types import Types


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """The source and the number of tasks; commits during the copy are received into `log`.

    Nothing above `endpos` is received, so a copy with a base above it cannot be accepted.
    """

    source: Dsn
    log: Path
    names: MirrorNames
    tasks: int
    endpos: Lsn | None = None


@dataclass(slots=True)
class SnapshotCopy:
    """Tables with their missing and their completed parts."""

    base: Boundary
    snapshot: Snapshot
    sources: PartSources
    work: CopyWork
    missing: dict[int, list[Part]]
    refused: dict[int, TidemarkError] = field(default_factory=dict)
    copied: dict[int, list[CopiedPart]] = field(default_factory=dict)
    given_up: set[int] = field(default_factory=set)

    def parts(self) -> list[Part]:
        """The missing parts of all tables."""
        return [part for parts in self.missing.values() for part in parts]

    def size_bytes(self, oid: int) -> int:
        """The size of the missing parts of a table."""
        return sum(part.size_bytes for part in self.missing[oid])

    def add(self, done: CopiedPart) -> TableCopy | None:
        """Add a completed part; return the copy of the table if it was the last one."""
        oid = done.part.oid
        self.missing[oid].remove(done.part)
        self.copied.setdefault(oid, []).append(done)
        return None if self.missing[oid] or oid in self.given_up else self._copy(oid)

    def _copy(self, oid: int) -> TableCopy:
        table = self.work.tables[oid]
        written = tuple(each for part in self.copied[oid] for each in part.written)
        return TableCopy(table.fingerprint, self.base, self.snapshot, table.target, written)


def plan_copy(
    sink: Sink,
    snapshot: CopySnapshot,
    names: MirrorNames,
    tasks: int,
    wanted: Mapping[int, TableHistory],
    recorded: Mapping[int, RecordedTable] | None = None,
) -> SnapshotCopy:
    """Read the tables in the snapshot and divide them into parts. Dropped, locked or unreadable tables are refused.

    Tables of a copy that is continued are divided as they were `recorded`, and refused if they have changed since.
    """
    copied: dict[int, CopiedTable] = {}
    missing: dict[int, list[Part]] = {}
    refused: dict[int, TidemarkError] = {}
    with snapshot.shared.session("copy") as session:
        (seen,) = session.row("select pg_current_snapshot()::text")
        catalog = read_catalog(session).by_oid
        known = {column.type.oid: column.type for table in catalog.values() for column in table.columns}
        types = Types(known, session.version_num)
        for oid, history in wanted.items():
            if oid not in catalog:
                refused[oid] = TableChanged(f"table {history.name} was dropped")
                continue
            try:
                fingerprint = Fingerprint.of(catalog[oid], names.all_publications)
                if recorded is None:
                    parts = list(parts_of(oid, *pages_of(session, oid), tasks))
                elif fingerprint == recorded[oid].fingerprint:
                    parts = [Part(oid, first, end, size) for first, end, size in recorded[oid].parts]
                else:
                    refused[oid] = TableChanged(f"table {history.name} was altered")
                    continue
                size = sum(part.size_bytes for part in parts)
                target = sink.copy_target(history, fingerprint, types, snapshot.base, size)
            except TimedOut as error:
                refused[oid] = naming_lockers(session, oid, error)
                continue
            except (*UNREADABLE, UnexpectedSourceError) as error:
                refused[oid] = error
                continue
            missing[oid] = parts
            columns = tuple(column for column in fingerprint.columns if is_streamed(column, types.version_num))
            copied[oid] = CopiedTable(fingerprint, columns, target)
    sources = PartSources(snapshot.shared, sink.shared.path / STAGING)
    return SnapshotCopy(
        snapshot.base,
        Snapshot.parse(seen),
        sources,
        CopyWork(types, copied),
        missing,
        refused,
    )
