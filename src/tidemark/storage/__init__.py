"""Small objects of a lake or a log by key: control files, requests, locks, leases; atomic writes; fail points."""

from __future__ import annotations

from pathlib import Path

from tidemark.storage.interface import Storage as Storage
from tidemark.storage.local import LocalStorage


def open_storage(root: Path) -> Storage:
    """Return the storage with this root, which need not exist. Only local disks are supported."""
    return LocalStorage(root)
