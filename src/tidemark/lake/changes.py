"""The `changes` of a table as one reads them: its files, and what their statistics tell.

A file has the columns that the table had when its changes were made: its name has a digest of theirs, so that a reader
looks into one file for each such set of columns, and knows of all others which they have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2s
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.clock import Boundary, Lsn
from tidemark.errors import LakeDamaged
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
from tidemark.lake.commits import applied, is_there, opened, schema_of
from tidemark.lake.files import FileWriter
from tidemark.lake.paths import CHANGES
from tidemark.lake.rows import INSERTED, PREIMAGE

_NAME = re.compile(r"part-([0-9a-f]{32})-[0-9a-f]+\.parquet")
_RESTORE = "Restore the lake from a backup, or run `tidemark resync LAKE TABLE`."
_seen: dict[str, frozenset[str]] = {}  # the columns that a digest is of


@dataclass(frozen=True, slots=True)
class ChangeFile:
    """A file of `changes` and what its statistics tell."""

    path: str
    columns: frozenset[str]
    least: Lsn
    greatest: Lsn
    only_inserts: bool
    truncates: bool
    marks: bool
    preimages: bool
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ChangeFiles:
    """A table's changes at one moment: its files, its columns, and up to where they have everything.

    Files are many where a table is changed all the time, and a read needs few of them: they are told apart in Arrow.
    """

    folder: Path
    adds: pa.Table | None
    stored: tuple[StoredColumn, ...]
    applied: Lsn

    @property
    def files(self) -> tuple[ChangeFile, ...]:
        """All of them."""
        return self._of(self.adds) if self.adds is not None else ()

    def between(self, base: Boundary, boundary: Boundary) -> tuple[ChangeFile, ...]:
        """Those that may have a change that the base does not see and the boundary does."""
        if self.adds is None:
            return ()
        early = min(base.excluded, default=Lsn(base.lsn.value + 1))
        least, greatest = (pc.struct_field(self.adds[of], COMMIT_VERSION) for of in ("min", "max"))
        among = pc.and_(pc.less_equal(least, boundary.lsn.value), pc.greater_equal(greatest, early.value))
        return self._of(self.adds.filter(pc.fill_null(among, True)))

    def _of(self, adds: pa.Table) -> tuple[ChangeFile, ...]:
        return tuple(_change_file(self.folder, row) for row in adds.to_pylist())


def read_changes(lake: Path, path: str, safe: Lsn) -> ChangeFiles:
    """A table's files. Whatever is safe is in them, also if the table itself has not heard of it."""
    folder = lake / path / CHANGES
    if not is_there(folder):
        return ChangeFiles(folder, None, (), safe)
    table = opened(folder)
    adds = pa.table(table.get_add_actions(flatten=False))
    return ChangeFiles(folder, adds if len(adds) else None, stored_columns(schema_of(table)), max(applied(table), safe))


def change_writer(folder: Path, schema: pa.Schema) -> FileWriter:
    """Writes a file of changes that have these columns."""
    return FileWriter(folder, change_prefix(schema.names))


def change_prefix(columns: Iterable[str]) -> str:
    """How the name of a file of changes begins that has these columns."""
    return f"part-{_digest(columns)}"


def _digest(columns: Iterable[str]) -> str:
    return blake2s("\0".join(sorted(columns)).encode(), digest_size=16).hexdigest()


def _columns(file: Path) -> frozenset[str]:
    """The columns that a file has."""
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
