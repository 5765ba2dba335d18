"""The plan of a copy: all tables that are copied in one snapshot, with the parts that are missing and complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.errors import UNREADABLE, TableChanged, TidemarkError, TimedOut, UnexpectedSourceError
from tidemark.lake.columns import StoredColumn
from tidemark.lake.shared import shared_folder
from tidemark.lake.versions import VERSIONS, Generation
from tidemark.pipeline.copy.job import CopiedPart, CopiedTable, CopyWork
from tidemark.pipeline.copy.parts import Part, buckets_for, parts_of
from tidemark.pipeline.copy.reading import pages_of
from tidemark.pipeline.copy.snapshots import CopySnapshot
from tidemark.pipeline.copy.sources import STAGING, PartSources
from tidemark.pipeline.copy.writing import CopyLayout
from tidemark.pipeline.fold.layout import version_columns
from tidemark.postgres.blockers import naming_lockers
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.reads.shown import is_streamed, shown_table
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableHistory
from tidemark.values.hashes import can_hash
from tidemark.values.types import Types


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """The source, the lake, and the number of tasks; commits during the copy are received into `log`.

    Nothing above `endpos` is received, so a copy with a base above it cannot be accepted.
    """

    source: Dsn
    log: Path
    lake: Path
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

    def add(self, done: CopiedPart) -> Generation | None:
        """Add a completed part; return the generation of the table if it was the last one."""
        oid = done.part.oid
        self.missing[oid].remove(done.part)
        self.copied.setdefault(oid, []).append(done)
        return None if self.missing[oid] or oid in self.given_up else self._generation(oid)

    def _generation(self, oid: int) -> Generation:
        parts, table = self.copied[oid], self.work.tables[oid]
        texts = frozenset[int]().union(*(part.texts for part in parts))
        columns: list[StoredColumn] = []
        for column in table.layout.columns:
            columns += [column, column.fallback_column()] if column.attnum in texts else [column]
        files = tuple(file for part in parts for file in part.files)
        return Generation(table.fingerprint, self.base, self.snapshot, tuple(columns), files)


def plan_copy(
    options: CopyOptions,
    snapshot: CopySnapshot,
    wanted: Mapping[int, TableHistory],
) -> SnapshotCopy:
    """Read the tables in the snapshot and divide them into parts. Dropped, locked or unreadable tables are refused."""
    tables: dict[int, CopiedTable] = {}
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
                pages, page_bytes = pages_of(session, oid)
                fingerprint = Fingerprint.of(catalog[oid], options.names.all_publications)
                parts = list(parts_of(oid, pages, page_bytes, options.tasks))
                layout = _layout(fingerprint, history, types, snapshot.base, sum(part.size_bytes for part in parts))
            except TimedOut as error:
                refused[oid] = naming_lockers(session, oid, error)
                continue
            except (*UNREADABLE, UnexpectedSourceError) as error:
                refused[oid] = error
                continue
            missing[oid] = parts
            columns = tuple(column for column in fingerprint.columns if is_streamed(column, types.version_num))
            tables[oid] = CopiedTable(fingerprint, columns, options.lake / history.path / VERSIONS, layout)
    sources = PartSources(snapshot.shared, options.lake / STAGING)
    return SnapshotCopy(
        snapshot.base,
        Snapshot.parse(seen),
        sources,
        CopyWork(shared_folder(options.lake), types, tables),
        missing,
        refused,
    )


def _layout(
    fingerprint: Fingerprint, history: TableHistory, types: Types, base: Boundary, size_bytes: int
) -> CopyLayout:
    """The layout of a copy: streamed columns, named as in `versions`; one bucket if the key cannot be hashed."""
    homes = version_columns(shown_table(history, fingerprint, (), types), ())
    stored = tuple(home for home in homes if not home.text)
    kinds = {home.attnum: home.type for home in stored}
    hashed = [kinds[attnum] for attnum in fingerprint.key] or list(kinds.values())
    buckets = buckets_for(size_bytes) if hashed and all(map(can_hash, hashed)) else 1
    return CopyLayout(stored, fingerprint.key, buckets, base.floor)
