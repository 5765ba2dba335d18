"""Leases: who is reading a lake, at which position, and since when. What a reader may need is not removed.

A lease is a file, held by `flock` while its owner lives: a dead one is nobody's. It is there before its owner looks at
the lake, and vacuum looks at leases after it has told what it lets go. So either vacuum sees the lease, or the reader
sees what is gone.

A reader's lease ends after a while (`until`), also if its owner lives on: a notebook that nobody closes must not keep
the past for ever. After that its owner is refused. The log is kept for readers only within its budget (`receive`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue, NotAnswerable
from tidemark.lake.flocked import HeldFile, held_files
from tidemark.lake.lock import Owner, myself, timestamp
from tidemark.units import format_duration

FOLDER = "_leases"
HOLD_S = 24 * 3600.0  # how long a reader's lease lasts, unless the reader asks for another time
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Leased:
    """Someone's lease. What lies in the log above `tail` is needed, if that is said. It ends at `until`, if ever."""

    owner: Owner
    lsn: Lsn
    tail: Lsn | None
    until: float | None = None

    def __str__(self) -> str:
        if self.until is None:
            return f"{self.owner}, at {self.lsn}"
        end = datetime.fromtimestamp(self.until, UTC).isoformat(" ", "seconds")
        return f"{self.owner}, at {self.lsn}, lease {'expires' if self.in_force else 'expired'} {end}"

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            **self.owner.plain(),
            "lsn": str(self.lsn),
            "log_lsn": str(self.tail) if self.tail is not None else None,
            "expires_at": timestamp(self.until) if self.until is not None else None,
        }

    @classmethod
    def parse(cls, plain: Mapping[str, Any]) -> Leased:
        """From JSON."""
        tail, until = plain["log_lsn"], plain["expires_at"]
        return cls(
            Owner.parse(plain),
            Lsn.parse(plain["lsn"]),
            Lsn.parse(tail) if tail is not None else None,
            datetime.fromisoformat(until).timestamp() if until is not None else None,
        )

    @property
    def in_force(self) -> bool:
        """Whether what it names is still kept."""
        return self.until is None or time.time() < self.until


class Lease:
    """Held from here to `close`, at most for `hold_s`. Where nothing can be written, nobody knows of the reader."""

    def __init__(self, lake: Path, lsn: Lsn, hold_s: float | None = None) -> None:
        self._hold_s = hold_s
        self._leased = Leased(myself(), lsn, None, None if hold_s is None else time.time() + hold_s)
        self._file: HeldFile | None = None
        with suppress(OSError):
            self._file = HeldFile(_folder(lake), _SUFFIX)
            self._write()

    def needs_tail(self, after: Lsn) -> None:
        """Say that the log is needed above a position."""
        tail = self._leased.tail
        self._leased = replace(self._leased, tail=after if tail is None else min(tail, after))
        self._write()

    def require_in_force(self) -> None:
        """Refuse to go on when its time is over: what it named may be gone."""
        if not self._leased.in_force:
            raise NotAnswerable(
                f"the lease of this handle at {self._leased.lsn} expired after {format_duration(self._hold_s or 0)}",
                "Open a new handle; pass a larger `hold_s` to `tidemark.open` for a longer lease.",
            )

    def close(self) -> None:
        """Let go."""
        if self._file is not None:
            self._file.close()

    def _write(self) -> None:
        if self._file is None:
            return
        self._file.write(json.dumps(self._leased.plain()).encode())


def require_hold(hold_s: float) -> float:
    """A time for which a reader may keep what it reads."""
    if not 0 < hold_s < float("inf"):
        raise InvalidValue(f"invalid hold_s: {hold_s:g}", "Use a number of seconds greater than 0.")
    return hold_s


def leases_in_force(lake: Path) -> tuple[Leased, ...]:
    """Those that count."""
    return tuple(lease for lease in read_leases(lake) if lease.in_force)


def read_leases(lake: Path) -> tuple[Leased, ...]:
    """All that are held, those that have ended too; those of the dead are removed."""
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
        return Leased.parse(json.loads(path.read_bytes()))
    except ValueError:
        return Leased(Owner("", 0, "unknown", path.stat().st_mtime), Lsn.ZERO, Lsn.ZERO)
