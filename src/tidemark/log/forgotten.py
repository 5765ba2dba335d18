"""The highest transaction id of the commits that the index does not list any more, in a small file beside it.

It is written whole, before any of them goes. So whatever a reader does not find listed, it finds spoken of here, if it
looks here last.
"""

from __future__ import annotations

import json
from pathlib import Path

from tidemark.clock import Xid8
from tidemark.errors import LogDamaged
from tidemark.log.disk import Disk, write_whole

NAME = "forgotten.json"


def read_forgotten(folder: Path, disk: Disk) -> Xid8:
    """No commit above it is missing; 0 if none at all."""
    path = folder / NAME
    if not path.exists():
        return Xid8(0)
    try:
        return Xid8.parse(json.loads(disk.read(path))["highest_xid"])
    except (ValueError, KeyError, TypeError) as error:
        raise LogDamaged(f"{path} is damaged", "Restore the file from a backup.") from error


def write_forgotten(folder: Path, disk: Disk, highest: Xid8) -> None:
    """Say that commits up to this one may go. It never goes back."""
    if highest > read_forgotten(folder, disk):
        write_whole(disk, folder / NAME, json.dumps({"highest_xid": str(highest)}).encode() + b"\n")
