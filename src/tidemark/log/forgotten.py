"""The highest transaction ID and LSN of the commits that were removed from the index, in a small file next to it.

The file is replaced atomically before any of them is removed. So a reader that reads the index first and this file last
finds every commit either in the index or covered by this ID and this LSN.
"""

from __future__ import annotations

import json
from pathlib import Path

from tidemark.clock import Lsn, Xid8
from tidemark.errors import LogDamaged
from tidemark.log.disk import Disk
from tidemark.storage.local import LocalStorage

NAME = "forgotten.json"


def read_forgotten(folder: Path, disk: Disk) -> Xid8:
    """The highest removed transaction ID: no commit with a higher one was removed; 0 if none was."""
    return _read(folder, disk)[0]


def read_forgotten_lsn(folder: Path, disk: Disk) -> Lsn:
    """The highest removed LSN: no commit above it was removed; 0 if none was."""
    return _read(folder, disk)[1]


def write_forgotten(folder: Path, disk: Disk, highest: Xid8, lsn: Lsn = Lsn.ZERO) -> None:
    """Record that commits up to this transaction ID and LSN may be removed; what is recorded never decreases."""
    before = _read(folder, disk)
    after = max(highest, before[0]), max(lsn, before[1])
    if after != before:
        content = {"highest_xid": str(after[0]), "highest_lsn": str(after[1])}
        LocalStorage(folder, disk).write(NAME, json.dumps(content).encode() + b"\n")


def _read(folder: Path, disk: Disk) -> tuple[Xid8, Lsn]:
    data = LocalStorage(folder, disk).read(NAME)
    if data is None:
        return Xid8(0), Lsn.ZERO
    try:
        found = json.loads(data)
        return Xid8.parse(found["highest_xid"]), Lsn.parse(found.get("highest_lsn", "0/0"))
    except (ValueError, KeyError, TypeError) as error:
        raise LogDamaged(f"{folder / NAME} is damaged", "Restore the file from a backup.") from error
