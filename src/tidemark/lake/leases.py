"""Leases: who is reading a lake, at which position, and since when. What a reader may need is not removed.

A lease is a file, held by `flock` while its owner lives: a dead one is nobody's. It is there before its owner looks at
the lake, and vacuum looks at leases after it has told what it lets go. So either vacuum sees the lease, or the reader
sees what is gone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidemark.clock import Lsn
from tidemark.lake.flocked import HeldFile, held_files
from tidemark.lake.lock import Owner, myself

FOLDER = "_leases"
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Leased:
    """Someone's lease. What lies in the log above `tail` is needed, if that is said."""

    owner: Owner
    lsn: Lsn
    tail: Lsn | None

    def __str__(self) -> str:
        return f"{self.owner}, at {self.lsn}"


class Lease:
    """Held from here to `close`. Where nothing can be written there is none, and nobody knows of the reader."""

    def __init__(self, lake: Path, lsn: Lsn) -> None:
        self._leased = Leased(myself(), lsn, None)
        self._file: HeldFile | None = None
        with suppress(OSError):
            self._file = HeldFile(_folder(lake), _SUFFIX)
            self._write()

    def needs_tail(self, after: Lsn) -> None:
        """Say that the log is needed above a position."""
        tail = self._leased.tail
        self._leased = Leased(self._leased.owner, self._leased.lsn, after if tail is None else min(tail, after))
        self._write()

    def close(self) -> None:
        """Let go."""
        if self._file is not None:
            self._file.close()

    def _write(self) -> None:
        if self._file is None:
            return
        owner, tail = self._leased.owner, self._leased.tail
        plain = [owner.host, owner.pid, owner.command, owner.since]
        said = [*plain, str(self._leased.lsn), str(tail) if tail is not None else None]
        self._file.write(json.dumps(said).encode())


def read_leases(lake: Path) -> tuple[Leased, ...]:
    """All that are held; those of the dead are removed."""
    found = []
    for path in held_files(lake / FOLDER, _SUFFIX):
        with suppress(OSError):  # let go just now
            found.append(_read(path))
    return tuple(found)


def needed_from(safe: Lsn, leases: Iterable[Leased]) -> Lsn:
    """Above which position the log is needed, whose lake has everything up to `safe`."""
    return min([safe, *(lease.tail for lease in leases if lease.tail is not None)])


def oldest(leases: Iterable[Leased]) -> float:
    """Since when the first of them is held; the present if there are none."""
    return min((lease.owner.since for lease in leases), default=time.time())


def _folder(lake: Path) -> Path:
    """Where anyone may have a lease who may read the lake, and nobody removes another's."""
    folder = lake / FOLDER
    if not folder.exists():
        folder.mkdir(exist_ok=True)
        folder.chmod(0o1777)
    return folder


def _read(path: Path) -> Leased:
    """One that is held but not written yet is at the beginning of everything."""
    try:
        host, pid, command, since, lsn, tail = json.loads(path.read_bytes())
    except ValueError:
        return Leased(Owner("", 0, "someone", path.stat().st_mtime), Lsn.ZERO, Lsn.ZERO)
    return Leased(Owner(host, pid, command, since), Lsn.parse(lsn), None if tail is None else Lsn.parse(tail))
