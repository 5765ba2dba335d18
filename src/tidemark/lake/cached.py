"""What readers derive from Delta tables, kept in this process until the table has another version.

A commit creates the file of the next version, and files of commits never change. So a table is current while the file
of its version is the same and the next one does not exist, which a few calls to the file system show. A table of
another version is updated from its new commits; one whose file is gone, since the log was cleaned up or the table was
created again, is opened again.

While a log is cleaned up, the next commit can be deleted before that of the version. It must be older than `LOG_S` for
that, so its absence proves nothing unless it was absent recently too. Otherwise the table is updated.

At most `_MOST` tables are kept, with at least 70 kB each. Passes over all tables, in the same order each time, would
never find a table among those used last if there are more, so a random one makes room for another.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidemark.lake.commits import LOG_S, is_there, opened

T = TypeVar("T")
_MOST = 4096
_RECENT_S = LOG_S / 2


class _CachedTable:
    def __init__(self, folder: Path) -> None:
        self._folder, self._log = folder, folder / "_delta_log"
        self._lock = threading.Lock()
        self._table: DeltaTable | None = None
        self._commit: tuple[int, int] | None = None  # identifies the file of the version
        self._current_at = 0.0  # when the version was known to be the last one
        self._values: dict[str, Any] = {}

    def value(self, name: str, read: Callable[[DeltaTable], T]) -> T | None:
        with self._lock:
            self._refresh()
            if self._table is None:
                return None
            if name not in self._values:
                try:
                    self._values[name] = read(self._table)
                except DeltaError:  # the log was cleaned up since
                    self._table = opened(self._folder)
                    self._commit = self._found(self._table.version())
                    self._values = {name: read(self._table)}
            return cast(T, self._values[name])

    def _refresh(self) -> None:
        now, table = time.time(), self._table
        if table is not None and self._is_current(table, now):
            self._current_at = now
            return
        if self._table is None and is_there(self._folder):
            self._table = opened(self._folder)
        self._values, self._current_at = {}, now
        self._commit = self._found(self._table.version()) if self._table is not None else None

    def _is_current(self, table: DeltaTable, now: float) -> bool:
        """Whether a table is at its last version. If not, it is updated, or has to be opened again."""
        version = table.version()
        if not self._is_same(version):
            self._table = None
            return False
        is_last = self._found(version + 1) is None and self._is_same(version)  # and not deleted with the next one
        if is_last and 0 <= now - self._current_at < _RECENT_S:
            return True
        try:
            table.update_incremental()
        except (DeltaError, OSError):
            self._table = None
            return False
        return table.version() == version and self._is_same(version)

    def _is_same(self, version: int) -> bool:
        return self._commit is not None and self._commit == self._found(version)

    def _found(self, version: int) -> tuple[int, int] | None:
        """What identifies the file of a commit, or None if it does not exist."""
        try:
            status = (self._log / f"{version:020}.json").stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns


_tables: dict[Path, _CachedTable] = {}
_folders: list[Path] = []  # of these
_lock = threading.Lock()


def cached(folder: Path, name: str, read: Callable[[DeltaTable], T]) -> T | None:
    """Return what `read` returns for the current version of a table, None if the table does not exist.

    The value is kept under this name until the table changes, and must not be modified.
    """
    with _lock:
        table = _tables.get(folder) or _added(folder)
    return table.value(name, read)


def forget(parent: Path) -> None:
    """Close the tables below a directory; those that are read again are opened again."""
    with _lock:
        for folder in [each for each in _folders if each.is_relative_to(parent)]:
            _folders.remove(folder)
            del _tables[folder]


def _added(folder: Path) -> _CachedTable:
    if len(_folders) < _MOST:
        _folders.append(folder)
    else:
        place = random.randrange(len(_folders))  # noqa: S311 - not a secret
        del _tables[_folders[place]]
        _folders[place] = folder
    return _tables.setdefault(folder, _CachedTable(folder))
