"""The `versions` of a table: every row version with its interval of LSNs, in hash buckets of the key.

Current rows are in other files than closed versions, so `_end_lsn is null` selects whole files: for other Delta readers
this is a plain current table. A file's name contains its kind and its bucket; its statistics contain the bounds of its
intervals. The `txn` version is the folded LSN.

A generation results from one start of the table, or one copy. The next generation replaces it in one commit, which
records the last Delta version of the previous generation. That one is read at this Delta version until it expires.
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
from tidemark.lake.cached import cached
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
    reopened,
    schema_of,
    versions_in,
)
from tidemark.lake.files import DataFile
from tidemark.lake.paths import VERSIONS
from tidemark.storage.fail_points import FailPoint, fail_point

BEGIN_LSN, END_LSN = "_begin_lsn", "_end_lsn"
INTERVAL = pa.schema([(BEGIN_LSN, pa.int64()), (END_LSN, pa.int64())])
_BASE, _BEFORE = f"{APP}.base_lsn", f"{APP}.previous_version"
_CONFIGURATION = {**CONFIGURATION, STATISTICS: ",".join(INTERVAL.names)}
_NAME = re.compile(r"(live|closed)-(\d+)-of-(\d+)-[0-9a-f]+\.parquet")


@dataclass(frozen=True, slots=True)
class VersionFile:
    """A file of `versions`: current or closed rows of one bucket, with the bounds of their intervals."""

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
        """Whether its rows are current at the folded LSN."""
        return self.greatest_end is None


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of a table at one Delta version. `base` is the base LSN of their generation."""

    folder: Path
    files: tuple[VersionFile, ...]
    stored: tuple[StoredColumn, ...]
    folded: Lsn
    base: Lsn

    @property
    def live(self) -> tuple[VersionFile, ...]:
        """The files of current rows."""
        return tuple(file for file in self.files if file.live)

    @property
    def buckets(self) -> int:
        """The number of buckets, or 0 if there are no current rows."""
        return next((file.buckets for file in self.live), 0)

    def path(self, file: VersionFile) -> str:
        """Return the path of a file."""
        return str(self.folder / file.name)


class VersionTable:
    """The versions of a table, opened by their writer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._table = opened(folder)
        self._known = versions_in(self._table, (APP, _BASE))

    @classmethod
    def create(cls, folder: Path, columns: Sequence[StoredColumn]) -> VersionTable:
        """Create the table, or open the one that an earlier attempt created."""
        folder.mkdir(parents=True, exist_ok=True)
        DeltaTable.create(folder, delta_schema(version_schema(columns)), mode="ignore", configuration=_CONFIGURATION)
        return cls(folder)

    def read(self) -> Versions:
        """Return the current versions."""
        return _versions(self._folder, self._table)

    def generation(self) -> StoredGeneration:
        """Return the current generation, without reading the list of its files."""
        return _stored_generation(self._table)

    def replace(self, adds: Sequence[DataFile], removes: Iterable[VersionFile], folded: Lsn, base: Lsn) -> None:
        """Replace files and advance the folded LSN in one commit."""
        self._refresh()
        gone = [file.name for file in removes]
        self._commit(Commit(folded, adds, gone, also={_BASE: base.value}))

    def rewrite(
        self,
        adds: Sequence[DataFile],
        columns: Sequence[StoredColumn],
        folded: Lsn,
        base: Lsn,
        *,
        anew: bool = False,
    ) -> None:
        """Replace all files and columns in one commit. With `anew`, which starts a generation, the LSN may be lower."""
        self._refresh()
        also = {_BASE: base.value}
        if _base(self._table) not in (base, Lsn.ZERO):
            also[_BEFORE] = self._table.version()
        self._commit(Commit(folded, adds, schema=version_schema(columns), also=also, anew=anew))

    def _refresh(self) -> None:
        """Open the table again if its log no longer has the commit of this handle: a fold may take longer than that."""
        self._table = reopened(self._table, self._folder, self._known)

    def _commit(self, what: Commit) -> None:
        commit(self._table, self._folder, what)
        self._known = {APP: what.lsn.value, _BASE: what.also[_BASE]}


@dataclass(frozen=True, slots=True)
class StoredGeneration:
    """A generation of a table's versions without its files, and the Delta version at which it is current or ended."""

    delta_version: int
    stored: tuple[StoredColumn, ...]
    folded: Lsn
    base: Lsn


