"""What people ask of a lake's writer: tables to be copied again, or the whole mirror to be started over.

A request is a file until it is fulfilled. It says why it is not yet, where that was tried.
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
from tidemark.lake.reasons import Reason

FOLDER = "_requests"
RESTART = "_restart.json"


def ask_for_resync(lake: Path, oids: Iterable[int]) -> None:
    """Ask that tables be copied anew, by whoever writes the lake, now or when someone does."""
    folder = lake / FOLDER
    folder.mkdir(exist_ok=True)
    for oid in oids:
        write_request(folder / f"{oid}-{uuid4().hex}.json", {"resync": oid})


def resyncs_of(lake: Path) -> dict[int, Reason]:
    """The tables that are to be copied again, each with the reason why the last attempt failed, if there was one."""
    found: dict[int, Reason] = {}
    for path in sorted((lake / FOLDER).glob("*.json")):
        with suppress(FileNotFoundError):  # fulfilled just now
            plain = json.loads(path.read_bytes())
            found[int(plain["resync"])] = Reason(plain.get("reason", ""), plain.get("fix", ""))
    return found


@dataclass(frozen=True, slots=True)
class Restart:
    """A request that the mirror be restarted: since when, and once that has begun, after which position and why."""

    asked_at: str
    after: Lsn | None = None
    cause: str = ""

    def write(self, lake: Path) -> None:
        """Keep it with a lake until `remove`."""
        after = str(self.after) if self.after is not None else ""
        write_request(lake / RESTART, {"requested_at": self.asked_at, "after_lsn": after, "cause": self.cause})

    @staticmethod
    def remove(lake: Path) -> None:
        """It is done."""
        (lake / RESTART).unlink(missing_ok=True)


def ask_for_restart(lake: Path) -> None:
    """Ask that the mirror be started over, by whoever writes the lake, now or when someone does."""
    if read_restart(lake) is None:
        Restart(datetime.now(UTC).isoformat(timespec="seconds")).write(lake)


def read_restart(lake: Path) -> Restart | None:
    """The request that the mirror be started over, if there is one."""
    try:
        plain = json.loads((lake / RESTART).read_bytes())
    except FileNotFoundError:
        return None
    after = Lsn.parse(plain["after_lsn"]) if plain["after_lsn"] else None
    return Restart(plain["requested_at"], after, plain["cause"])


class Requests:
    """What was asked for, as the one who fulfils it sees it."""

    def __init__(self, lake: Path) -> None:
        self._folder = lake / FOLDER
        self._seen: dict[Path, int] = {}

    def new(self) -> list[int]:
        """The tables that were asked for since this was last called."""
        fresh = [path for path in sorted(self._folder.glob("*.json")) if path not in self._seen]
        self._seen |= {path: int(json.loads(path.read_bytes())["resync"]) for path in fresh}
        return [self._seen[path] for path in fresh]

    def failed(self, oid: int, reason: Reason) -> None:
        """Say why what was asked for a table is not fulfilled yet."""
        for path in [path for path, asked in self._seen.items() if asked == oid]:
            write_request(path, {"resync": oid, "reason": reason.text, "fix": reason.fix})

    def fulfilled(self, oid: int) -> None:
        """Let go of what was asked for a table, as far as it was seen."""
        for path in [path for path, asked in self._seen.items() if asked == oid]:
            path.unlink(missing_ok=True)
            del self._seen[path]


def write_request(path: Path, plain: Mapping[str, int | str]) -> None:
    """All of it at once, or nothing."""
    new = path.with_suffix(".new")
    with new.open("w") as file:
        json.dump(plain, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync(path.parent)
