"""Requests for the snapshot of a poll, with which another process reads the source in the state that the poll read.

A request is a lease of the requesting process. The polling process writes its answer to an object next to it: the
exported snapshot's ID and the LSN of the poll. It keeps the snapshot open until the request is removed or a time limit
has passed, so the requesting process imports it into a session of its own first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tidemark.clock import Lsn, Snapshot
from tidemark.errors import NotAnswerable
from tidemark.lake.requests import FOLDER
from tidemark.storage import open_storage

_REQUEST, _ANSWER = ".snapshot-request", ".snapshot"


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """An exported snapshot: its ID at the source, its contents, and its LSN in the mirror."""

    snapshot_id: str
    snapshot: Snapshot
    lsn: Lsn


class SnapshotRequest:
    """A request, which exists until `close`."""

    def __init__(self, lake: Path) -> None:
        self._storage = open_storage(lake)
        self._lease = self._storage.lease(FOLDER, _REQUEST)

    def answer(self) -> ExportedSnapshot | None:
        """Return the answer, if there is one. Raises NotAnswerable if the polling process refused the request."""
        data = self._storage.read(_answer_to(self._lease.key))
        if data is None:
            return None
        plain = json.loads(data)
        if "reason" in plain:
            raise NotAnswerable(
                f"the polling process cannot export its snapshot: {plain['reason']}", "Retry the command later."
            )
        return ExportedSnapshot(plain["snapshot_id"], Snapshot.parse(plain["snapshot"]), Lsn.parse(plain["lsn"]))

    def close(self) -> None:
        """Withdraw the request, which allows the polling process to close the snapshot."""
        self._lease.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()


def read_requests(lake: Path) -> list[str]:
    """Return the requests of processes that are still running."""
    return [lease.key for lease in open_storage(lake).leases(FOLDER, _REQUEST)]


def answer_request(lake: Path, request: str, exported: ExportedSnapshot) -> None:
    """Answer a request with a snapshot."""
    snapshot = {"snapshot_id": exported.snapshot_id, "snapshot": str(exported.snapshot), "lsn": str(exported.lsn)}
    open_storage(lake).write(_answer_to(request), json.dumps(snapshot).encode())


def refuse_request(lake: Path, request: str, reason: str) -> None:
    """Answer a request with a reason why it is refused."""
    open_storage(lake).write(_answer_to(request), json.dumps({"reason": reason}).encode())


def delete_answer(lake: Path, request: str) -> None:
    """Delete the answer to a request."""
    open_storage(lake).delete(_answer_to(request))


def delete_answers(lake: Path) -> None:
    """Delete the answers of a polling process that was killed, with which their snapshots have ended."""
    storage = open_storage(lake)
    for key in storage.list_keys(FOLDER, _ANSWER):
        storage.delete(key)


def _answer_to(request: str) -> str:
    return request.removesuffix(_REQUEST) + _ANSWER
