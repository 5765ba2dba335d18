"""Fail points: named places at which a test can kill the process; in production no observer is attached.

session begun     a new session is recorded in the log, and the replication connection is not open yet
stream started    the server has accepted START_REPLICATION
block appended    frames are in the log, not synced
synced            the log is durable, not confirmed
confirmed         the flushed LSN was reported to the server
connection lost   before the next attempt
ended             endpos was reached or the receiver was stopped, and the parent is not notified yet
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class ReceiveFailPoint(Enum):
    """A fail point."""

    SESSION_BEGUN = "session begun"
    STREAM_STARTED = "stream started"
    BLOCK_APPENDED = "block appended"
    SYNCED = "synced"
    CONFIRMED = "confirmed"
    CONNECTION_LOST = "connection lost"
    ENDED = "ended"


_attached: list[Callable[[ReceiveFailPoint], None]] = []


def attach(observer: Callable[[ReceiveFailPoint], None]) -> None:
    """Call `observer` at every fail point from now on."""
    _attached.append(observer)


def reached(point: ReceiveFailPoint) -> None:
    """Call the attached observers at a fail point."""
    for observer in _attached:
        observer(point)
