"""Which route is faster, learned for each statement: by its fingerprint, which constants do not change. Pure.

A statement below the cost threshold goes to the source and is not checked again for a while. Otherwise its first
execution goes to the source and is timed; during the second one the engine computes the answer too, and the client does
not wait for it. From then on the faster route is taken, and the other one is timed again from time to time. After the
mirror could not answer, or was late, the source answers alone for a while, twice as long after each failure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

AGAIN_S = 600.0  # a verdict that costs nothing to keep is checked again after this time
REMEASURED, RETRIED = 50, 200  # executions until the slower route is timed again
_WEIGHT = 0.3  # of the last time in the average
MOST = 10_000
LONGEST = 10_000  # characters of a statement whose text is kept; a longer one is parsed each time
MARGIN = 0.9  # the mirror must be faster by a tenth
PAUSE_S = 5.0  # after the first failure of the mirror
_LATE = 3.0  # times the source's time: the mirror is late
_LATE_LEAST_S, _LATE_UNKNOWN_S = 1.0, 60.0
_WAIT, _WAIT_LEAST_S, _WAIT_MOST_S = 0.2, 0.1, 1.0  # of the source's time: the wait for the log


class Destination(Enum):
    """Where a statement goes."""

    SOURCE = "source"
    MIRROR = "mirror"
    MEASURE = "measure"  # to the source; the engine computes the answer too


@dataclass(slots=True)
class Record:
    """What is known of one statement."""

    unproven: str = ""
    cost: float | None = None
    source_s: float | None = None
    mirror_s: float | None = None
    executions: int = 0
    checked_at: float = float("-inf")
    failures: int = 0
    needs_session: bool = False  # the engine cannot compute it in the background
    paused_until: float = float("-inf")

    def is_settled(self, threshold: float, now: float) -> bool:
        """Return whether the source answers and nothing needs to be checked."""
        if now - self.checked_at > AGAIN_S:
            return False
        return bool(self.unproven) or (self.cost is not None and self.cost < threshold)

    def choice(self, threshold: float, now: float, *, offloads: bool) -> Destination:
        """Choose the route of the next execution, for a statement that was not found unproven."""
        self.executions += 1
        if threshold <= 0:
            return Destination.MIRROR
        if (self.cost is not None and self.cost < threshold) or now < self.paused_until:
            return Destination.SOURCE
        if offloads:
            return Destination.MIRROR
        if self.source_s is None:
            return Destination.SOURCE
        if self.mirror_s is None:
            return Destination.MIRROR if self.needs_session else Destination.MEASURE
        if self.mirror_s < self.source_s * MARGIN:
            return Destination.SOURCE if self.executions % RETRIED == 0 else Destination.MIRROR
        if self.executions % REMEASURED:
            return Destination.SOURCE
        return Destination.MIRROR if self.needs_session else Destination.MEASURE

    def add_source(self, seconds: float) -> None:
        """Add a time of the source."""
        self.source_s = _averaged(self.source_s, seconds)

    def add_mirror(self, seconds: float) -> None:
        """Add a time of the mirror."""
        self.mirror_s = _averaged(self.mirror_s, seconds)
        self.failures = 0

    def add_failure(self, now: float) -> None:
        """Note that the mirror could not answer, or was late, for a reason that may pass."""
        self.paused_until = now + min(PAUSE_S * 2**self.failures, AGAIN_S)
        self.failures = min(self.failures + 1, 20)

    def late_s(self, threshold: float, *, offloads: bool) -> float:
        """After which time the source answers instead of the mirror: later, if the mirror is to relieve it."""
        if self.source_s is None or offloads or threshold <= 0:
            return _LATE_UNKNOWN_S
        return max(_LATE_LEAST_S, _LATE * self.source_s)

    @property
    def wait_s(self) -> float:
        """How long the mirror may wait for the log if the source can answer."""
        return _WAIT_MOST_S if self.source_s is None else min(max(_WAIT_LEAST_S, _WAIT * self.source_s), _WAIT_MOST_S)


def _averaged(before: float | None, seconds: float) -> float:
    return seconds if before is None else before + _WEIGHT * (seconds - before)


class Memory:
    """The records of the statements that were executed last."""

    def __init__(self, fingerprint: Callable[[str], str]) -> None:
        self._fingerprint = fingerprint
        self._records: OrderedDict[str, Record] = OrderedDict()
        self._texts: OrderedDict[str, Record] = OrderedDict()

    def of(self, text: str) -> Record:
        """Return the record of a statement; it is not kept if its text cannot be parsed."""
        found = self._texts.get(text)
        if found is not None:
            self._texts.move_to_end(text)
            return found
        try:
            key = self._fingerprint(text)
        except Exception:  # noqa: BLE001 - the parser's error: the source reports its own
            return Record()
        record = self._records.setdefault(key, Record())
        self._records.move_to_end(key)
        if len(text) <= LONGEST:
            self._texts[text] = record
        for each in (self._records, self._texts):
            if len(each) > MOST:
                each.popitem(last=False)
        return record
