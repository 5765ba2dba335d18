"""Requests of users to the lake's writer: to copy tables again, or to restart the whole mirror.

A request is a file that exists until it is fulfilled. After a failed attempt it contains the reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from tidemark.clock import Lsn
from tidemark.lake.files import sync
from tidemark.schema.reasons import Reason

FOLDER = "_requests"
RESTART = "_restart.json"


def ask_for_resync(lake: Path, oids: Iterable[int]) -> None:
    """Request that the running writer of the lake, or the next one, copies tables again."""
    folder = lake / FOLDER
    folder.mkdir(exist_ok=True)
    for oid in oids:
        write_request(folder / f"{oid}-{uuid4().hex}.json", {"resync": oid})


def resyncs_of(lake: Path) -> dict[int, Reason]:
    """Return the tables that are to be copied again, each with the reason why the last attempt failed, if any."""
    found: dict[int, Reason] = {}
    for path in sorted((lake / FOLDER).glob("*.json")):
        with suppress(FileNotFoundError):  # fulfilled since it was listed
            plain = json.loads(path.read_bytes())
            found[int(plain["resync"])] = Reason(plain.get("reason", ""), plain.get("fix", ""))
    return found


@dataclass(frozen=True, slots=True)
class Restart:
    """A request to restart the mirror. `after` and `cause` are set when the restart begins, and then do not change."""

    asked_at: str
    after: Lsn | None = None
    cause: str = ""

    def write(self, lake: Path) -> None:
        """Store the request in a lake, where it remains until `remove`."""
        after = str(self.after) if self.after is not None else ""
        write_request(lake / RESTART, {"requested_at": self.asked_at, "after_lsn": after, "cause": self.cause})

    @staticmethod
    def remove(lake: Path) -> None:
        """Remove the request after the restart."""
        (lake / RESTART).unlink(missing_ok=True)


def ask_for_restart(lake: Path) -> None:
    """Request that the running writer of the lake, or the next one, restarts the mirror."""
    if read_restart(lake) is None:
        Restart(datetime.now(UTC).isoformat(timespec="seconds")).write(lake)


def read_restart(lake: Path) -> Restart | None:
    """Return the request to restart the mirror, if there is one."""
    try:
        plain = json.loads((lake / RESTART).read_bytes())
    except FileNotFoundError:
        return None
    after = Lsn.parse(plain["after_lsn"]) if plain["after_lsn"] else None
    return Restart(plain["requested_at"], after, plain["cause"])


class Requests:
    """The resync requests, as the writer that fulfills them tracks them."""

    def __init__(self, lake: Path) -> None:
        self._folder = lake / FOLDER
        self._seen: dict[Path, int] = {}

    def new(self) -> list[int]:
        """Return the tables that were requested since the last call."""
        fresh = [path for path in sorted(self._folder.glob("*.json")) if path not in self._seen]
        self._seen |= {path: int(json.loads(path.read_bytes())["resync"]) for path in fresh}
        return [self._seen[path] for path in fresh]

    def failed(self, oid: int, reason: Reason) -> None:
        """Record why the requests for a table are not fulfilled yet."""
        for path in [path for path, asked in self._seen.items() if asked == oid]:
            write_request(path, {"resync": oid, "reason": reason.text, "fix": reason.fix})

    def fulfilled(self, oid: int) -> None:
        """Remove the requests for a table that `new` has returned."""
        for path in [path for path, asked in self._seen.items() if asked == oid]:
            path.unlink(missing_ok=True)
            del self._seen[path]


def write_request(path: Path, plain: Mapping[str, int | str]) -> None:
    """Write a request atomically and durably."""
    new = path.with_suffix(".new")
    with new.open("w") as file:
        json.dump(plain, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync(path.parent)
