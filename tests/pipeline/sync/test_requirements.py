"""sync starts in the mode that doctor reports, also where a requirement is only just met."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import MIRROR, Database, create_database
from harness.lake import by_postgres, require_rows
from tests.conftest import NEWEST, Start
from tidemark.errors import ExitCode
from tidemark.lake.status import status_of

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]

TIDEMARK = [sys.executable, "-c", "from tidemark.cli.main import main; main()"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TIDEMARK, *arguments], capture_output=True, text=True, timeout=300, check=False)


def mode_of(source: str) -> str | None:
    mode: str | None = json.loads(run("doctor", source, "--json").stdout)["mode"]
    return mode


def create(db: Database) -> None:
    db.run("create table t (id int primary key)", "insert into t select generate_series(1, 1000)")
    db.run("create table closed (id int primary key)", "insert into closed values (1)")


def test_one_slot_and_one_sender_are_enough(start: Start, tmp_path: Path, spark: SparkSession) -> None:
    db = create_database(start(max_replication_slots=1, max_wal_senders=1))
    create(db)
    source, lake = db.server.dsn("postgres", db.name), tmp_path / "lake"
    assert mode_of(source) == "logical"
    synced = run("sync", source, str(lake), "--once", "--master", "local[1]")
    assert synced.returncode == ExitCode.OK, synced.stderr
    assert status_of(lake).last_poll is None
    require_rows(tidemark.open(lake, spark).table("t"), *by_postgres(db, "t"), "t")


def test_a_table_that_cannot_be_read_is_left_out_in_both_modes(
    db: Database, tmp_path: Path, spark: SparkSession
) -> None:
    create(db)
    db.run(f"revoke select on closed from {MIRROR}")
    source, polled, streamed = db.dsn().reveal(), tmp_path / "polled", tmp_path / "streamed"
    assert mode_of(source) == "poll", "the owner has not published the tables"
    once = run("sync", source, str(polled), "--once", "--master", "local[1]")
    assert once.returncode == ExitCode.REFUSED, once.stderr
    assert "public.closed cannot be read" in once.stderr
    assert status_of(polled).last_poll is not None
    run("setup", db.server.dsn("postgres", db.name), "--role", MIRROR)
    db.run(f"revoke select on closed from {MIRROR}")
    assert mode_of(source) == "logical"
    once = run("sync", source, str(streamed), "--once", "--master", "local[1]")
    assert once.returncode == ExitCode.REFUSED, once.stderr
    assert "public.closed cannot be read" in once.stderr
    assert status_of(streamed).last_poll is None
    for lake in (polled, streamed):
        require_rows(tidemark.open(lake, spark).table("t"), *by_postgres(db, "t"), "t")
        assert {each.name: each.state for each in status_of(lake).tables} == {
            "public.t": "readable",
            "public.closed": "waiting",
        }
