"""The size of a cycle: large, because large cycles are cheaper, but not larger than can be applied in time.

Changes become visible when their cycle ends. So a slow machine, or tables with many columns, get smaller cycles.
"""

from __future__ import annotations


class Pace:
    """The size of the next cycle in bytes, computed from the duration of the previous ones."""

    def __init__(self, most_bytes: int, least_bytes: int, limit_s: float) -> None:
        self._most, self._least, self._limit_s = most_bytes, min(least_bytes, most_bytes), limit_s
        self.size_bytes = most_bytes

    def took(self, size_bytes: int, seconds: float) -> None:
        """Record the duration of a cycle. One that is small because the log ended does not increase the next size."""
        fits = size_bytes * self._limit_s / max(seconds, 1e-9)
        if seconds > self._limit_s or size_bytes >= self.size_bytes:
            self.size_bytes = int(min(self._most, max(self._least, min(fits, 2 * self.size_bytes))))
