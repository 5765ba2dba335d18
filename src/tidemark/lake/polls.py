"""The polls that a lake tells of: where, when, and by which snapshot its tables were seen.

Between polls the mirror is what the last one saw. A poll that saw the same as the one before it is told with the same
position and a later time.
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
from tidemark.lake.commits import is_there
from tidemark.lake.registers import CYCLES, Seen, read_times, seen_in

_NONE = pa.table({"schema_lsn": pa.array([], pa.int64()), "source_time": pa.array([], pa.timestamp("us", "UTC"))})


@dataclass(frozen=True, slots=True)
class Poll:
    """What a poll saw: `lsn` is its position in the mirror, `time` the source's clock when it was last seen so."""

    lsn: Lsn
    time: datetime
    seen: Seen

    @property
    def is_reconciled(self) -> bool:
        """Whether rows that are gone from the source were looked for by this poll."""
        return self.seen.reconciled >= self.lsn

    def __str__(self) -> str:
        return f"the poll at {self.lsn} ({self.time.isoformat(' ', 'seconds')})"


class Polls:
    """All that were told, in order. Cycles of the stream, if there are any, stand among them and are no polls."""

    def __init__(self, told: pa.Table) -> None:
        self._told = told

    def __len__(self) -> int:
        return len(self._told)

    @cached_property
    def positions(self) -> npt.NDArray[np.int64]:
        """Of each."""
        positions: npt.NDArray[np.int64] = self._told["schema_lsn"].to_numpy()
        return positions

    @cached_property
    def latest(self) -> npt.NDArray[np.datetime64]:
        """Of each the greatest time up to it: a clock may be set back."""
        return np.fmax.accumulate(self._told["source_time"].to_numpy())

    @property
    def seen_at(self) -> datetime | None:
        """What the source's clock said last, by whomever it was asked."""
        times = self._told["source_time"].drop_null()
        return times[-1].as_py() if len(times) else None

    @property
    def last(self) -> Poll | None:
        """The last one, if the mirror is polled."""
        return self[len(self) - 1] if len(self) else None

    @cached_property
    def handed_over(self) -> tuple[Lsn, datetime] | None:
        """Where and when the stream took over from polls; None if it did not."""
        seen = np.flatnonzero(self._told["snapshot"].is_valid().to_numpy()) if len(self) else np.empty(0, np.int64)
        if not len(seen) or seen[-1] + 1 == len(self):
            return None
        row = self._told.slice(seen[-1] + 1, 1).to_pylist()[0]
        return Lsn(row["schema_lsn"]), row["source_time"]

    def at(self, lsn: Lsn) -> Poll | None:
        """The poll that a read at a position shows; None before the first one, and where the stream told it."""
        count = int(np.searchsorted(self.positions, lsn.value, side="right"))
        return self[count - 1] if count else None

    def __getitem__(self, number: int) -> Poll | None:
        row = self._told.slice(number, 1).to_pylist()[0]
        seen = seen_in(row)
        return Poll(Lsn(row["applied_lsn"]), row["source_time"], seen) if seen is not None else None


def read_polls(lake: Path) -> Polls:
    """Those of a lake; it is polled if its last cycle was a poll."""
    if not is_there(lake / CYCLES):
        return Polls(_NONE)
    return Polls(read_times(lake))
