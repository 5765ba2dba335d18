"""Options of poll mode."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import InvalidValue
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.schema.selection import Selection

LOG = "_log"


@dataclass(frozen=True, slots=True)
class PollOptions:
    """The source, the lake, the names of the mirror, the selected tables and the number of parallel tasks.

    Deleted rows are detected in every `reconcile_every`th cycle; 1 means in every cycle.
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
