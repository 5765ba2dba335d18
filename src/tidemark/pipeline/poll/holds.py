"""Snapshots of polls, kept open for the processes that requested one until they have imported it (`lake.holds`).

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
from tidemark.lake.holds import Handed, forget, hand, read_asked, refuse
from tidemark.pipeline.poll.glimpse import HOLDING, PollSnapshot
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session

LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class _Hold:
    """The answer to a request; without a session the request was refused."""

    session: Session | None
    since: float

    def close(self) -> None:
        if self.session is not None:
            self.session.close()


class Holds:
    """All open snapshots, until `close`; while one thread polls, another may call `let_go`."""

    def __init__(self, lake: Path, source: Dsn, limit_s: float = LIMIT_S) -> None:
        self._lake, self._source, self._limit_s = lake, source, limit_s
        self._held: dict[Path, _Hold] = {}
        self._one_at_a_time = threading.Lock()

    def wanted(self) -> bool:
        """Whether there is a request without an answer."""
        return any(request not in self._held for request in read_asked(self._lake))

    def shown(self, seen: PollSnapshot, lsn: Lsn) -> None:
        """Answer all requests with the snapshot of a poll, while that is open."""
        with self._one_at_a_time:
            for request in read_asked(self._lake):
                if request not in self._held:
                    self._held[request] = _Hold(self._answered(request, seen, lsn), time.monotonic())

    def let_go(self) -> None:
        """Close the snapshots whose request was withdrawn, whose client has ended, or whose time has expired."""
        with self._one_at_a_time:
            asked = set(read_asked(self._lake)) if self._held else set()
            for request, hold in list(self._held.items()):
                if request not in asked:
                    self._end(request)
                elif time.monotonic() - hold.since > self._limit_s:
                    hold.close()

    def close(self) -> None:
        """Close all snapshots."""
        with self._one_at_a_time:
            for request in list(self._held):
                self._end(request)

    def _answered(self, request: Path, seen: PollSnapshot, lsn: Lsn) -> Session | None:
        if seen.shared.name is None:
            refuse(request, "a standby cannot export a snapshot while transactions are running on its primary")
            return None
        try:
            session = Session.open(self._source, "hold", HOLDING)
        except SourceError as error:
            refuse(request, error.message)
            return None
        try:
            session.begin(snapshot_id=seen.shared.name)
            (name,) = session.row("select pg_export_snapshot()")
            hand(request, Handed(name, seen.snapshot, lsn))
        except SourceError as error:
            session.close()
            refuse(request, error.message)
            return None
        except BaseException:
            session.close()
            raise
        return session

    def _end(self, request: Path) -> None:
        self._held.pop(request).close()
        forget(request)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()
