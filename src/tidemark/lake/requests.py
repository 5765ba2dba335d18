"""What people ask of a lake's writer: tables to be copied anew; and, by `holds`, snapshots.

A request is a file until it is fulfilled. It says why it is not yet, where that was tried.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

FOLDER = "_requests"


def ask_for_resync(lake: Path, oids: Iterable[int]) -> None:
    """Ask that tables be copied anew, by whoever writes the lake, now or when someone does."""
    folder = lake / FOLDER
    folder.mkdir(exist_ok=True)
    for oid in oids:
        write_request(folder / f"{oid}-{uuid4().hex}.json", {"resync": oid})


def resyncs_of(lake: Path) -> dict[int, str]:
    """The tables that are to be copied anew, each with the reason why it is not yet, if there is one."""
    found: dict[int, str] = {}
    for path in sorted((lake / FOLDER).glob("*.json")):
        with suppress(FileNotFoundError):  # fulfilled just now
            plain = json.loads(path.read_bytes())
            found[int(plain["resync"])] = plain.get("reason", "")
    return found


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

    def failed(self, oid: int, reason: str) -> None:
        """Say why what was asked for a table is not fulfilled yet."""
        for path in [path for path, asked in self._seen.items() if asked == oid]:
            write_request(path, {"resync": oid, "reason": reason})

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
