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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.database import OWNER, Database
from harness.mirrored import eventually, pipeline_state
from harness.processes import in_session
from harness.shell import here
from tests.conftest import NEWEST
from tidemark.clock import Lsn
from tidemark.errors import ExitCode
from tidemark.lake.pipeline_state import State
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


@contextmanager
def following(db: Database, lake: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A sync that follows its source, in a session of its own."""
    command = [*PROGRAM, "sync", db.dsn(OWNER).reveal(), str(lake), "--json", "--master", "local[1]"]
    db.admin(f"alter role {OWNER} replication", f"grant create on database {db.name} to {OWNER}")
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            eventually(lambda: (lake / "_pipeline.json").exists(), LIMIT_S)
            eventually(lambda: pipeline_state(lake).state is State.FOLLOWING, LIMIT_S)
            yield process
        finally:
            for left in in_session(process.pid):
                os.kill(left, signal.SIGKILL)
            db.admin(f"alter role {OWNER} noreplication")


@pytest.mark.full
@pytest.mark.spark
@NEWEST
def test_a_second_signal_stops_sync_at_once_without_a_process_left(db: Database, tmp_path: Path) -> None:
    db.run("create table t (id int primary key)", "insert into t select generate_series(1, 1000)")
    lake = tmp_path / "lake"
    with following(db, lake) as process:
        db.run("update t set id = -id")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=LIMIT_S)
        assert process.returncode in (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
        assert "stopped at once by a second signal" in printed.decode()
        eventually(lambda: not in_session(process.pid), LIMIT_S)
    with following(db, lake):
        compared = ("compare", str(lake), "--source", db.dsn(OWNER).reveal())
        eventually(lambda: here(*compared).returncode == ExitCode.OK, LIMIT_S)


@pytest.mark.full
@NEWEST
def test_stop_at_the_current_position_ends_sync_when_it_can_be_read(db: Database, tmp_path: Path) -> None:
    db.run("create table t (id int primary key)")
    lake = tmp_path / "lake"
    with following(db, lake) as process:
        db.run("insert into t select generate_series(1, 1000)")
        before = Lsn.parse(db.admin("select pg_current_wal_insert_lsn()::text")[0][0])
        assert here("stop", str(lake), "--at", "current").stdout == "stop requested at current\n"
        assert process.wait(LIMIT_S) == ExitCode.OK
    status = status_of(lake)
    assert status.applied_lsn >= before
    assert here("stop", str(lake)).returncode == ExitCode.NOT_ANSWERABLE


@pytest.mark.full
@NEWEST
def test_status_is_printed_again_until_ctrl_c(db: Database, tmp_path: Path) -> None:
    db.run("create table t (id int primary key)")
    lake = tmp_path / "lake"
    with following(db, lake):
        watched = Terminal("status", str(lake), "--watch")
        watched.until(lambda shown: shown.count("public.t") >= 3)
        watched.press_ctrl_c()
        assert watched.ended() == ExitCode.OK, watched.shown
        assert not [noise for noise in NOISE if noise in watched.shown], watched.shown
