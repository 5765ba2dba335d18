"""Ctrl-C and SIGTERM: a quiet end at any moment, with the exit code that the help documents."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.database import OWNER, Database
from tests.conftest import NEWEST
from tidemark.errors import ExitCode
from tidemark.lake.status import status_of

PROGRAM = [sys.executable, "-c", "from tidemark.cli.main import main; main()"]
ON_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from tidemark.cli.main import main; main()"
LIMIT_S = 120
NOISE = ("Traceback", "Exception", "\tat ", "WARN")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)]
)
def test_a_command_that_waits_for_its_source_is_stopped(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = f"host=127.0.0.1 port={silent.getsockname()[1]} dbname=shop sslmode=disable"
        with subprocess.Popen([*PROGRAM, "sync", source, str(tmp_path / "lake")], stderr=subprocess.PIPE) as process:
            connection, _ = silent.accept()
            process.send_signal(number)
            _, stderr = process.communicate(timeout=LIMIT_S)
            connection.close()
    assert (process.returncode, stderr.decode().strip()) == (code, f"tidemark: stopped by {number.name}")
    assert not (tmp_path / "lake").exists()


class Terminal:
    """A command on a pseudo terminal."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *arguments],
            stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.shown = ""

    def until(self, condition: Callable[[str], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition(self.shown):
            assert time.monotonic() < deadline, self.shown
            assert self._read(), self.shown

    def press_ctrl_c(self) -> None:
        os.write(self._master, b"\x03")

    def ended(self) -> int:
        while self._read():
            pass
        os.close(self._master)
        return self._process.wait(LIMIT_S)

    def _read(self) -> bool:
        select.select([self._master], [], [], LIMIT_S)
        try:
            piece = os.read(self._master, 65536)
        except OSError:  # the other end is closed
            return False
        self.shown += ESCAPES.sub("", piece.decode(errors="replace"))
        return bool(piece)


@pytest.mark.full
@pytest.mark.spark
@NEWEST
def test_ctrl_c_on_a_terminal_stops_sync_quietly_whatever_it_does(db: Database, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, v text)")
    db.run("insert into t select i, repeat('v', 100) from generate_series(1, 100000) i")
    db.admin(f"alter role {OWNER} replication", f"grant create on database {db.name} to {OWNER}")
    source, lake = db.dsn(OWNER).reveal(), tmp_path / "lake"
    try:
        for state in ("starting", "copying", "following"):
            terminal = Terminal("sync", source, str(lake), "--master", "local[2]")
            terminal.until(lambda shown, state=state: state in shown)  # type: ignore[misc]
            if state == "following":
                db.run("update t set v = 'w' where id <= 1000")
                terminal.until(lambda shown: re.search(r"following  [0-9A-F]+/[0-9A-F]+ · lag .* changes/s", shown))
            terminal.press_ctrl_c()
            assert terminal.ended() == ExitCode.INTERRUPTED, terminal.shown
            end = r"stopped (at [0-9A-F]+/[0-9A-F]+; .* behind|before replication started)"
            assert re.search(end, terminal.shown), terminal.shown
            assert not [noise for noise in NOISE if noise in terminal.shown], terminal.shown
        assert status_of(lake).tables[0].state == "readable"
    finally:
        db.admin(f"alter role {OWNER} noreplication")
