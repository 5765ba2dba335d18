"""A receiving process with faults: killed at the n-th time that it comes to a named point, or with a slow disk.

KILL_AT="synced:3"        kill -9 of itself, there
SLOW_SYNC_S="20"          every sync of the log takes so long
PAUSE_AT="session begun"  stop there once, until the file `paused` beside the log is removed
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path

from tests.killing import kill_at
from tidemark.log.disk import Disk
from tidemark.receive.options import ReceiveOptions
from tidemark.receive.process import serve
from tidemark.storage.disk import File, LocalDisk
from tidemark.storage.fail_points import AnyFailPoint, ReceiveFailPoint, attach


def pause_at(name: str, beside: Path) -> None:
    """The first time, until the file that says so is removed."""
    paused, seen = beside / "paused", Counter[AnyFailPoint]()

    def observe(point: AnyFailPoint) -> None:
        seen[point] += 1
        if point is ReceiveFailPoint(name) and seen[point] == 1:
            paused.touch()
            while paused.exists():
                time.sleep(0.02)

    attach(observe)


def slow_syncs(seconds: float) -> None:
    sync = Disk.sync

    def slow(self: LocalDisk, file: File) -> None:
        time.sleep(seconds)
        sync(self, file)

    Disk.sync = slow  # type: ignore[method-assign]


if __name__ == "__main__":
    if point := os.environ.get("KILL_AT"):
        kill_at(ReceiveFailPoint(point.rpartition(":")[0]), int(point.rpartition(":")[2]))
    if seconds := os.environ.get("SLOW_SYNC_S"):
        slow_syncs(float(seconds))
    options = sys.stdin.read()
    if point := os.environ.get("PAUSE_AT"):
        folder = ReceiveOptions.from_json(options).folder
        pause_at(point, folder.parent)
    sys.exit(serve(sys.argv[1:], options))