def read_versions(lake: Path, path: str, base: Lsn | None = None) -> Versions | None:
    """Return the versions of a table, if there are any: the current generation, or the one with this base."""
    folder = lake / path / VERSIONS
    return cached(folder, f"versions {base}", lambda table: _generation(folder, table, base))


def _generation(folder: Path, table: DeltaTable, base: Lsn | None) -> Versions | None:
    found = _of_base(folder, table, base)
    return _versions(folder, found) if found is not None else None


def read_generation(lake: Path, path: str, base: Lsn | None = None) -> StoredGeneration | None:
    """Return the current generation, or the one with this base, without reading the list of its files."""
    table = _opened(lake / path / VERSIONS, base)
    return _stored_generation(table) if table is not None else None


def _stored_generation(table: DeltaTable) -> StoredGeneration:
    return StoredGeneration(table.version(), stored_columns(schema_of(table)), applied(table), _base(table))


def _opened(folder: Path, base: Lsn | None) -> DeltaTable | None:
    """Open the current Delta version, or the last one of the generation with this base; None if it does not exist."""
    return _of_base(folder, opened(folder), base) if is_there(folder) else None


def _of_base(folder: Path, table: DeltaTable, base: Lsn | None) -> DeltaTable | None:
    while base is not None and _base(table) != base:
        earlier = _before(folder, table) if _base(table) > base else None
        if earlier is None:
            return None
        table = earlier
    return table


def end_versions(lake: Path, path: str, lsn: Lsn) -> int | None:
    """Make the versions of a dropped table empty from an LSN on; return the Delta version, or None if there are none.

    The commit is a new, empty generation, so the previous one is read and expires like any other. Idempotent. Raises
    LakeInUse if another process commits meanwhile: the table may have returned, and this be its first generation since.
    """
    if not is_there(lake / path / VERSIONS):
        return None
    table = VersionTable(lake / path / VERSIONS)
    present = table.generation()
    if present.base < lsn:
        table.rewrite((), present.stored, lsn, lsn, anew=True)
        fail_point(FailPoint.VERSIONS_ENDED)
    return table.generation().delta_version


@dataclass(frozen=True, slots=True)
class EarlierGeneration:
    """The last Delta version of a generation that was replaced; one that no read needs leads to an earlier one."""

    delta_version: int
    is_read: bool


def earlier_generations(lake: Path, path: str, bases: Collection[Lsn]) -> list[EarlierGeneration]:
    """Return the earlier generations that have one of these bases, and those in between, from the last one on."""
    folder = lake / path / VERSIONS
    found: list[EarlierGeneration] = []
    if not is_there(folder):
        return found
    table = opened(folder)
    wanted = {base for base in bases if base < _base(table)}
    while wanted and (earlier := _before(folder, table)) is not None:
        table = earlier
        found.append(EarlierGeneration(table.version(), _base(table) in wanted))
        wanted = {base for base in wanted if base < _base(table)}
    return found


def _before(folder: Path, table: DeltaTable) -> DeltaTable | None:
    """Open the last Delta version of the previous generation; None if there was none or it has expired."""
    version = table.transaction_version(_BEFORE)
    if version is None:
        return None
    try:
        return opened(folder, version)
    except LakeDamaged:
        return None  # expired


def held(versions: Versions | None, base: Boundary) -> Boundary:
    """Return the boundary that the versions of a generation contain: a change not visible there is not part of them."""
    return base if versions is None or versions.folded == base.lsn else Boundary(versions.folded)


def version_schema(columns: Sequence[StoredColumn]) -> pa.Schema:
    """Return the Arrow schema of versions with these columns."""
    return pa.schema([*(column.field() for column in columns), *INTERVAL])


def prefix(bucket: int, buckets: int, *, live: bool) -> str:
    """Return the prefix of a file name."""
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
