"""The transactions that are visible to a PostgreSQL session, in PostgreSQL's text form `xmin:xmax:xip,…`.

    below xmin         ended: visible if it committed
    in xip             running when the snapshot was taken: not visible, even if it has committed since
    at or above xmax   not started: not visible

On a standby `xip` is empty, because a standby stores the running transaction IDs elsewhere. The replay LSN takes the
place of the snapshot there.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import groupby, pairwise

from tidemark.clock.xid import Xid8
from tidemark.errors import InvalidValue

_EXAMPLE = "Use the text of `select pg_current_snapshot()`, such as 1995:2000:1995,1998."


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The transaction IDs visible to a session; `xip` is strictly ascending, and within [xmin, xmax)."""

    xmin: Xid8
    xmax: Xid8
    xip: tuple[Xid8, ...] = ()

    def __post_init__(self) -> None:
        if self.xmin.value == 0 or self.xmin > self.xmax:
            raise InvalidValue(f"invalid snapshot: xmin {self.xmin}, xmax {self.xmax}", _EXAMPLE)
        if any(a >= b for a, b in pairwise(self.xip)):
            raise InvalidValue(f"invalid snapshot: running transactions of {self} are not ascending", _EXAMPLE)
        if self.xip and not (self.xmin <= self.xip[0] and self.xip[-1] < self.xmax):
            raise InvalidValue(f"invalid snapshot: {self} has running transactions outside of [xmin, xmax)", _EXAMPLE)

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Parse the text of `pg_current_snapshot()`; repeated IDs count once, as they do in PostgreSQL."""
        parts = text.split(":")
        if len(parts) != 3:
            raise InvalidValue(f"invalid snapshot: {text!r}", _EXAMPLE)
        xip = [Xid8.parse(part) for part in parts[2].split(",")] if parts[2] else []
        return cls(Xid8.parse(parts[0]), Xid8.parse(parts[1]), tuple(xid for xid, _ in groupby(xip)))

    def sees(self, xid: Xid8) -> bool:
        """Whether the effects of this *top-level* transaction are visible, given that it committed."""
        if xid < self.xmin:
            return True
        at = bisect_left(self.xip, xid)
        running = at < len(self.xip) and self.xip[at] == xid
        return xid < self.xmax and not running

    @property
    def omits_running(self) -> bool:
        """Whether running transactions are not visible but also not listed in `xip`, as on a busy standby."""
        return self.xmin < self.xmax and not self.xip

    def covers(self, other: Snapshot) -> bool:
        """Whether every transaction that is visible in `other` is visible in this snapshot too.

        False if `other` has a higher xmax, where that is not certain.
        """
        return other.xmax <= self.xmax and not any(other.sees(xid) for xid in self.xip)

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.xip))}"

    def __repr__(self) -> str:
        return f"Snapshot({self})"
