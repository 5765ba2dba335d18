"""What one who polls is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import InvalidValue
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.selection import Selection

LOG = "_log"


@dataclass(frozen=True, slots=True)
class PollOptions:
    """From where, to where, which tables, and how many tasks at a time.

    Rows that are gone are looked for every so many cycles: 1 is always.
    """

    source: Dsn
    lake: Path
    names: MirrorNames
    selection: Selection
    tasks: int = 2
    reconcile_every: int = 1

    def __post_init__(self) -> None:
        if self.reconcile_every < 1:
            raise InvalidValue(f"invalid reconcile_every: {self.reconcile_every}", "Use a number of at least 1.")
        if not self.lake.is_absolute():
            raise InvalidValue(f"{self.lake} is not an absolute path", "Use a path that starts with /.")
