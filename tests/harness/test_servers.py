"""The harness itself: quick to start, and gone with whoever asked, however they went."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.postgres import Install, Server, installs, start_server
from harness.postgres.workspace import copy_install

pytestmark = pytest.mark.quick

PROGRAM = """
import sys, time
from harness.postgres import installs, start_server
server = start_server(installs()[int(sys.argv[1])])
print(server.pid, server.folder.parent, flush=True)
time.sleep(60)
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("how", ["kill -9", "kill -9 of the group", "SIGTERM", "SIGINT"])
def test_nothing_is_left_when_the_process_is_killed(how: str) -> None:
    major = max(installs())
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PROGRAM, str(major)]
    process = subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    with process:
        assert process.stdout is not None
        pid, folder = process.stdout.readline().decode().split()
        assert alive(int(pid))
        assert Path(folder).exists()
        if how == "kill -9 of the group":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.send_signal({"kill -9": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}[how])
        process.wait()
    deadline = time.monotonic() + 60
    while (alive(int(pid)) or Path(folder).exists()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(int(pid)), "a server is still running"
    assert not Path(folder).exists(), "its folder is still there"


def test_versions_16_and_18_are_always_there() -> None:
    assert {16, 18} <= set(installs())


def test_a_crash_loses_nothing_that_was_committed(server: Server) -> None:
    server.sql("create table crash_test (a int)", "insert into crash_test values (1)")
    server.restart("crash")
    assert server.sql("select a from crash_test") == [(1,)]
    server.sql("drop table crash_test")


def test_binaries_below_a_closed_home_folder_are_run_all_the_same(tmp_path: Path, install: Install) -> None:
    """For root, whose servers belong to another user, as for an ordinary user, whose servers are its own."""
    closed = tmp_path / "home"
    moved = install.moved(closed)
    copy_install(install, moved)
    closed.chmod(0o700)
    server = start_server(moved)
    try:
        assert server.sql("select 1") == [(1,)]
    finally:
        server.remove()
