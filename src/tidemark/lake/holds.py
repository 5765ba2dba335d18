"""Asking a mirror that polls for the snapshot of a poll, to read the source as that poll saw it.

A request is a file that is its owner's while he lives. Whoever polls answers beside it: what the snapshot is called at
the source, and which position it has in the mirror. He holds it until the request is gone, so whoever asked takes it
over into a session of his own first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tidemark.clock import Lsn, Snapshot
from tidemark.errors import NotAnswerable
from tidemark.lake.flocked import HeldFile, held_files
from tidemark.lake.requests import FOLDER, write_request

_ASKED, _ANSWERED = ".snapshot-request", ".snapshot"


@dataclass(frozen=True, slots=True)
class Handed:
    """A snapshot that is held: its name at the source, what it sees, and its position in the mirror."""

    snapshot_id: str
    snapshot: Snapshot
    lsn: Lsn


class Asked:
    """A request, from here to `close`."""

    def __init__(self, lake: Path) -> None:
        (lake / FOLDER).mkdir(exist_ok=True)
        self._file = HeldFile(lake / FOLDER, _ASKED)

    def answer(self) -> Handed | None:
        """What was answered, if anything was. Refused if that was a no."""
        try:
            plain = json.loads(_answer_to(self._file.path).read_bytes())
        except FileNotFoundError:
            return None
        if "reason" in plain:
            raise NotAnswerable(
                f"the polling process cannot export its snapshot: {plain['reason']}", "Retry the command later."
            )
        return Handed(plain["snapshot_id"], Snapshot.parse(plain["snapshot"]), Lsn.parse(plain["lsn"]))

    def close(self) -> None:
        """Need it no more."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()


def read_asked(lake: Path) -> list[Path]:
    """The requests of the living."""
    return held_files(lake / FOLDER, _ASKED)


def hand(request: Path, handed: Handed) -> None:
    """Answer a request."""
    said = {"snapshot_id": handed.snapshot_id, "snapshot": str(handed.snapshot), "lsn": str(handed.lsn)}
    write_request(_answer_to(request), said)


def refuse(request: Path, reason: str) -> None:
    """Answer that it cannot be done."""
    write_request(_answer_to(request), {"reason": reason})


def forget(request: Path) -> None:
    """Take the answer back."""
    _answer_to(request).unlink(missing_ok=True)


def _answer_to(request: Path) -> Path:
    return request.with_suffix(_ANSWERED)
