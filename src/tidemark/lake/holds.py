"""Requests for the snapshot of a poll, with which another process reads the source in the state that the poll read.

A request is a file that the requesting process locks for its lifetime. The polling process writes its answer to a file
next to it: the exported snapshot's ID and the LSN of the poll. It keeps the snapshot open until the request is removed
or a time limit has passed, so the requesting process imports it into a session of its own first.
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
    """An exported snapshot: its ID at the source, its contents, and its LSN in the mirror."""

    snapshot_id: str
    snapshot: Snapshot
    lsn: Lsn


class SnapshotRequest:
    """A request, which exists until `close`."""

    def __init__(self, lake: Path) -> None:
        (lake / FOLDER).mkdir(exist_ok=True)
        self._file = HeldFile(lake / FOLDER, _ASKED)

    def answer(self) -> Handed | None:
        """Return the answer, if there is one. Raises NotAnswerable if the polling process refused the request."""
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
        """Withdraw the request, which allows the polling process to close the snapshot."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()


def read_asked(lake: Path) -> list[Path]:
    """Return the requests of processes that are still running."""
    return held_files(lake / FOLDER, _ASKED)


def hand(request: Path, handed: Handed) -> None:
    """Answer a request with a snapshot."""
    said = {"snapshot_id": handed.snapshot_id, "snapshot": str(handed.snapshot), "lsn": str(handed.lsn)}
    write_request(_answer_to(request), said)


def refuse(request: Path, reason: str) -> None:
    """Answer a request with a reason why it is refused."""
    write_request(_answer_to(request), {"reason": reason})


def forget(request: Path) -> None:
    """Remove the answer to a request."""
    _answer_to(request).unlink(missing_ok=True)


def _answer_to(request: Path) -> Path:
    return request.with_suffix(_ANSWERED)
