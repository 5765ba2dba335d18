"""Locks for one writer, one fold job and one expire job per lake; each records the process that has it.

A lock is a file in the lake, locked with `flock` for the lifetime of its owner. It is released as soon as the owner
ends, and not before, regardless of its age. Locks keep processes from disturbing each other; Delta protects the data
(`commits`).
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tidemark.errors import LakeInUse
from tidemark.units import format_duration

WRITING, FOLDING, VACUUMING = "_writer.lock", "_fold.lock", "_expire.lock"
_USES = {WRITING: "in use by another writer", FOLDING: "being folded", VACUUMING: "being expired"}
_ATTEMPTS_S, _PAUSE_S = 1.0, 0.01


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that has a lock or a lease, and since when."""

    host: str
    pid: int
    command: str
    since: float

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host} ({self.command}), for {format_duration(time.time() - self.since)}"

    def plain(self) -> dict[str, Any]:
        """Convert to JSON."""
        return {"host": self.host, "pid": self.pid, "command": self.command, "since": timestamp(self.since)}

    @classmethod
    def parse(cls, plain: Mapping[str, Any]) -> Owner:
        """Convert from JSON."""
        return cls(plain["host"], plain["pid"], plain["command"], datetime.fromisoformat(plain["since"]).timestamp())


def timestamp(seconds: float) -> str:
    """Format a Unix time for messages and JSON."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ")


def myself() -> Owner:
    """Return this process as an owner from now on."""
    return Owner(socket.gethostname(), os.getpid(), " ".join(Path(arg).name for arg in sys.argv[:2]), time.time())


class LakeLock:
    """One of a lake's locks, from the constructor to `close`."""

    def __init__(self, lake: Path, name: str) -> None:
        path = lake / name
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _acquire(self._file)
        except BlockingIOError as error:
            os.close(self._file)
            owner = read_owner(lake, name)
            process = f": {owner}" if owner is not None else ""
            hint = f"Stop process {owner.pid} first." if owner is not None else "Stop that process first."
            raise LakeInUse(f"{lake} is {_USES[name]}{process}", hint) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps(myself().plain()).encode(), 0)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()


def _acquire(file: int) -> None:
    """Lock a file. `is_held` locks it for a moment too, so one failed attempt does not prove that it has a writer."""
    deadline = time.monotonic() + _ATTEMPTS_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def read_owner(lake: Path, name: str = WRITING) -> Owner | None:
    """Return the process that took the lock last; whether it still has the lock, only `flock` shows."""
    try:
        return Owner.parse(json.loads((lake / name).read_bytes()))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def is_held(lake: Path) -> bool:
    """Return whether a process has the writer lock now."""
    try:
        file = os.open(lake / WRITING, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
