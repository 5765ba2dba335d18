"""What the last `tidemark sync` leaves for other commands: its retention, and the objects that it does not mirror.

They are `_retention.json` and `_unmirrored.json`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tidemark.postgres.unmirrored import Unmirrored
from tidemark.storage import open_storage

RETENTION, UNMIRRORED = "_retention.json", "_unmirrored.json"
KEEP_S = 7 * 86400.0  # the default


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention period; `keep_s` is None if the history is kept forever."""

    keep_s: float | None


def record_retention(lake: Path, retention: Retention) -> None:
    """Record the retention, if it differs from the recorded one."""
    if retention != recorded_retention(lake):
        open_storage(lake).write(RETENTION, json.dumps({"keep_s": retention.keep_s}).encode())


def retention_of(lake: Path) -> Retention:
    """Return the recorded retention, or the default if there is none."""
    return recorded_retention(lake) or Retention(KEEP_S)


def recorded_retention(lake: Path) -> Retention | None:
    """Return the recorded retention, or None if there is none."""
    data = open_storage(lake).read(RETENTION)
    return Retention(json.loads(data)["keep_s"]) if data is not None else None


def record_unmirrored(lake: Path, found: Sequence[Unmirrored]) -> None:
    """Record the objects, if they differ from the recorded ones."""
    if tuple(found) != recorded_unmirrored(lake):
        open_storage(lake).write(UNMIRRORED, json.dumps([asdict(each) for each in found], indent=1).encode())


def recorded_unmirrored(lake: Path) -> tuple[Unmirrored, ...]:
    """Return the recorded objects."""
    data = open_storage(lake).read(UNMIRRORED)
    return tuple(Unmirrored(**each) for each in json.loads(data)) if data is not None else ()
