"""Data files on disk that a table does not list: a commit removed them, or they were never committed.

Delta records when a commit removed a file, for `TOMBSTONES_S` (`commits`). A file without such a record was removed
earlier than that, or was never committed: it belongs to a running job, or to one that failed.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from tidemark.lake.cached import cached, forget
from tidemark.lake.commits import LOG, LOG_S, opened
from tidemark.lake.files import remove_file
from tidemark.lake.paths import CHANGES, VERSIONS
from tidemark.schema.history import TABLES_FOLDER
from tidemark.storage import open_storage

NAME = "_unlisted.json"
_REMOVED = "_removed-"
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class UnlistedFile:
    """A data file that its table does not list."""

    name: str
    size_bytes: int
    modified_at: float


def unlisted_files(folder: Path) -> list[UnlistedFile]:
    """Return the data files in the directory of a table that its current Delta version does not list."""
    there = {entry.name: entry for entry in _data_files(folder)}
    listed = cached(folder, "names", names_in) or frozenset()  # read after the directory: jobs commit what they wrote
    found = []
    for name in there.keys() - listed:
        try:
            status = there[name].stat()
        except FileNotFoundError:
            continue
        found.append(UnlistedFile(name, status.st_size, status.st_mtime))
    return found


def names_in(table: DeltaTable) -> frozenset[str]:
    """Return the names of the files that a Delta version lists."""
    return frozenset(pa.table(table.get_add_actions())["path"].to_pylist())


def removed_files(folder: Path, age_s: float) -> tuple[set[str], set[str]]:
    """Return the files that commits have removed, as far as Delta records it, and those removed `age_s` ago or more."""
    table = opened(folder)

    def removed(hours: int) -> set[str]:
        return set(table.vacuum(retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=False))

    every = removed(0)
    if age_s >= LOG_S:
        return every, removed(math.ceil(age_s / _HOUR_S))
    return every, every.difference(_removed_since(folder, time.time() - age_s))


class SeenUnlisted:
    """When an expire job found each unlisted file first, in `_unlisted.json`; the removal of a file was before that."""

    def __init__(self, lake: Path, *, dry_run: bool) -> None:
        self._storage, self._dry_run = open_storage(lake), dry_run
        self._before: dict[str, float] = json.loads(self._storage.read(NAME) or b"{}")
        self._now: dict[str, float] = {}

    def since(self, folder: str, names: Iterable[str]) -> dict[str, float]:
        """Return since when these files in a directory of the lake are known to be unlisted."""
        found = {name: self._before.get(f"{folder}/{name}", time.time()) for name in names}
        self._now |= {f"{folder}/{name}": since for name, since in found.items()}
        return found

    def record(self) -> None:
        """Record all files of this run, and forget others."""
        if self._now != self._before and not self._dry_run:
            self._storage.write(NAME, json.dumps(self._now).encode())


def delete(folder: Path, names: Iterable[str]) -> None:
    """Delete data files from disk."""
    for name in names:
        remove_file(folder, name)


def has_data(folder: Path) -> bool:
    """Return whether the directory of a table still contains data files."""
    return any(True for name in (CHANGES, VERSIONS) for _ in _data_files(folder / name))


def remove_others(lake: Path, paths: Collection[str]) -> None:
    """Remove the directories of tables without data files that have none of these paths; others are left alone.

    A directory is renamed first, so that no reader finds a part of it. The next call retries what fails.
    """
    for folder in lake.glob(f"{TABLES_FOLDER}/*"):
        ours = folder.is_dir() and folder.name.removeprefix(_REMOVED).isdecimal()
        if not ours or f"{TABLES_FOLDER}/{folder.name}" in paths or has_data(folder):
            continue
        with suppress(OSError):
            removed = folder
            if not folder.name.startswith(_REMOVED):
                removed = folder.rename(folder.with_name(f"{_REMOVED}{folder.name}"))
            shutil.rmtree(removed)
        forget(folder)


def _data_files(folder: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        yield from (entry for entry in entries if entry.name.endswith(".parquet"))


def _removed_since(folder: Path, since: float) -> Iterator[str]:
    """The files that the commits since a time removed, which must be within the retention of the log."""
    with os.scandir(folder / LOG) as entries:
        commits = [entry for entry in entries if entry.name.endswith(".json")]
    for entry in commits:
        with suppress(FileNotFoundError):  # an old one, which another process deletes
            if entry.stat().st_mtime >= since:
                for line in Path(entry.path).read_text().splitlines():
                    if "remove" in (action := json.loads(line)):
                        yield action["remove"]["path"]
