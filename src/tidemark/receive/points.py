"""Named moments at which a process can be killed by a test. In production nothing is attached, and nothing happens.

session begun         the log knows of a new connection, the server does not
stream started        START_REPLICATION was answered
block appended        frames are in the log, unsynced
synced                they are durable, unconfirmed
confirmed             the server was told
connection lost       before the next attempt
ended                 endpos was reached, before the parent is told
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class Point(Enum):
    """One of them."""

    SESSION_BEGUN = "session begun"
    STREAM_STARTED = "stream started"
    BLOCK_APPENDED = "block appended"
    SYNCED = "synced"
    CONFIRMED = "confirmed"
    CONNECTION_LOST = "connection lost"
    ENDED = "ended"


_attached: list[Callable[[Point], None]] = []


def attach(observer: Callable[[Point], None]) -> None:
    """Have this called at every point from now on."""
    _attached.append(observer)


def reached(point: Point) -> None:
    """Say that it was reached."""
    for observer in _attached:
        observer(point)
