"""Snapshots of polls that are exported to the processes that requested one (`lake.snapshot_requests`).

Each snapshot is kept open by its own session, which imports it while the poll's transaction is open. So the poll ends
as usual, and the requesting process has time to import the snapshot in turn. After `LIMIT_S` seconds it is closed.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tidemark.clock import Lsn
from tidemark.errors import SourceError
from tidemark.lake.snapshot_requests import (
    ExportedSnapshot,
    answer_request,
    delete_answer,
    delete_answers,
    read_requests,
    refuse_request,
)
from tidemark.pipeline.poll.snapshot_session import HOLDING, PollSnapshot
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session

LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class _Export:
    """The answer to a request; without a session the request was refused."""

    session: Session | None
    since: float

    def close(self) -> None:
        if self.session is not None:
            self.session.close()


class SnapshotExports:
    """All open snapshots of the lake's writer, until `close`.

    While one thread polls, another may call `close_unused`.
    """

    def __init__(self, lake: Path, source: Dsn, limit_s: float = LIMIT_S) -> None:
        self._lake, self._source, self._limit_s = lake, source, limit_s
        self._exports: dict[str, _Export] = {}
        self._one_at_a_time = threading.Lock()
        delete_answers(lake)

    def wanted(self) -> bool:
        """Whether there is a request without an answer."""
        return any(request not in self._exports for request in read_requests(self._lake))

    def shown(self, seen: PollSnapshot, lsn: Lsn) -> None:
        """Answer all requests with the snapshot of a poll, while that is open."""
        with self._one_at_a_time:
            for request in read_requests(self._lake):
                if request not in self._exports:
                    self._exports[request] = _Export(self._answered(request, seen, lsn), time.monotonic())

    def close_unused(self) -> None:
        """Close the snapshots whose request was withdrawn, whose client has ended, or whose time has expired."""
        with self._one_at_a_time:
            requests = set(read_requests(self._lake)) if self._exports else set()
            for request, export in list(self._exports.items()):
                if request not in requests:
                    self._end(request)
                elif time.monotonic() - export.since > self._limit_s:
                    export.close()

    def close(self) -> None:
        """Close all snapshots."""
        with self._one_at_a_time:
            for request in list(self._exports):
                self._end(request)

    def _answered(self, request: str, seen: PollSnapshot, lsn: Lsn) -> Session | None:
        if seen.shared.name is None:
            refuse_request(
                self._lake, request, "a standby cannot export a snapshot while transactions are running on its primary"
            )
            return None
        try:
            session = Session.open(self._source, "hold", HOLDING)
        except SourceError as error:
            refuse_request(self._lake, request, error.message)
            return None
        try:
            session.begin(snapshot_id=seen.shared.name)
            (name,) = session.row("select pg_export_snapshot()")
            answer_request(self._lake, request, ExportedSnapshot(name, seen.snapshot, lsn))
        except SourceError as error:
            session.close()
            refuse_request(self._lake, request, error.message)
            return None
        except BaseException:
            session.close()
            raise
        return session

    def _end(self, request: str) -> None:
        self._exports.pop(request).close()
        delete_answer(self._lake, request)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()
