"""Leases: a reader's claim on the files that it needs at its LSN. Data under a lease is not removed.

The lease of a process that has ended does not count (`storage`). A reader
takes its lease before it reads the lake and checks the retained LSN after it has read the list of files. The expire job
commits the retained LSN first and reads the leases again before it deletes files. Either the expire job finds the
lease, or the reader finds that the data is gone and fails.

A reader's lease expires at `until`, even if its owner still runs: a notebook that is never closed must not keep history
indefinitely. After that, reads of its owner fail. The receiver keeps log segments for readers only while the log is
within its budget (`receive`).
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
from tidemark.errors import InvalidValue, LakeError, NotAnswerable
from tidemark.storage import open_storage
from tidemark.storage.interface import Owner, StorageLease, StoredLease, timestamp
from tidemark.units import format_duration

FOLDER = "_leases"
HOLD_S = 24 * 3600.0  # the default duration of a reader's lease
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Leased:
    """The contents of a lease. `tail` is the LSN above which the log is needed, and `until` when it expires."""

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
        """Convert to JSON."""
        return {
            **self.owner.plain(),
            "lsn": str(self.lsn),
            "log_lsn": str(self.tail) if self.tail is not None else None,
            "expires_at": timestamp(self.until) if self.until is not None else None,
        }

    @classmethod
    def parse(cls, plain: Mapping[str, Any]) -> Leased:
        """Convert from JSON."""
        tail, until = plain["log_lsn"], plain["expires_at"]
        return cls(
            Owner.parse(plain),
            Lsn.parse(plain["lsn"]),
            Lsn.parse(tail) if tail is not None else None,
            datetime.fromisoformat(until).timestamp() if until is not None else None,
        )

    @property
    def in_force(self) -> bool:
        """Whether the lease has not expired."""
        return self.until is None or time.time() < self.until


class Lease:
    """A reader's lease until `close`, for at most `hold_s`. Not recorded if the reader cannot write to the lake."""

    def __init__(self, lake: Path, lsn: Lsn, hold_s: float | None = None) -> None:
        self._hold_s = hold_s
        self._leased = Leased(Owner.current(), lsn, None, None if hold_s is None else time.time() + hold_s)
        self._stored: StorageLease | None = None
        with suppress(LakeError):
            self._stored = open_storage(lake).lease(FOLDER, _SUFFIX, for_all_users=True)
            self._write()

    def needs_tail(self, after: Lsn) -> None:
        """Record that the log is needed above an LSN."""
        tail = self._leased.tail
        self._leased = replace(self._leased, tail=after if tail is None else min(tail, after))
        self._write()

    def require_in_force(self) -> None:
        """Raise NotAnswerable if the lease has expired, because its data may have been removed."""
        if not self._leased.in_force:
            raise NotAnswerable(
                f"the lease of this handle at {self._leased.lsn} expired after {format_duration(self._hold_s or 0)}",
                "Open a new handle; pass a larger `hold_s` to `tidemark.open` for a longer lease.",
            )

    def close(self) -> None:
        """Release the lease."""
        if self._stored is not None:
            self._stored.close()

    def _write(self) -> None:
        if self._stored is not None:
            self._stored.write(json.dumps(self._leased.plain()).encode())


def require_hold(hold_s: float) -> float:
    """Return a valid duration of a lease."""
    if not 0 < hold_s < float("inf"):
        raise InvalidValue(f"invalid hold_s: {hold_s:g}", "Use a number of seconds greater than 0.")
    return hold_s


def leases_in_force(lake: Path) -> tuple[Leased, ...]:
    """Return the leases that have not expired."""
    return tuple(lease for lease in read_leases(lake) if lease.in_force)


def read_leases(lake: Path) -> tuple[Leased, ...]:
    """Return all leases, including expired ones; those of processes that have ended are removed."""
    return tuple(map(_parsed, open_storage(lake).leases(FOLDER, _SUFFIX)))


def needed_from(applied_lsn: Lsn, leases: Iterable[Leased]) -> Lsn:
    """Return the LSN above which the log is needed, given the applied LSN `applied_lsn` of the lake."""
    return min([applied_lsn, *(lease.tail for lease in leases if lease.tail is not None)])


def oldest(leases: Iterable[Leased]) -> float:
    """Return the time at which the first of the leases was taken, or the current time if there are none."""
    return min((lease.owner.since for lease in leases), default=time.time())


def _parsed(stored: StoredLease) -> Leased:
    """Parse a lease. One that is not written yet claims everything."""
    try:
        return Leased.parse(json.loads(stored.data))
    except ValueError:
        return Leased(Owner("", 0, "unknown", stored.modified_at), Lsn.ZERO, Lsn.ZERO)
