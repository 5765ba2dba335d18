"""Notifications to the service manager, received by a socket like systemd's."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidemark.clock import Lsn
from tidemark.lake.pipeline_state import Copies, State
from tidemark.monitoring.service import ServiceManager
from tidemark.pipeline.events import StateChanged, SyncProgress

pytestmark = pytest.mark.quick

PROGRESS = SyncProgress(
    State.FOLLOWING, Lsn(5), Lsn(5), Lsn(5), 0, 0.0, 0.0, Copies(0, 0, 0, 0, 0, 0.0, None, ()), None, None
)


@contextmanager
def manager(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.bind(address)
        received.setblocking(False)
        yield received


def lines(received: socket.socket) -> list[str]:
    return received.recv(4096).decode().splitlines()


@pytest.mark.parametrize("abstract", [False, True])
def test_readiness_status_and_watchdog_are_notified(tmp_path: Path, abstract: bool) -> None:
    name = f"tidemark-{tmp_path}" if abstract else str(tmp_path / "notify")
    environment = {"NOTIFY_SOCKET": f"@{name}" if abstract else name, "WATCHDOG_USEC": "60000000", "HOME": "/"}
    with manager(f"\0{name}" if abstract else name) as received:
        service = ServiceManager(environment=environment)
        take = service.of()
        assert environment == {"HOME": "/"}, "the receiver and the JVM are not told"
        take(StateChanged(State.STARTING))
        assert lines(received) == ["STATUS=starting"]
        take(StateChanged(State.COPYING))
        assert lines(received) == ["READY=1", "STATUS=copying"]
        take(StateChanged(State.FOLLOWING))
        assert lines(received) == ["STATUS=following"]
        take(PROGRESS)
        assert lines(received) == ["WATCHDOG=1", f"STATUS={PROGRESS}"]
        take(PROGRESS)
        with pytest.raises(BlockingIOError):
            lines(received)
        take(StateChanged(State.STOPPING))
        assert lines(received) == ["STOPPING=1", "STATUS=stopping"]


def test_a_manager_that_has_gone_is_no_error(tmp_path: Path) -> None:
    take = ServiceManager(environment={"NOTIFY_SOCKET": str(tmp_path / "gone")}).of()
    take(StateChanged(State.COPYING))
    ServiceManager(environment={}).of()(PROGRESS)


def test_of_several_mirrors_the_process_is_ready_when_each_has_started_or_failed(tmp_path: Path) -> None:
    name = str(tmp_path / "notify")
    with manager(name) as received:
        service = ServiceManager(["a", "b"], {"NOTIFY_SOCKET": name})
        service.of("a")(StateChanged(State.FOLLOWING))
        assert lines(received) == ["STATUS=1 following, 1 starting"]
        service.entered("b", State.FAILED)
        assert lines(received) == ["READY=1", "STATUS=1 failed, 1 following"]
        service.of("a")(PROGRESS)
        assert lines(received) == ["WATCHDOG=1", "STATUS=1 failed, 1 following"]
        service.of("a")(StateChanged(State.STOPPING))
        assert lines(received) == ["STOPPING=1", "STATUS=1 failed, 1 stopping"]
