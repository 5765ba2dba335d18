"""`_unmirrored.json`: what is selected at the source and not mirrored, as a running sync found it last."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tidemark.lake.files import write_whole
from tidemark.postgres.unmirrored import Unmirrored

NAME = "_unmirrored.json"


def write_unmirrored(lake: Path, found: Sequence[Unmirrored]) -> None:
    """Record it, if it is not recorded yet."""
    if tuple(found) != read_unmirrored(lake):
        write_whole(lake / NAME, json.dumps([asdict(each) for each in found], indent=1))


def read_unmirrored(lake: Path) -> tuple[Unmirrored, ...]:
    """What was recorded last."""
    try:
        plain = json.loads((lake / NAME).read_bytes())
    except FileNotFoundError:
        return ()
    return tuple(Unmirrored(**each) for each in plain)
