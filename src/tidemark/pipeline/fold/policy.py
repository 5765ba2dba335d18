"""When to fold: what readers pay for changes that are not folded, against what rewriting their buckets costs. Pure.

A read pays for every such change, and a fold rewrites whole buckets however few changes they have. So a table is folded
when its changes are a share worth of what would be rewritten, are many, or have waited long; and never so often that
folding takes more than its part of the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemark.clock import Lsn
from tidemark.units import format_duration

SHARE = 0.01  # of the bytes that would be rewritten
MANY = 1_000_000  # changes that a read must not have to go through
WAITED_S = 300.0
REST = 3.0  # times as long as the last fold took


@dataclass(frozen=True, slots=True)
class Burden:
    """What is not folded of a table, and what lies in its buckets."""

    changed_rows: int
    changed_bytes: int
    live_bytes: int
    buckets: int

    @property
    def rewritten_bytes(self) -> float:
        """What a fold would rewrite, if the changes are scattered."""
        buckets = max(1, self.buckets)
        untouched = (1 - 1 / buckets) ** min(self.changed_rows, 100 * buckets)
        return self.live_bytes * (1 - untouched)

    @property
    def pays(self) -> bool:
        """Whether a fold is worth what it costs."""
        return self.changed_rows >= MANY or self.changed_bytes >= SHARE * self.rewritten_bytes


@dataclass(slots=True)
class Rhythm:
    """When each table was folded, for how long, and since when it has waited. Times are of one clock."""

    _rested: dict[str, float] = field(default_factory=dict)
    _waiting: dict[str, float] = field(default_factory=dict)

    def due(self, name: str, burden: Burden, now: float) -> bool:
        """Whether to fold it now."""
        since = self._waiting.setdefault(name, now)
        return now >= self._rested.get(name, now) and (burden.pays or now - since >= WAITED_S)

    def folded(self, name: str, begin: float, end: float) -> None:
        """It was, or it was tried."""
        self._waiting.pop(name, None)
        self._rested[name] = end + REST * (end - begin)


def fold_line(table: str, lsn: Lsn, changes: int, seconds: float) -> str:
    """A fold, for people."""
    return f"table {table}: folded {changes:,} changes in {format_duration(seconds)}, up to {lsn}"
