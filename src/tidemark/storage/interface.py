"""The interface of storage: small objects with keys relative to a root, and claims that end with their owner's process.

A key has the form `name` or `folder/name`. The interface has nothing that an object store cannot implement: there are
no paths, no appends and no renames. Data files of Delta tables do not pass through it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Protocol

from tidemark.errors import TidemarkError
from tidemark.units import format_duration


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that has a lock or a lease, and since when."""

    host: str
    pid: int
    command: str
    since: float

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host} ({self.command}), for {format_duration(time.time() - self.since)}"

    def plain(self) -> dict[str, Any]:
        """Convert to JSON."""
        return {"host": self.host, "pid": self.pid, "command": self.command, "since": timestamp(self.since)}

    @classmethod
    def parse(cls, plain: Mapping[str, Any]) -> Owner:
        """Convert from JSON."""
        return cls(plain["host"], plain["pid"], plain["command"], datetime.fromisoformat(plain["since"]).timestamp())

    @classmethod
    def current(cls) -> Owner:
        """Return this process as an owner from now on."""
        return cls(socket.gethostname(), os.getpid(), " ".join(PurePath(arg).name for arg in sys.argv[:2]), time.time())


def timestamp(seconds: float) -> str:
    """Format a Unix time for messages and JSON."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ")


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease whose owner is running, as another process reads it."""

    key: str
    data: bytes
    modified_at: float


class StorageLock(Protocol):
    """An exclusive lock, until `close` or the end of the process, even if that is killed."""

    def close(self) -> None:
        """Release the lock."""


class StorageLease(Protocol):
    """An object that exists until `close` or the end of the process, even if that is killed."""

    @property
    def key(self) -> str:
        """The key, which no other lease has."""

    def write(self, data: bytes) -> None:
        """Replace the contents. A concurrent reader may read a mixture of the old and the new contents."""

    def close(self) -> None:
        """Delete the object. Idempotent."""


class Storage(Protocol):
    """Objects below a root. Changes are durable when a method returns, except for locks and leases.

    A failed operation raises a TidemarkError with its object: LakeDiskFull, LakeAccessDenied or LakeDiskFailed.
    """

    @property
    def root(self) -> str:
        """The root, for messages."""

    def create_root(self) -> None:
        """Create the root, if it does not exist."""

    def require_root(self) -> None:
        """Raise an error unless the root exists and can be listed."""

    def read(self, key: str) -> bytes | None:
        """Return an object, or None if it does not exist."""

    def write(self, key: str, data: bytes) -> None:
        """Create or replace an object atomically: after a crash it has its old or its new contents."""

    def remove_unfinished(self, key: str) -> None:
        """Delete what interrupted writes of an object left. The caller has a lock that excludes other writers."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create an object atomically; return False if it already exists. Of several writers, one succeeds."""

    def list_keys(self, folder: str, suffix: str) -> list[str]:
        """Return the keys in a folder that end with a suffix, sorted."""

    def delete(self, key: str) -> None:
        """Delete an object, if it exists."""

    def lock(self, key: str, wait_s: float = 0.0) -> StorageLock | None:
        """Acquire a lock and record this process as its owner; None if another process has it for `wait_s` seconds."""

    def wait_for_lock(self, key: str) -> StorageLock:
        """Acquire a lock as soon as it is free, and record this process as its owner."""

    def is_locked(self, key: str) -> bool:
        """Return whether a process has a lock now. For this it is locked for a moment, so `lock` should wait a bit."""

    def lease(self, folder: str, suffix: str, *, for_all_users: bool = False) -> StorageLease:
        """Create an empty lease with a new key. With `for_all_users`, every user may create leases in the folder."""

    def leases(self, folder: str, suffix: str) -> list[StoredLease]:
        """Return the leases of running processes, sorted by key; those of processes that have ended are deleted."""


def read_owner(storage: Storage, key: str) -> Owner | None:
    """Return the process that acquired a lock last; only `is_locked` shows whether it still has the lock."""
    try:
        return Owner.parse(json.loads(storage.read(key) or b""))
    except (TidemarkError, ValueError, TypeError, KeyError):
        return None
