"""`tidemark sync` under load, killed with -9 piece by piece: its driver, its JVM, its Python workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.database import MIRROR, Database
from harness.mirrored import eventually
from harness.processes import JVM, WORKERS, in_session
from harness.syncing import publish, syncing
from tests.conftest import NEWEST
from tests.pipeline.sync.child import as_json
from tests.pipeline.sync.load import create, writing
from tidemark.errors import ExitCode
from tidemark.lake.lake import Lake
from tidemark.lake.requests import request_resync
from tidemark.lake.status import status_of
from tidemark.restarts import MOST

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]

SYNC = [sys.executable, "-c", "from tidemark.cli.main import main; main()", "sync"]
TABLES = ("orders", "items", "bag_of_events")
UNTIL_COPYING = """
    do $$ begin
        while not exists (select from pg_stat_activity where datname = current_database() and query like 'copy (%') loop
            perform pg_sleep(0.002), pg_stat_clear_snapshot();
        end loop;
    end $$
"""


@dataclass
class Running:
    """A `tidemark sync` and all that belongs to it."""

    process: subprocess.Popen[str]
    database: Database
    errors: Path
    said: list[str] = field(default_factory=list)

    def until_said(self, event: str, text: str = "", meanwhile: Callable[[], None] = lambda: None) -> None:
        """Read what it says until this is said; whenever something was applied, do something meanwhile."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            said = json.loads(line)["event"]
            if said == event and text in line:
                return
            if said == "applied":
                meanwhile()
        raise AssertionError(self.errors.read_text())

    def until_copying(self) -> None:
        """Wait for a part that is being copied."""
        self.database.admin("set statement_timeout = '300s'", UNTIL_COPYING)

    def parts(self, name: bytes = b"") -> list[int]:
        """Its processes, by what their command lines have in them."""
        return in_session(self.process.pid, name)

    def kill(self, name: bytes) -> None:
        """End these with -9, all at once."""
        for pid in eventually(lambda: self.parts(name), 60):
            os.kill(pid, signal.SIGKILL)

    def require_gone(self) -> None:
        """Nothing of it is left, a while after its end."""
        eventually(lambda: not self.parts(), 120)


@contextmanager
def mirroring(db: Database, lake: Path) -> Iterator[Running]:
    command = [*SYNC, db.dsn(MIRROR).reveal(), str(lake), "--json", "--no-fold", "--master", "local[2]"]
    errors = lake.parent / "errors"
    with (
        errors.open("wb") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True) as process,
    ):
        try:
            yield Running(process, db, errors)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def kill_jvm(running: Running) -> None:
    """Kill the JVM, and wait until another one is to be started."""
    running.kill(JVM)
    running.until_said("message", "Spark stopped; starting it again")


def kill_jvm_too_often(running: Running) -> None:
    """Kill the JVM in every copy: after some times it ends, and takes the receiving process with it."""
    for _ in range(MOST - 1):
        kill_jvm(running)
        running.until_copying()
    running.kill(JVM)
    assert running.process.wait(60) == ExitCode.SPARK, running.errors.read_text()
    assert "tidemark: Spark stopped" in running.errors.read_text()
    running.require_gone()


@pytest.mark.full
def test_killed_while_a_copy_is_written_committed_and_told_the_next_one_is_exact(
    db: Database, spark: SparkSession, connect: str, tmp_path: Path
) -> None:
    points = ["file written:1", "generation committed:1", "events committed:1"]
    create(db, *TABLES)
    with syncing(db, tmp_path, spark, *TABLES) as synced:
        synced.copy_all()
        synced.note(*TABLES)
        synced.catch_up()
    request_resync(synced.options.lake, synced.replication.applier.tables.histories)
    with writing(db, *TABLES, writers=1):
        command, environment = (
            [sys.executable, "-m", "tests.pipeline.sync.child", *points],
            {**os.environ, "SPARK_CONNECT": connect},
        )
        told = as_json(synced.options)
        done = subprocess.run(
            command, input=told, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
    assert done.stdout.splitlines() == [f"{point} {-signal.SIGKILL}" for point in points], done.stderr
    synced.require_noted_here()
    with syncing(db, tmp_path, spark) as again:
        again.notes = synced.notes
        again.until(lambda: not list((synced.options.lake / "_requests").iterdir()))
        again.note(*TABLES)
        assert again.require_noted() == 2 * len(TABLES)


@pytest.mark.full
def test_whatever_is_killed_it_goes_on_or_ends_and_the_next_one_is_exact(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    create(db, *TABLES[:2], rows=40_000)
    create(db, *TABLES[2:])
    publish(db, *TABLES)
    with writing(db, *TABLES, writers=1), mirroring(db, lake) as running:
        running.until_copying()
        kill_jvm_too_often(running)
    assert not any(table.state == "readable" for table in status_of(lake).tables)
    with mirroring(db, lake) as running:
        with writing(db, *TABLES, writers=1):
            running.until_copying()
            kill_jvm(running)
            running.until_copying()
            running.kill(WORKERS)
            running.until_said("progress", '"tables_copied": 3')
            assert "copy failed" not in "".join(running.said), "parts are done again, not tables"
            running.until_said("applied")
            running.kill(WORKERS)  # Spark notices of idle ones that they are gone: then it is the next that matter
            running.until_said("message", "; retrying", meanwhile=lambda: running.kill(WORKERS))
            running.until_said("applied")
            kill_jvm(running)
            running.until_said("applied")
    assert all(table.state == "readable" for table in status_of(lake).tables)
    request_resync(lake, Lake.open(lake).tables())
    with writing(db, *TABLES, writers=1), mirroring(db, lake) as running:
        running.until_copying()
        running.process.kill()
        running.require_gone()
    with syncing(db, tmp_path, spark) as synced:
        synced.until(lambda: not list((lake / "_requests").iterdir()))
        synced.copy_all()
        synced.require_equal(*TABLES)
