"""Notifications to the service manager, as systemd's `sd_notify` sends them: readiness, status, and the watchdog.

Without the environment variable NOTIFY_SOCKET nothing is sent. The process is ready when every mirror has started, or
has failed. The watchdog is notified while every mirror that runs reports progress, so a process that hangs is started
again after WatchdogSec.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence

from tidemark.lake.pipeline_state import State
from tidemark.pipeline.events import StateChanged, SyncEvent, SyncProgress

SOCKET, WATCHDOG = "NOTIFY_SOCKET", "WATCHDOG_USEC"
_STATUS_S = 10.0
_LOGGER = logging.getLogger("tidemark.monitoring")


class ServiceManager:
    """Takes the events of the mirrors of this process. Child processes do not inherit the socket."""

    def __init__(self, mirrors: Sequence[str] = ("",), environment: MutableMapping[str, str] = os.environ) -> None:
        address, watchdog_us = environment.pop(SOCKET, ""), environment.pop(WATCHDOG, "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._interval_s = min(int(watchdog_us) / 2e6, _STATUS_S) if watchdog_us.isdigit() else _STATUS_S
        self._guard = threading.Lock()
        self._states = dict.fromkeys(mirrors, State.STARTING)
        self._reported = dict.fromkeys(mirrors, time.monotonic())
        self._is_ready = False
        self._next = float("-inf")

    def of(self, mirror: str = "") -> Callable[[SyncEvent], None]:
        """Return what takes the events of a mirror, from any thread."""

        def take(event: SyncEvent) -> None:
            if isinstance(event, StateChanged):
                self.entered(mirror, event.state)
            elif isinstance(event, SyncProgress):
                self._progressed(mirror, event)

        return take

    def entered(self, mirror: str, state: State) -> None:
        """Notify of a state."""
        with self._guard:
            self._states[mirror], self._reported[mirror] = state, time.monotonic()
            states = set(self._states.values())
            lines = []
            if not self._is_ready and State.STARTING not in states:
                self._is_ready = True
                lines = ["READY=1"]
            elif all(each is State.STOPPING or each.has_ended for each in states):
                lines = ["STOPPING=1"]
            self._send(*lines, f"STATUS={self._summary()}")

    def _progressed(self, mirror: str, event: SyncProgress) -> None:
        with self._guard:
            now = self._reported[mirror] = time.monotonic()
            if now < self._next:
                return
            self._next = now + self._interval_s
            running = [at for name, at in self._reported.items() if not self._states[name].has_ended]
            alive = ["WATCHDOG=1"] if all(at > now - 2 * self._interval_s for at in running) else []
            self._send(*alive, f"STATUS={event if len(self._states) == 1 else self._summary()}")

    def _summary(self) -> str:
        if len(self._states) == 1:
            return next(iter(self._states.values())).value
        counts = Counter(state.value for state in self._states.values())
        return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
                sending.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            _LOGGER.debug("the service manager was not notified: %s", error)
