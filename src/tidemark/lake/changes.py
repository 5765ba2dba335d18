"""Reading the `changes` of a table: its files and their statistics.

A file has the columns that the table had when the changes were made. The file name contains a digest of its column
names, so that a reader opens one file per set of columns to learn the columns of all files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2s
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tidemark.clock import Boundary, Lsn
from tidemark.errors import LakeDamaged
from tidemark.lake.cached import cached
from tidemark.lake.columns import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    OURS,
    TRUNCATE,
    UNCHANGED,
    StoredColumn,
    stored_columns,
)
from tidemark.lake.commits import applied, schema_of
from tidemark.lake.files import FileWriter
from tidemark.lake.paths import CHANGES
from tidemark.lake.rows import INSERTED, PREIMAGE

_NAME = re.compile(r"part-([0-9a-f]{32})-[0-9a-f]+\.parquet")
_RESTORE = "Restore the lake from a backup, or run `tidemark resync LAKE TABLE`."
_seen: dict[str, frozenset[str]] = {}  # digest: column names


@dataclass(frozen=True, slots=True)
class ChangeFile:
    """A file of `changes` and its statistics: the range of its commit LSNs and the kinds of its changes."""

    path: str
    columns: frozenset[str]
    least: Lsn
    greatest: Lsn
    only_inserts: bool
    truncates: bool
    unchanged: bool
    preimages: bool
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ChangeFiles:
    """The change files of a table at one Delta version, its stored columns, and the LSN up to which they are complete.

    A frequently changed table has many files, of which a read needs few. They are therefore filtered in Arrow.
    """

    folder: Path
    adds: pa.Table | None
    stored: tuple[StoredColumn, ...]
    applied: Lsn

    @property
    def files(self) -> tuple[ChangeFile, ...]:
        """All files."""
        return self._of(self.adds) if self.adds is not None else ()

    def between(self, base: Boundary, boundary: Boundary) -> tuple[ChangeFile, ...]:
        """Return the files that may contain a change that is visible at `boundary` and not at `base`."""
        if self.adds is None:
            return ()
        early = min(base.excluded, default=Lsn(base.lsn.value + 1))
        least, greatest = (pc.struct_field(self.adds[of], COMMIT_VERSION) for of in ("min", "max"))
        among = pc.and_(pc.less_equal(least, boundary.lsn.value), pc.greater_equal(greatest, early.value))
        return self._of(self.adds.filter(pc.fill_null(among, True)))

    def upto(self, lsn: Lsn) -> tuple[ChangeFile, ...]:
        """Return the files that contain no change above an LSN."""
        if self.adds is None:
            return ()
        greatest = pc.struct_field(self.adds["max"], COMMIT_VERSION)
        return self._of(self.adds.filter(pc.fill_null(pc.less_equal(greatest, lsn.value), False)))

    def _of(self, adds: pa.Table) -> tuple[ChangeFile, ...]:
        return tuple(_change_file(self.folder, row) for row in adds.to_pylist())


def read_changes(lake: Path, path: str, applied_lsn: Lsn) -> ChangeFiles:
    """Return the change files of a table, complete up to the higher of the table's own and the lake's applied LSN.

    `applied_lsn` is that of the lake. A table without changes in a cycle is not committed, so its own can be lower.
    """
    folder = lake / path / CHANGES
    found = cached(folder, "files", lambda table: _files(folder, table))
    if found is None:
        return ChangeFiles(folder, None, (), applied_lsn)
    return replace(found, applied=max(found.applied, applied_lsn))


def _files(folder: Path, table: DeltaTable) -> ChangeFiles:
    adds = pa.table(table.get_add_actions(flatten=False))
    return ChangeFiles(folder, adds if len(adds) else None, stored_columns(schema_of(table)), applied(table))


def change_writer(folder: Path, schema: pa.Schema) -> FileWriter:
    """Return a writer for a file of changes with these columns."""
    return FileWriter(folder, change_prefix(schema.names))


def change_prefix(columns: Iterable[str]) -> str:
    """Return the prefix of the names of change files that have these columns."""
    return f"part-{_digest(columns)}"


def _digest(columns: Iterable[str]) -> str:
    return blake2s("\0".join(sorted(columns)).encode(), digest_size=16).hexdigest()


def _columns(file: Path) -> frozenset[str]:
    """Return the names of a file's columns, which are read from one file per digest."""
    named = _NAME.fullmatch(file.name)
    digest = named[1] if named is not None else ""
    if digest not in _seen:
        try:
            names = frozenset(pq.read_schema(file).names)
        except (OSError, pa.ArrowException) as error:
            raise LakeDamaged(f"cannot read {file}: {error}", _RESTORE) from error
        if _digest(names) != digest:
            raise LakeDamaged(f"{file} was not written by Tidemark, or its columns were changed", _RESTORE)
        _seen[digest] = names
    return _seen[digest]


def _change_file(folder: Path, add: Mapping[str, Any]) -> ChangeFile:
    nulls, rows = add["null_count"], add["num_records"]
    lacking = [name for name in OURS.names if name != COMMIT_TIMESTAMP and nulls.get(name) is None]
    if lacking:
        raise LakeDamaged(f"{folder / add['path']} has no Delta statistics for {', '.join(lacking)}", _RESTORE)
    kinds = add["min"][CHANGE_TYPE], add["max"][CHANGE_TYPE]
    return ChangeFile(
        str(folder / add["path"]),
        _columns(folder / add["path"]),
        Lsn(add["min"][COMMIT_VERSION]),
        Lsn(add["max"][COMMIT_VERSION]),
        kinds == (INSERTED, INSERTED),
        nulls[TRUNCATE] < rows,
        nulls[UNCHANGED] < rows,
        kinds[1] == PREIMAGE,
        rows,
        add["size_bytes"],
    )
