"""Requests of operators to the pipeline of a lake: to pause, and to end. They are objects in the lake's storage.

A pause lasts until `tidemark resume`, also if the pipeline is started again. A request to end is removed by the
pipeline that fulfills it; one to end at a position holds for the next pipeline, if this one ends before.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tidemark.clock import Lsn
from tidemark.storage import open_storage

PAUSE, STOP = "_pause.json", "_stop.json"
AGAIN_S = 1.0  # between two reads
CURRENT = "current"


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A request to end: at an LSN, at the position of the source when the request is read, or at once (None)."""

    at: Lsn | str | None


def pause(lake: Path) -> bool:
    """Request a pause; return False if there is one already."""
    return open_storage(lake).put_if_absent(PAUSE, json.dumps({"requested_at": _now()}).encode())


def resume(lake: Path) -> bool:
    """Remove the pause; return False if there is none."""
    paused = is_paused(lake)
    open_storage(lake).delete(PAUSE)
    return paused


def is_paused(lake: Path) -> bool:
    """Return whether a pause is requested."""
    return open_storage(lake).read(PAUSE) is not None


def request_stop(lake: Path, request: StopRequest) -> None:
    """Replace the request to end."""
    plain = {"requested_at": _now(), "at": None if request.at is None else str(request.at)}
    open_storage(lake).write(STOP, json.dumps(plain).encode())


def remove_stop(lake: Path) -> None:
    """Remove the request to end."""
    open_storage(lake).delete(STOP)


def read_stop(lake: Path) -> StopRequest | None:
    """Return the request to end, if there is one."""
    data = open_storage(lake).read(STOP)
    if data is None:
        return None
    at = json.loads(data)["at"]
    return StopRequest(at if at in (None, CURRENT) else Lsn.parse(at))


def forget_stop_at_once(lake: Path) -> None:
    """Remove a request to end at once: the pipeline that it was meant for was killed."""
    request = read_stop(lake)
    if request is not None and request.at is None:
        remove_stop(lake)


class Controls:
    """The requests, as a pipeline has read them last; it reads them once a second."""

    def __init__(self, lake: Path) -> None:
        self._lake = lake
        self._next = float("-inf")
        self.is_paused = False
        self.stop: StopRequest | None = None

    def step(self) -> None:
        """Read the requests, if it is time."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + AGAIN_S
            self.is_paused, self.stop = is_paused(self._lake), read_stop(self._lake)

    @property
    def stops_now(self) -> bool:
        """Whether the pipeline is to end at once."""
        self.step()
        return self.stop is not None and self.stop.at is None

    def fulfilled(self) -> None:
        """Remove the request to end, if there is one."""
        if self.stop is not None:
            remove_stop(self._lake)
            self.stop = None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
