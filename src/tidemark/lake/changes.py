"""The `changes` of a table as one reads them: its files, and what their statistics tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidemark.clock import Boundary, Lsn
from tidemark.errors import LakeDamaged
from tidemark.lake.columns import CHANGE_TYPE, COMMIT_VERSION, OURS, TRUNCATE, UNCHANGED, StoredColumn, stored_columns
from tidemark.lake.commits import applied, opened, schema_of
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
    """A table's changes at one moment: its files, its columns, and up to where they have everything."""

    files: tuple[ChangeFile, ...]
    stored: tuple[StoredColumn, ...]
    applied: Lsn

    def between(self, base: Boundary, boundary: Boundary) -> tuple[ChangeFile, ...]:
        """Those that may have a change that the base does not see and the boundary does."""
        early = min(base.excluded, default=Lsn(base.lsn.value + 1))
        return tuple(file for file in self.files if file.least <= boundary.lsn and file.greatest >= early)


def read_changes(lake: Path, path: str, safe: Lsn) -> ChangeFiles:
    """A table's files. Whatever is safe is in them, also if the table itself has not heard of it."""
    folder = lake / path / CHANGES
    if not (folder / "_delta_log").exists():
        return ChangeFiles((), (), safe)
    table = opened(folder)
    rows: list[Mapping[str, Any]] = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    files = tuple(_change_file(folder, row) for row in rows)
    return ChangeFiles(files, stored_columns(schema_of(table)), max(applied(table), safe))


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
