"""Locks for one writer, one fold job and one expire job per lake; each records the process that has it.

A lock is released as soon as its owner ends, and not before, regardless of its age (`storage`). Locks keep processes
from disturbing each other; Delta protects the data (`commits`).
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from tidemark.errors import LakeInUse
from tidemark.storage import open_storage
from tidemark.storage.interface import Owner, read_owner

WRITING, FOLDING, EXPIRING = "_writer.lock", "_fold.lock", "_expire.lock"
_USES = {WRITING: "in use by another writer", FOLDING: "being folded", EXPIRING: "being expired"}
_WAIT_S = 1.0  # a process that checks for a writer locks the file for a moment


class LakeLock:
    """One of a lake's locks, from the constructor to `close`."""

    def __init__(self, lake: Path, name: str) -> None:
        storage = open_storage(lake)
        lock = storage.lock(name, _WAIT_S)
        if lock is None:
            owner = read_owner(storage, name)
            process = f": {owner}" if owner is not None else ""
            hint = f"Stop process {owner.pid} first." if owner is not None else "Stop that process first."
            raise LakeInUse(f"{lake} is {_USES[name]}{process}", hint)
        self._lock = lock

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()


def has_writer(lake: Path) -> bool:
    """Return whether a process has the writer lock now."""
    return open_storage(lake).is_locked(WRITING)


def last_writer(lake: Path) -> Owner | None:
    """Return the process that acquired the writer lock last."""
    return read_owner(open_storage(lake), WRITING)
