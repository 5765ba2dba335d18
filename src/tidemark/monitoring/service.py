"""Notifications to the service manager, as systemd's `sd_notify` sends them: readiness, status, and the watchdog.

Without the environment variable NOTIFY_SOCKET nothing is sent. The watchdog is notified when the pipeline reports
progress, so a pipeline that hangs is restarted after WatchdogSec.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import MutableMapping

from tidemark.lake.pipeline_state import State
from tidemark.pipeline.events import StateChanged, SyncEvent, SyncProgress

SOCKET, WATCHDOG = "NOTIFY_SOCKET", "WATCHDOG_USEC"
_STATUS_S = 10.0
_LOGGER = logging.getLogger("tidemark.monitoring")


class ServiceManager:
    """Takes the events of the pipelines of this process. Child processes do not inherit the socket."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        address, watchdog_us = environment.pop(SOCKET, ""), environment.pop(WATCHDOG, "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._interval_s = int(watchdog_us) / 2e6 if watchdog_us.isdigit() else _STATUS_S
        self._guard = threading.Lock()
        self._is_ready = False
        self._next = float("-inf")

    def take(self, event: SyncEvent) -> None:
        """Notify the service manager of an event; can be called from any thread."""
        if not self._address:
            return
        with self._guard:
            if isinstance(event, StateChanged):
                self._send(*self._of_state(event.state), f"STATUS={event}")
            elif isinstance(event, SyncProgress) and time.monotonic() >= self._next:
                self._next = time.monotonic() + min(self._interval_s, _STATUS_S)
                self._send("WATCHDOG=1", f"STATUS={event}")

    def _of_state(self, state: State) -> list[str]:
        if state is State.STOPPING:
            return ["STOPPING=1"]
        if state is State.STARTING or self._is_ready:
            return []
        self._is_ready = True
        return ["READY=1"]

    def _send(self, *lines: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
                sending.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            _LOGGER.debug("the service manager was not notified: %s", error)
