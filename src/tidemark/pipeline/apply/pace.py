"""How much a cycle takes: many bytes, since large cycles are cheaper, but no more than can be applied in time.

What is applied becomes visible when its cycle ends. So a slow machine, or tables with many columns, get smaller cycles.
"""

from __future__ import annotations


class Pace:
    """The size of the next cycle in bytes, by how long the last ones took."""

    def __init__(self, most_bytes: int, least_bytes: int, limit_s: float) -> None:
        self._most, self._least, self._limit_s = most_bytes, min(least_bytes, most_bytes), limit_s
        self.size_bytes = most_bytes

    def took(self, size_bytes: int, seconds: float) -> None:
        """A cycle of this size took so long. One that was cut short by the log's end does not let the next grow."""
        fits = size_bytes * self._limit_s / max(seconds, 1e-9)
        if seconds > self._limit_s or size_bytes >= self.size_bytes:
            self.size_bytes = int(min(self._most, max(self._least, min(fits, 2 * self.size_bytes))))
