"""`tidemark run` as a service runs it: the JVM that its mirrors share is killed, and SIGTERM ends it in good order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harness.database import Database
from harness.mirrored import eventually, pipeline_state
from harness.processes import JVM, in_session
from harness.syncing import publish
from tests.conftest import NEWEST
from tidemark.clock import Lsn
from tidemark.errors import TidemarkError
from tidemark.lake.pipeline_state import State

pytestmark = pytest.mark.full

LIMIT_S = 180
RUN = [sys.executable, "-c", "from tidemark.cli.main import main; main()", "run"]


def written(folder: Path, db: Database) -> Path:
    """A file with two mirrors of the database, one of which polls."""
    words = conninfo_to_dict(db.dsn().reveal())
    (folder / "password").write_text(str(words.pop("password")))
    source, file = make_conninfo("", **words), folder / "tidemark.toml"
    both = f'source = "{source}"\npassword-file = "password"\n'
    file.write_text(
        f'[mirrors.stream]\n{both}lake = "stream"\nname = "{db.names.mirror}"\n'
        f'[mirrors.polled]\n{both}lake = "polled"\nmode = "poll"\ninterval = "5s"\n'
        '[spark]\nmaster = "local[2]"\n'
    )
    return file


def has_reached(lake: Path, lsn: Lsn) -> bool:
    with suppress(TidemarkError, AssertionError):  # there is no lake yet
        found = pipeline_state(lake)
        ready = found.state in (State.FOLLOWING, State.POLLING)
        return ready and found.applied_lsn is not None and found.applied_lsn >= lsn
    return False


@NEWEST
def test_the_mirrors_of_a_process_survive_the_jvm_that_they_share(db: Database, tmp_path: Path) -> None:
    db.run("create table t (id int primary key)")
    publish(db, "t")
    lakes = [tmp_path / "stream", tmp_path / "polled"]

    def mirrored(number: int) -> None:
        db.run(f"insert into t values ({number})")
        lsn = Lsn.parse(db.admin("select pg_current_wal_insert_lsn()::text")[0][0])
        eventually(lambda: all(has_reached(lake, lsn) for lake in lakes), LIMIT_S)

    with (tmp_path / "errors").open("wb") as errors:
        command = [*RUN, str(written(tmp_path, db)), "--quiet"]
        running = subprocess.Popen(command, stderr=errors, start_new_session=True)
    try:
        for number in range(3):
            mirrored(number)
            if number < 2:
                (jvm,) = in_session(running.pid, JVM)
                os.kill(jvm, signal.SIGKILL)
        assert len(in_session(running.pid, JVM)) == 1, "both mirrors share the JVM that replaced the first"
        running.send_signal(signal.SIGTERM)
        assert running.wait(LIMIT_S) == 0, (tmp_path / "errors").read_text()
        assert [pipeline_state(lake).state for lake in lakes] == [State.STOPPED, State.STOPPED]
        eventually(lambda: not in_session(running.pid), LIMIT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
