"""The highest transaction ID of the commits that have been removed from the index, in a small file next to it.

The file is replaced atomically before any of them is removed. So a reader that reads the index first and this file last
finds every commit either in the index or covered by this ID.
"""

from __future__ import annotations

import json
from pathlib import Path

from tidemark.clock import Xid8
from tidemark.errors import LogDamaged
from tidemark.log.disk import Disk
from tidemark.storage.local import LocalStorage

NAME = "forgotten.json"


def read_forgotten(folder: Path, disk: Disk) -> Xid8:
    """The highest removed transaction ID: no commit with a higher one was removed; 0 if none was."""
    data = LocalStorage(folder, disk).read(NAME)
    if data is None:
        return Xid8(0)
    try:
        return Xid8.parse(json.loads(data)["highest_xid"])
    except (ValueError, KeyError, TypeError) as error:
        raise LogDamaged(f"{folder / NAME} is damaged", "Restore the file from a backup.") from error


def write_forgotten(folder: Path, disk: Disk, highest: Xid8) -> None:
    """Record that commits up to this transaction ID may be removed; the recorded ID never decreases."""
    if highest > read_forgotten(folder, disk):
        LocalStorage(folder, disk).write(NAME, json.dumps({"highest_xid": str(highest)}).encode() + b"\n")
