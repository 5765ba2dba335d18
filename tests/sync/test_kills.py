"""`tidemark sync` killed with -9 in the middle of its copies, and started again: the driver, its JVM, its workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import MIRROR, Database
from harness.lake import by_postgres, require_rows
from harness.mirrored import eventually
from harness.syncing import publish
from tests.conftest import NEWEST
from tests.sync.load import create, writing

pytestmark = [pytest.mark.spark, NEWEST]

SYNC = [sys.executable, "-c", "from tidemark.cli.main import main; main()", "sync"]
TABLES = ("orders", "items", "bag_of_events")


@contextmanager
def running(db: Database, lake: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [*SYNC, db.dsn(MIRROR).reveal(), str(lake), "--json", "--master", "local[2]", *options]
    with (
        (lake.parent / "said").open("ab") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True) as process,
    ):
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def until(process: subprocess.Popen[str], condition: Callable[[dict[str, object]], bool]) -> None:
    """Read what it says until something is said."""
    assert process.stdout is not None
    assert any(condition(json.loads(line)) for line in process.stdout), "it ended before"


def below(process: subprocess.Popen[str], name: bytes) -> list[int]:
    """The processes of its session whose command line has this in it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
            if session == process.pid and name in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def copying(said: dict[str, object]) -> bool:
    return said["event"] == "copying" and bool(said["tables"])


def test_whoever_is_killed_in_the_middle_of_a_copy_the_next_one_is_exact(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    create(db, *TABLES, rows=20_000)
    publish(db, *TABLES)
    with writing(db, *TABLES, prepares=False, writers=1):
        with running(db, lake) as process:
            until(process, copying)
            process.kill()
        with running(db, lake) as process:
            until(process, copying)
            (jvm,) = below(process, b"java")
            os.kill(jvm, signal.SIGKILL)
            eventually(lambda: process.poll() is not None, 120)
            assert process.returncode not in (0, None)
        with running(db, lake) as process:
            until(process, copying)
            for worker in eventually(lambda: below(process, b"pyspark.daemon")):
                os.kill(worker, signal.SIGKILL)
            until(process, lambda said: said["event"] == "copying" and said["done"] == len(TABLES))
            process.terminate()
            assert process.wait(120) == 0
    with running(db, lake, "--once") as process:
        assert process.communicate(timeout=300) is not None
        assert process.returncode == 0, (tmp_path / "said").read_text()
    moment = tidemark.open(lake, spark).at()
    for table in TABLES:
        require_rows(moment.table(table), *by_postgres(db, table), table)
