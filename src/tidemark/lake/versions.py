"""The `versions` of a table: every row with the interval in which it lived, in hash buckets of the key.

Live rows lie apart from those that have ended, so `_end_lsn is null` chooses whole files: a plain current table for
whoever reads Delta. A file's name says which it holds, and of which bucket; its statistics, whose versions it may have.
The `txn` version is the LSN that the table is folded to.

A generation is what came of one beginning of the table, or of one copy. The next one takes its place in one commit, and
says at which version of the Delta table the one before it ended: there it is read until vacuum lets it go.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from tidemark.clock import Boundary, Lsn
from tidemark.errors import LakeDamaged
from tidemark.lake.columns import StoredColumn, stored_columns
from tidemark.lake.commits import (
    APP,
    CONFIGURATION,
    STATISTICS,
    Commit,
    applied,
    commit,
    delta_schema,
    is_there,
    opened,
    schema_of,
)
from tidemark.lake.files import DataFile
from tidemark.lake.points import Point, reached

VERSIONS = "versions"
BEGIN_LSN, END_LSN = "_begin_lsn", "_end_lsn"
INTERVAL = pa.schema([(BEGIN_LSN, pa.int64()), (END_LSN, pa.int64())])
_BASE, _BEFORE = f"{APP}.base_lsn", f"{APP}.previous_version"
_CONFIGURATION = {
    **CONFIGURATION,
    STATISTICS: ",".join(INTERVAL.names),
    "delta.enableExpiredLogCleanup": "false",  # earlier generations: vacuum does it
}
_NAME = re.compile(r"(live|closed)-(\d+)-of-(\d+)-[0-9a-f]+\.parquet")


@dataclass(frozen=True, slots=True)
class VersionFile:
    """A file of `versions`: rows of one bucket that live, or that have ended, and when at the earliest and latest."""

    name: str
    bucket: int
    buckets: int
    rows: int
    size_bytes: int
    least_begin: Lsn
    greatest_begin: Lsn
    greatest_end: Lsn | None

    @property
    def live(self) -> bool:
        """Whether its rows live, at the position that the table is folded to."""
        return self.greatest_end is None


@dataclass(frozen=True, slots=True)
class Versions:
    """A table's versions at one moment. `base` is where the generation began that they belong to."""

    folder: Path
    files: tuple[VersionFile, ...]
    stored: tuple[StoredColumn, ...]
    folded: Lsn
    base: Lsn

    @property
    def live(self) -> tuple[VersionFile, ...]:
        """The files of rows that live."""
        return tuple(file for file in self.files if file.live)

    @property
    def buckets(self) -> int:
        """How many buckets there are; none of an empty table."""
        return next((file.buckets for file in self.live), 0)

    def path(self, file: VersionFile) -> str:
        """Where a file lies."""
        return str(self.folder / file.name)


class VersionTable:
    """The same as its writer holds it open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._table = opened(folder)

    @classmethod
    def create(cls, folder: Path, columns: Sequence[StoredColumn]) -> VersionTable:
        """Make it, or take what an earlier attempt made."""
        folder.mkdir(parents=True, exist_ok=True)
        DeltaTable.create(folder, delta_schema(version_schema(columns)), mode="ignore", configuration=_CONFIGURATION)
        return cls(folder)

    def read(self) -> Versions:
        """What it holds."""
        return _versions(self._folder, self._table)

    def replace(self, adds: Sequence[DataFile], removes: Iterable[VersionFile], folded: Lsn, base: Lsn) -> None:
        """Exchange files, and be folded to a position, in one commit."""
        gone = [file.name for file in removes]
        commit(self._table, self._folder, Commit(folded, adds, gone, also={_BASE: base.value}))

    def rewrite(
        self,
        adds: Sequence[DataFile],
        columns: Sequence[StoredColumn],
        folded: Lsn,
        base: Lsn,
        *,
        anew: bool = False,
    ) -> None:
        """Hold these files and no others, under these columns, in one commit; a generation begins `anew` anywhere."""
        also = {_BASE: base.value}
        if _base(self._table) not in (base, Lsn.ZERO):
            also[_BEFORE] = self._table.version()
        commit(self._table, self._folder, Commit(folded, adds, schema=version_schema(columns), also=also, anew=anew))


@dataclass(frozen=True, slots=True)
class StoredGeneration:
    """A generation of a table's versions without its files: at which version of the Delta table it is, or ended."""

    delta_version: int
    stored: tuple[StoredColumn, ...]
    folded: Lsn
    base: Lsn


