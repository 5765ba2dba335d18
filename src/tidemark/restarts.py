"""When a process that failed is started again, and an operation that failed is retried: after growing pauses."""

from __future__ import annotations

MOST, WITHIN_S = 5, 600.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0


def next_pause_s(pause_s: float, first_s: float, longest_s: float) -> float:
    """Return the pause after another failure, twice as long as the one before, which is 0 before the first."""
    return min(longest_s, 2 * pause_s or first_s)


class Restarts:
    """The failures of one process, which is not started again after many in a short time."""

    def __init__(self) -> None:
        self._failures: list[float] = []

    def failed(self, now: float) -> float | None:
        """Count a failure; return the pause in seconds before the next start, None if there were too many."""
        self._failures = [at for at in self._failures if at > now - WITHIN_S] + [now]
        count = len(self._failures)
        return None if count >= MOST else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (count - 1))
