"""The `changes` of a table as one reads them: its files, and what their statistics tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.clock import Boundary, Lsn
from tidemark.errors import LakeDamaged
from tidemark.lake.columns import CHANGE_TYPE, COMMIT_VERSION, OURS, TRUNCATE, UNCHANGED, StoredColumn, stored_columns
from tidemark.lake.commits import applied, is_there, opened, schema_of
from tidemark.lake.paths import CHANGES
from tidemark.lake.rows import INSERTED, PREIMAGE


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


def _change_file(folder: Path, add: Mapping[str, Any]) -> ChangeFile:
    nulls, rows = add["null_count"], add["num_records"]
    lacking = [name for name in OURS.names if nulls.get(name) is None]
    if lacking:
        raise LakeDamaged(
            f"{folder / add['path']} has no statistics of {', '.join(lacking)}", "the lake as we wrote it"
        )
    kinds = add["min"][CHANGE_TYPE], add["max"][CHANGE_TYPE]
    return ChangeFile(
        str(folder / add["path"]),
        frozenset(name for name, count in nulls.items() if count is not None),
        Lsn(add["min"][COMMIT_VERSION]),
        Lsn(add["max"][COMMIT_VERSION]),
        kinds == (INSERTED, INSERTED),
        nulls[TRUNCATE] < rows,
        nulls[UNCHANGED] < rows,
        kinds[1] == PREIMAGE,
        rows,
        add["size_bytes"],
    )