def read_versions(lake: Path, path: str, base: Lsn | None = None) -> Versions | None:
    """A table's versions, if it has any: the present generation, or the one that began at `base`."""
    folder = lake / path / VERSIONS
    table = _opened(folder, base)
    return _versions(folder, table) if table is not None else None


def read_generation(lake: Path, path: str, base: Lsn | None = None) -> StoredGeneration | None:
    """The same without looking at its files."""
    table = _opened(lake / path / VERSIONS, base)
    if table is None:
        return None
    return StoredGeneration(table.version(), stored_columns(schema_of(table)), applied(table), _base(table))


def _opened(folder: Path, base: Lsn | None) -> DeltaTable | None:
    """The Delta table as it is, or as it was when the generation that began at `base` ended."""
    if not is_there(folder):
        return None
    table = opened(folder)
    while base is not None and _base(table) != base:
        earlier = _before(folder, table) if _base(table) > base else None
        if earlier is None:
            return None
        table = earlier
    return table


def end_versions(lake: Path, path: str, lsn: Lsn) -> int | None:
    """Have a table that was dropped hold no rows from there on; the version of the Delta table, if there is one.

    That is one more generation, which is empty: the one before it is read, and let go, as after any other. Done twice,
    it does nothing.
    """
    present = read_generation(lake, path)
    if present is not None and present.base < lsn:
        VersionTable(lake / path / VERSIONS).rewrite((), present.stored, lsn, lsn, anew=True)
        reached(Point.VERSIONS_ENDED)
        present = read_generation(lake, path)
    return present.delta_version if present is not None else None


def ends_before(lake: Path, path: str, bases: Collection[Lsn]) -> list[int]:
    """The versions of the Delta table at which earlier generations ended that began at one of these."""
    folder = lake / path / VERSIONS
    found: list[int] = []
    if not is_there(folder):
        return found
    table = opened(folder)
    wanted = {base for base in bases if base < _base(table)}
    while wanted and (earlier := _before(folder, table)) is not None:
        table = earlier
        if _base(table) in wanted:
            found.append(table.version())
        wanted = {base for base in wanted if base < _base(table)}
    return found


def _before(folder: Path, table: DeltaTable) -> DeltaTable | None:
    """The Delta table where the generation before this one ended, if there was one and it is kept."""
    version = table.transaction_version(_BEFORE)
    if version is None:
        return None
    try:
        return opened(folder, version)
    except LakeDamaged:
        return None  # vacuum has let it go


def held(versions: Versions | None, base: Boundary) -> Boundary:
    """What the versions of a generation hold: every change that this does not see came after them."""
    return base if versions is None or versions.folded == base.lsn else Boundary(versions.folded)


def version_schema(columns: Sequence[StoredColumn]) -> pa.Schema:
    """As Delta and Parquet keep them."""
    return pa.schema([*(column.field() for column in columns), *INTERVAL])


def prefix(bucket: int, buckets: int, *, live: bool) -> str:
    """How a file's name begins."""
    return f"{'live' if live else 'closed'}-{bucket:05}-of-{buckets:05}"


def _versions(folder: Path, table: DeltaTable) -> Versions:
    rows: list[Mapping[str, Any]] = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    files = tuple(_version_file(folder, row) for row in rows)
    return Versions(folder, files, stored_columns(schema_of(table)), applied(table), _base(table))


def _base(table: DeltaTable) -> Lsn:
    return Lsn(table.transaction_version(_BASE) or 0)


def _version_file(folder: Path, add: Mapping[str, Any]) -> VersionFile:
    named = _NAME.fullmatch(add["path"])
    least, greatest = ((add[of] or {}) for of in ("min", "max"))
    if named is None or least.get(BEGIN_LSN) is None or (named[1] == "closed" and greatest.get(END_LSN) is None):
        raise LakeDamaged(
            f"{folder / add['path']} was not written by Tidemark, or has no Delta statistics",
            "Restore the lake from a backup, or run `tidemark resync LAKE TABLE`.",
        )
    return VersionFile(
        add["path"],
        int(named[2]),
        int(named[3]),
        add["num_records"],
        add["size_bytes"],
        Lsn(least[BEGIN_LSN]),
        Lsn(greatest[BEGIN_LSN]),
        Lsn(greatest[END_LSN]) if named[1] == "closed" else None,
    )
