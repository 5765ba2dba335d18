"""`_unmirrored.json`: the objects that are selected at the source and not mirrored, as the last sync found them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tidemark.lake.files import write_whole
from tidemark.postgres.unmirrored import Unmirrored

NAME = "_unmirrored.json"


def record_unmirrored(lake: Path, found: Sequence[Unmirrored]) -> None:
    """Record the objects, if they differ from the recorded ones."""
    if tuple(found) != recorded_unmirrored(lake):
        write_whole(lake / NAME, json.dumps([asdict(each) for each in found], indent=1))


def recorded_unmirrored(lake: Path) -> tuple[Unmirrored, ...]:
    """Return the recorded objects."""
    try:
        plain = json.loads((lake / NAME).read_bytes())
    except FileNotFoundError:
        return ()
    return tuple(Unmirrored(**each) for each in plain)
