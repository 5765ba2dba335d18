"""One writer of changes, and one of versions: locks that name who holds them and since when.

The lock is a file in the lake, held by `flock` while its owner lives, so that a dead owner's is free at once and a live
one's is not, whatever its age. It keeps two writers from getting in each other's way; that they cannot do harm is
Delta's doing (`commits`).
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tidemark.errors import LakeInUse

WRITING, FOLDING, VACUUMING = "_writer.lock", "_fold.lock", "_vacuum.lock"
_DOES = {WRITING: "written", FOLDING: "folded", VACUUMING: "vacuumed"}


@dataclass(frozen=True, slots=True)
class Owner:
    """Who writes a lake, and since when."""

    host: str
    pid: int
    command: str
    since: float

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host} ({self.command}), for {time.time() - self.since:.0f} s"


def myself() -> Owner:
    """This process, from now on."""
    return Owner(socket.gethostname(), os.getpid(), " ".join(Path(arg).name for arg in sys.argv[:2]), time.time())


class Lock:
    """One of a lake's locks, held from here to `close`."""

    def __init__(self, lake: Path, name: str) -> None:
        path = lake / name
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            owner = read_owner(lake, name) or "someone"
            raise LakeInUse(f"{lake} is being {_DOES[name]} by {owner}", "stopping that one first") from error
        owner = myself()
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps([owner.host, owner.pid, owner.command, owner.since]).encode(), 0)

    def close(self) -> None:
        """Let go."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()


def read_owner(lake: Path, name: str = WRITING) -> Owner | None:
    """Who wrote last; whether it still does, only the lock tells."""
    try:
        host, pid, command, since = json.loads((lake / name).read_bytes())
    except (OSError, ValueError):
        return None
    return Owner(host, pid, command, since)


def is_held(lake: Path) -> bool:
    """Whether someone writes the lake now."""
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
