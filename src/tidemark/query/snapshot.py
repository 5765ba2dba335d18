"""What a read is made from: the log's position, then how far the lake is, then a table's files, in this order.

Data moves from the log to the lake and is removed from the log only afterwards. So whoever looks upstream first misses
nothing in between: changes up to `applied` are in the files, those above it in the log's tail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from tidemark.clock import Boundary, Lsn
from tidemark.errors import LakeDamaged, LogError, NotAnswerable
from tidemark.lake.columns import CHANGE_TYPE, COMMIT_VERSION, OURS, TRUNCATE, UNCHANGED, StoredColumn, stored_columns
from tidemark.lake.commits import applied, opened, schema_of
from tidemark.lake.lake import Lake
from tidemark.lake.paths import CHANGES
from tidemark.lake.registers import Cycle
from tidemark.lake.rows import INSERTED, PREIMAGE
from tidemark.log.disk import Disk
from tidemark.log.mirror import read_mirror
from tidemark.log.reader import LogReader
from tidemark.query.contents import Facts


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


@dataclass(frozen=True, slots=True)
class ChangeFiles:
    """A table's changes at one moment: its files, its columns, and up to where they have everything."""

    files: tuple[ChangeFile, ...]
    stored: tuple[StoredColumn, ...]
    applied: Lsn

    def between(self, base: Boundary, boundary: Boundary) -> tuple[ChangeFile, ...]:
        """Those that may have a change that the base does not see and the boundary does."""
        early = min(base.excluded, default=base.lsn)
        return tuple(file for file in self.files if file.least <= boundary.lsn and file.greatest >= early)


class LakeView:
    """The lake and the log as they are now; taken anew for every read."""

    def __init__(self, lake: Lake, reader: LogReader | None) -> None:
        self.lake = lake
        self.reader = reader
        if reader is not None:
            reader.refresh()
        self.received = reader.received if reader is not None else Lsn.ZERO
        self.cycle: Cycle = lake.cycle()

    @cached_property
    def answerable(self) -> Lsn:
        """The last position at which all is known: what was committed, and how the tables were defined."""
        return min(self.cycle.known, max(self.received, self.cycle.safe))

    def require(self, boundary: Boundary) -> None:
        """Refuse what lies above."""
        if boundary.lsn > self.answerable:
            raise NotAnswerable(
                f"{boundary.lsn} cannot be answered yet: the mirror knows all up to {self.answerable}",
                f"--at latest, an LSN up to {self.answerable}, or again later",
            )

    def changes(self, path: str) -> ChangeFiles:
        """A table's files. Whatever is safe is in them, also if the table itself has not heard of it."""
        folder = self.lake.path / path / CHANGES
        if not (folder / "_delta_log").exists():
            return ChangeFiles((), (), self.cycle.safe)
        table = opened(folder)
        files = tuple(_change_file(folder, row) for row in _adds(table))
        return ChangeFiles(files, stored_columns(schema_of(table)), max(applied(table), self.cycle.safe))


def log_reader(lake: Lake) -> LogReader | None:
    """The lake's log, if it can be reached from here and goes on where the lake ends."""
    try:
        mirror = read_mirror(lake.log, Disk())
        if mirror is None or mirror.start is None or not lake.is_continued_by(mirror.identity, mirror.start):
            return None
        return LogReader(lake.log)
    except LogError:
        return None


def facts_of(files: tuple[ChangeFile, ...]) -> Facts:
    """What the statistics of these files tell together."""
    return Facts(
        only_inserts=all(file.only_inserts for file in files),
        truncates=any(file.truncates for file in files),
        marks=any(file.marks for file in files),
        preimages=any(file.preimages for file in files),
    )


def both(one: Facts, other: Facts) -> Facts:
    """What holds of two sets of changes taken together."""
    return Facts(
        only_inserts=one.only_inserts and other.only_inserts,
        truncates=one.truncates or other.truncates,
        marks=one.marks or other.marks,
        preimages=one.preimages or other.preimages,
    )


def _adds(table: DeltaTable) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    return rows


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
    )
