"""`_retention.json`: for how long the last `tidemark sync` keeps the history."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tidemark.storage import open_storage

NAME = "_retention.json"
KEEP_S = 7 * 86400.0  # the default


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention period; `keep_s` is None if the history is kept forever."""

    keep_s: float | None


def record_retention(lake: Path, retention: Retention) -> None:
    """Record the retention, if it differs from the recorded one."""
    if retention != recorded_retention(lake):
        open_storage(lake).write(NAME, json.dumps({"keep_s": retention.keep_s}).encode())


def retention_of(lake: Path) -> Retention:
    """Return the recorded retention, or the default if there is none."""
    return recorded_retention(lake) or Retention(KEEP_S)


def recorded_retention(lake: Path) -> Retention | None:
    """Return the recorded retention, or None if there is none."""
    data = open_storage(lake).read(NAME)
    return Retention(json.loads(data)["keep_s"]) if data is not None else None
