"""A password and a value of a table are searched for in everything that Tidemark prints, logs or stores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.database import PASSWORD, Database
from harness.mirrored import eventually, pipeline_state
from harness.syncing import publish
from tests.conftest import NEWEST
from tidemark.errors import ExitCode
from tidemark.lake.pipeline_state import State
from tidemark.log.segment import SEGMENT

pytestmark = [pytest.mark.full, NEWEST]

CELL = "c4nary-of-a-cell"
COMMAND = [sys.executable, "-c", "from tidemark.cli.main import main; main()", "--log-level", "debug"]
LIMIT_S = 180


class Operator:
    """Runs commands with a directory of their own for temporary files, and keeps what they print."""

    def __init__(self, folder: Path, source: str) -> None:
        self.folder, self.source, self.lake = folder, source, folder / "lake"
        self.printed = b""
        for name in ("tmp", "events"):
            (folder / name).mkdir()
        events = f"spark.eventLog.dir=file://{folder / 'events'}"
        self.spark = ("--conf", "spark.eventLog.enabled=true", "--conf", events, "--master", "local[2]")
        self.environment = {**os.environ, "TMPDIR": str(folder / "tmp")}

    def run(self, *words: str) -> int:
        """Run a command to its end."""
        done = subprocess.run(
            [*COMMAND, *words], env=self.environment, capture_output=True, timeout=LIMIT_S, check=False
        )
        self.printed += done.stdout + done.stderr
        return done.returncode

    def sync_until_killed(self) -> None:
        """Start `sync`, kill all of its processes when it follows, and keep what it has printed."""
        command = [*COMMAND, "sync", self.source, str(self.lake), "--json", *self.spark]
        with (self.folder / "out").open("wb") as out:
            running = subprocess.Popen(
                command, env=self.environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            eventually(lambda: (self.lake / "_pipeline.json").exists(), LIMIT_S)
            eventually(lambda: pipeline_state(self.lake).state is State.FOLLOWING, LIMIT_S)
        finally:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        self.printed += (self.folder / "out").read_bytes()

    def files(self) -> Iterator[Path]:
        """Everything that is stored."""
        yield from (path for path in self.folder.rglob("*") if path.is_file() and path.name != "out")

    def may_have_rows(self, path: Path) -> bool:
        """Whether a file is a part of a table or of the log."""
        within = path.relative_to(self.folder).parts
        return within[:2] == ("lake", "tables") or path.suffix == SEGMENT


def test_they_are_in_no_output_no_log_no_state_and_no_event(db: Database, tmp_path: Path) -> None:
    db.run(
        "create table t (id int primary key, v text)",
        f"insert into t select i, '{CELL}' || i from generate_series(1, 50) i",
    )
    publish(db, "t")
    operator = Operator(tmp_path, db.dsn().reveal())
    source, lake = operator.source, str(operator.lake)
    operator.sync_until_killed()
    db.run("update t set v = v || '.' where id < 10", "delete from t where id = 50")
    assert operator.run("sync", source, lake, "--once", *operator.spark) == ExitCode.OK
    for words in (("status", lake), ("status", lake, "--json"), ("catalog", lake), ("log", f"{lake}/_log")):
        assert operator.run(*words) == ExitCode.OK, words
    assert operator.run("doctor", source) in (ExitCode.OK, ExitCode.CHECKS_FAILED)
    assert operator.run("compare", lake, "--source", source, *operator.spark) == ExitCode.OK
    assert operator.run("query", lake, f"select count(*) from t where v = '{CELL}1'", *operator.spark) == ExitCode.OK
    assert operator.run("sync", source.replace(PASSWORD, f"{PASSWORD}x"), lake, "--once") == ExitCode.REFUSED
    assert operator.run("sync", f"{source} port=1", lake, "--once") == ExitCode.UNREACHABLE
    assert len(list((tmp_path / "events").iterdir())) >= 3, "Spark logs events"
    assert CELL.encode() not in operator.printed.replace(f"v = '{CELL}1'".encode(), b"")
    assert PASSWORD.encode() not in operator.printed
    stored = {path: path.read_bytes() for path in operator.files()}
    assert [path for path, data in stored.items() if PASSWORD.encode() in data] == []
    with_cell = {path for path, data in stored.items() if CELL.encode() in data}
    assert any(operator.may_have_rows(path) for path in with_cell), "the search finds a value where it must be"
    queries = {path for path in with_cell if path.is_relative_to(tmp_path / "events")}
    assert all(stored[path].count(CELL.encode()) == stored[path].count(f"{CELL}1".encode()) for path in queries)
    assert [path for path in with_cell - queries if not operator.may_have_rows(path)] == []
