"""The polls recorded in a lake: the LSN, time and snapshot at which each read the tables.

Between polls, the mirror has the state that the last poll read. A poll that found no change is recorded with the same
LSN as the one before, and a later time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.clock import Lsn
from tidemark.lake.registers import Seen, read_times, seen_in


@dataclass(frozen=True, slots=True)
class Poll:
    """A poll: `lsn` is its position in the mirror, `time` the source's clock when this state was last confirmed."""

    lsn: Lsn
    time: datetime
    seen: Seen

    @property
    def is_reconciled(self) -> bool:
        """Whether this poll checked for deleted rows."""
        return self.seen.reconciled >= self.lsn

    def __str__(self) -> str:
        return f"the poll at {self.lsn} ({self.time.isoformat(' ', 'seconds')})"


class Polls:
    """All recorded cycles, in order. They can include cycles of the stream, which are not polls.

    A mirror can change between the stream and polls repeatedly. The cycle after a poll, if it is not a poll, is that at
    which the stream replaced polls; its tables were polled too.
    """

    def __init__(self, cycles: pa.Table) -> None:
        self._cycles = cycles

    def __len__(self) -> int:
        return len(self._cycles)

    @cached_property
    def positions(self) -> npt.NDArray[np.int64]:
        """The LSN of each cycle."""
        positions: npt.NDArray[np.int64] = self._cycles["schema_lsn"].to_numpy()
        return positions

    @cached_property
    def latest(self) -> npt.NDArray[np.datetime64]:
        """The running maximum of the cycles' source times, because a clock may be set back; the first may have none."""
        times = self._cycles["source_time"].to_numpy()
        return np.fmax.accumulate(np.where(np.isnat(times), np.datetime64("0001-01-01", "us"), times))

    @property
    def seen_at(self) -> datetime | None:
        """The source time of the last cycle that recorded one, whether poll or stream."""
        times = self._cycles["source_time"].drop_null()
        return times[-1].as_py() if len(times) else None

    @property
    def first(self) -> Lsn | None:
        """The LSN of the first cycle."""
        return Lsn(int(self.positions[0])) if len(self) else None

    @property
    def last(self) -> Poll | None:
        """The last poll, or None if the last cycle was not a poll."""
        return self[len(self) - 1] if len(self) else None

    @cached_property
    def handed_over(self) -> tuple[Lsn, datetime] | None:
        """The LSN and time at which the stream replaced polls, or None if it did not."""
        seen = np.flatnonzero(self._polled)
        if not len(seen) or seen[-1] + 1 == len(self):
            return None
        row = self._cycles.slice(seen[-1] + 1, 1).to_pylist()[0]
        return Lsn(row["schema_lsn"]), row["source_time"]

    def at(self, lsn: Lsn) -> Poll | None:
        """Return the poll that a read at an LSN shows; None before the first poll, and where the stream is read."""
        count = self._upto(lsn)
        return self[count - 1] if count else None

    def polled_upto(self, lsn: Lsn) -> Lsn:
        """Return the last position at or below an LSN whose rows were polled, zero if there is none."""
        polled = self._polled[: self._upto(lsn)]
        seen = np.flatnonzero(polled)
        if not len(seen):
            return Lsn.ZERO
        last = min(int(seen[-1]) + 1, len(polled) - 1)
        return Lsn(int(self.positions[last]))

    @cached_property
    def _polled(self) -> npt.NDArray[np.bool_]:
        polled: npt.NDArray[np.bool_] = self._cycles["snapshot"].is_valid().to_numpy()
        return polled

    def _upto(self, lsn: Lsn) -> int:
        """The number of cycles at or below an LSN."""
        return int(np.searchsorted(self.positions, lsn.value, side="right"))

    def __getitem__(self, number: int) -> Poll | None:
        row = self._cycles.slice(number, 1).to_pylist()[0]
        seen = seen_in(row)
        return Poll(Lsn(row["applied_lsn"]), row["source_time"], seen) if seen is not None else None


def read_polls(lake: Path) -> Polls:
    """Read the cycles of a lake."""
    return Polls(read_times(lake))
