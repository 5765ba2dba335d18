"""`tidemark run`: two mirrors in one process; one fails alone, is started again, and is told apart in the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.sql import SparkSession

from harness.database import Database
from harness.mirrored import eventually, pipeline_state
from harness.shell import here
from harness.syncing import publish
from tests.conftest import NEWEST
from tidemark.daemon import process
from tidemark.daemon.config import read_config
from tidemark.daemon.process import run_mirrors
from tidemark.lake.pipeline_state import State, read_pipeline_state
from tidemark.lake.status import status_of
from tidemark.logs import current_mirror
from tidemark.monitoring.metrics import Metrics
from tidemark.pipeline.events import SyncEvent
from tidemark.pipeline.pipeline import SparkSessions

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]

LIMIT_S = 120


@contextmanager
def running(file: Path, spark: SparkSession, shown: list[tuple[str, SyncEvent]]) -> Iterator[None]:
    stopped = threading.Event()

    def show(event: SyncEvent) -> None:
        shown.append((current_mirror(), event))

    with ThreadPoolExecutor(1) as pool:
        sessions = SparkSessions(lambda: spark, is_ours=False)
        done = pool.submit(run_mirrors, read_config(file), sessions, Metrics(), show, stopped.is_set)
        try:
            yield
            assert not done.done()
        finally:
            stopped.set()
        done.result(LIMIT_S)


def follows(lake: Path) -> bool:
    found = read_pipeline_state(lake)
    return found is not None and found.state is State.FOLLOWING


def failures(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if "starting it again in" in each.getMessage()]


def test_each_mirror_fails_alone_and_is_started_again(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "LONGEST_PAUSE_S", 1.0)
    db.run("create table t (id int primary key)", "insert into t values (1)")
    publish(db, "t")
    words = conninfo_to_dict(db.dsn().reveal())
    (tmp_path / "password").write_text(f"{words.pop('password')}\n")
    file, source = tmp_path / "tidemark.toml", make_conninfo("", **words)
    file.write_text(f"""
        [defaults]
        fold = false
        password-file = "password"
        [mirrors.good]
        source = "{source}"
        lake = "good"
        name = "{db.names.mirror}"
        [mirrors.bad]
        source = "{source}"
        lake = "bad"
        name = "{db.names.mirror}_bad"
        mode = "poll"
        table = ["public.missing"]
    """)
    shown: list[tuple[str, SyncEvent]] = []
    with running(file, spark, shown):
        eventually(lambda: follows(tmp_path / "good"), LIMIT_S)
        eventually(lambda: len(failures(caplog)) >= 2, LIMIT_S)
        assert {each.threadName for each in failures(caplog)} == {"bad"}
        assert pipeline_state(tmp_path / "good").last_error is None, "the warnings of the other mirror are not its own"
        assert {name for name, _ in shown} == {"good", "bad"}
        assert here("stop", str(tmp_path / "good")).returncode == 0
        eventually(lambda: not status_of(tmp_path / "good").is_running, LIMIT_S)
    assert pipeline_state(tmp_path / "good").state is State.STOPPED
