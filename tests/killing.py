"""Kill -9 of the own process at a fail point, for processes that tests start."""

from __future__ import annotations

import os
import signal

from tidemark.storage.fail_points import AnyFailPoint, attach


def kill_at(point: AnyFailPoint, times: int) -> None:
    """Kill this process when it comes to the point for the n-th time."""
    left = [times]

    def observe(reached: AnyFailPoint) -> None:
        left[0] -= reached is point
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    attach(observe)
