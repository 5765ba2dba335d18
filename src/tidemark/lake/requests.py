"""Requests of users to the lake's writer: to copy tables again, or to restart the whole mirror.

A request is an object in the lake's storage until it is fulfilled. After a failed attempt it contains the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from tidemark.clock import Lsn
from tidemark.schema.reasons import Reason
from tidemark.storage import open_storage

FOLDER = "_requests"
RESTART = "_restart.json"
_SUFFIX = ".json"


def request_resync(lake: Path, oids: Iterable[int]) -> None:
    """Request that the running writer of the lake, or the next one, copies tables again."""
    storage = open_storage(lake)
    for oid in oids:
        storage.write(f"{FOLDER}/{oid}-{uuid4().hex}{_SUFFIX}", json.dumps({"resync": oid}).encode())


def resyncs_of(lake: Path) -> dict[int, Reason]:
    """Return the tables that are to be copied again, each with the reason why the last attempt failed, if any."""
    storage = open_storage(lake)
    found: dict[int, Reason] = {}
    for key in storage.list_keys(FOLDER, _SUFFIX):
        if (data := storage.read(key)) is not None:  # None: fulfilled since it was listed
            plain = json.loads(data)
            found[int(plain["resync"])] = Reason(plain.get("reason", ""), plain.get("fix", ""))
    return found


@dataclass(frozen=True, slots=True)
class Restart:
    """A request to restart the mirror. `after` and `cause` are set when the restart begins, and then do not change."""

    asked_at: str
    after: Lsn | None = None
    cause: str = ""

    def packed(self) -> bytes:
        """Convert to JSON."""
        after = str(self.after) if self.after is not None else ""
        return json.dumps({"requested_at": self.asked_at, "after_lsn": after, "cause": self.cause}).encode()

    def write(self, lake: Path) -> None:
        """Replace the request in a lake, where it remains until `remove`."""
        open_storage(lake).write(RESTART, self.packed())

    @staticmethod
    def remove(lake: Path) -> None:
        """Remove the request after the restart."""
        open_storage(lake).delete(RESTART)


def request_restart(lake: Path) -> None:
    """Request that the running writer of the lake, or the next one, restarts the mirror; once, if it was requested."""
    open_storage(lake).put_if_absent(RESTART, Restart(datetime.now(UTC).isoformat(timespec="seconds")).packed())


def read_restart(lake: Path) -> Restart | None:
    """Return the request to restart the mirror, if there is one."""
    data = open_storage(lake).read(RESTART)
    if data is None:
        return None
    plain = json.loads(data)
    after = Lsn.parse(plain["after_lsn"]) if plain["after_lsn"] else None
    return Restart(plain["requested_at"], after, plain["cause"])


class Requests:
    """The resync requests, as the writer that fulfills them tracks them."""

    def __init__(self, lake: Path) -> None:
        self._storage = open_storage(lake)
        self._requested: dict[str, int] = {}

    def new(self) -> list[int]:
        """Return the tables that were requested since the last call."""
        fresh = [key for key in self._storage.list_keys(FOLDER, _SUFFIX) if key not in self._requested]
        found = {key: data for key in fresh if (data := self._storage.read(key)) is not None}
        requested = {key: int(json.loads(data)["resync"]) for key, data in found.items()}
        self._requested |= requested
        return list(requested.values())

    def failed(self, oid: int, reason: Reason) -> None:
        """Record why the requests for a table are not fulfilled yet."""
        plain = {"resync": oid, "reason": reason.text, "fix": reason.fix}
        for key in self._keys_of(oid):
            self._storage.write(key, json.dumps(plain).encode())

    def fulfilled(self, oid: int) -> None:
        """Remove the requests for a table that `new` has returned."""
        for key in self._keys_of(oid):
            self._storage.delete(key)
            del self._requested[key]

    def _keys_of(self, oid: int) -> list[str]:
        return [key for key, requested in self._requested.items() if requested == oid]
