"""How often a process that fails is started again: after growing pauses, and not many times in a short time."""

from __future__ import annotations

MOST, WITHIN_S = 5, 600.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0


class Restarts:
    """The failures of one process."""

    def __init__(self) -> None:
        self._failures: list[float] = []

    def failed(self, now: float) -> float | None:
        """Count a failure; return the pause in seconds before the next start, None if there were too many."""
        self._failures = [at for at in self._failures if at > now - WITHIN_S] + [now]
        count = len(self._failures)
        return None if count >= MOST else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (count - 1))
