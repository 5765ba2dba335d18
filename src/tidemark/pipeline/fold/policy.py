"""When to fold: the cost of unfolded changes for readers, against the cost of rewriting their buckets. Pure.

A read pays for every unfolded change, and a fold rewrites whole buckets, however few changes they have. So a table is
folded when its changes are a certain share of the data that would be rewritten, are many, or have waited for long; and
it is not folded for more than a quarter of the time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tidemark.clock import Lsn
from tidemark.units import format_duration

SHARE = 0.01  # of the bytes that would be rewritten, as a fraction
MANY = 1_000_000  # unfolded changes, which a read should not have to process
WAITED_S = 300.0
REST = 3.0  # pause after a fold, as a multiple of its duration


@dataclass(frozen=True, slots=True)
class Burden:
    """The unfolded changes of a table, and the live rows in its buckets."""

    changed_rows: int
    changed_bytes: int
    live_bytes: int
    buckets: int

    @property
    def rewritten_bytes(self) -> float:
        """The size of the data that a fold would rewrite, if the changes are scattered."""
        buckets = max(1, self.buckets)
        untouched = (1 - 1 / buckets) ** min(self.changed_rows, 100 * buckets)
        return self.live_bytes * (1 - untouched)

    @property
    def pays(self) -> bool:
        """Whether a fold is worth its cost."""
        return self.changed_rows >= MANY or self.changed_bytes >= SHARE * self.rewritten_bytes


@dataclass(slots=True)
class Rhythm:
    """When each table may be folded again, and since when its changes have waited. All times are from one clock."""

    _rested: dict[str, float] = field(default_factory=dict)
    _waiting: dict[str, float] = field(default_factory=dict)

    def due(self, name: str, burden: Burden, now: float) -> bool:
        """Whether a table is to be folded now."""
        since = self._waiting.setdefault(name, now)
        return now >= self._rested.get(name, now) and (burden.pays or now - since >= WAITED_S)

    def keep(self, names: Collection[str]) -> None:
        """Forget since when other tables have waited: they have nothing to fold, or were dropped."""
        self._waiting = {name: since for name, since in self._waiting.items() if name in names}

    def folded(self, name: str, begin: float, end: float) -> None:
        """Record that a table was folded, or that a fold of it failed."""
        self._waiting.pop(name, None)
        self._rested = {each: until for each, until in self._rested.items() if until > end}
        self._rested[name] = end + REST * (end - begin)


def fold_line(table: str, lsn: Lsn, changes: int, seconds: float) -> str:
    """The message about a fold."""
    return f"table {table}: folded {changes:,} changes in {format_duration(seconds)}, up to {lsn}"
