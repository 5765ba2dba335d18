"""From a time to a position: the last commit up to which no commit was later than that time.

Commit times are not monotonic, so the running maximum decides: the commits at or below the answer are those of the
longest prefix of the commit order that lies entirely at or before the time.
"""

from __future__ import annotations

from datetime import datetime

import numpy as np

from tidemark.clock import Lsn
from tidemark.decode.messages import EPOCH
from tidemark.decode.rows import Rows
from tidemark.errors import NotAnswerable


def lsn_at(time: datetime, commits: Rows, answerable: Lsn, seen_at: datetime | None) -> Lsn:
    """The position of a time. `seen_at` is the source's clock when everything up to `answerable` was there."""
    since = time - EPOCH
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    latest = np.maximum.accumulate(commits["micros"])
    before = int(np.searchsorted(latest, micros, side="right"))
    if before == 0:
        raise NotAnswerable(f"{time} lies before the first commit of the mirror", "a later time, or an LSN")
    if before < len(commits):
        return Lsn(int(commits["lsn"][before - 1]))
    if seen_at is None or seen_at < time:
        raise NotAnswerable(
            f"{time} lies beyond what the mirror has seen, which is {seen_at or 'nothing yet'}", "--at latest"
        )
    return answerable
