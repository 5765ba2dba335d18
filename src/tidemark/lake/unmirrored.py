"""`_unmirrored.json`: the objects that are selected at the source and not mirrored, as the last sync found them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tidemark.postgres.unmirrored import Unmirrored
from tidemark.storage import open_storage

NAME = "_unmirrored.json"


def record_unmirrored(lake: Path, found: Sequence[Unmirrored]) -> None:
    """Record the objects, if they differ from the recorded ones."""
    if tuple(found) != recorded_unmirrored(lake):
        open_storage(lake).write(NAME, json.dumps([asdict(each) for each in found], indent=1).encode())


def recorded_unmirrored(lake: Path) -> tuple[Unmirrored, ...]:
    """Return the recorded objects."""
    data = open_storage(lake).read(NAME)
    return tuple(Unmirrored(**each) for each in json.loads(data)) if data is not None else ()
