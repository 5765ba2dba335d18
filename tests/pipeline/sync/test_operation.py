"""Operating a running mirror: its state in the lake, pauses, and an end on request."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import Database
from harness.mirrored import eventually, pipeline_state
from harness.operating import LIMIT_S, running, until
from harness.shell import here
from harness.syncing import publish
from tests.conftest import NEWEST, quick_only
from tidemark.clock import Lsn
from tidemark.errors import ExitCode, SourceError
from tidemark.lake.controls import StopRequest, read_stop, request_stop
from tidemark.lake.health import HealthLimits, lag_s, problems_of
from tidemark.lake.pipeline_state import MISSING, SlotUse, State
from tidemark.lake.status import status_of
from tidemark.pipeline import publishing
from tidemark.pipeline.plan import PipelineOptions
from tidemark.pipeline.publishing import SlotWatch
from tidemark.pipeline.recording import StateRecord
from tidemark.postgres.dsn import Dsn
from tidemark.storage.disk import TEMPORARY

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]


def count(lake: Path, spark: SparkSession) -> int:
    with tidemark.open(lake, spark) as mirror, mirror.at("latest") as moment:
        return moment.table("t").count()


def position(db: Database) -> Lsn:
    return Lsn.parse(db.admin("select pg_current_wal_insert_lsn()::text")[0][0])


@pytest.mark.parametrize("mode", quick_only(("logical", "poll"), "logical"))
def test_a_running_mirror_is_paused_resumed_and_ended(
    db: Database, spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    lake = tmp_path / "lake"
    following = State.FOLLOWING if mode == "logical" else State.POLLING
    db.run("create table t (id int primary key)", "insert into t select generate_series(1, 10)")
    publish(db, "t")
    with running(db.dsn(), lake, spark, mode=mode, interval=5) as ended:
        until(lake, following, ended)
        eventually(lambda: lag_s(status_of(lake)) is not None, LIMIT_S)
        shown = here("status", str(lake))
        assert f"{following.value}, for " in shown.stdout, shown.stdout
        assert here("status", str(lake), "--check", "--max-lag", "10min").stdout.startswith(f"ok: {following.value}")
        assert here("pause", str(lake)).stdout == "paused\n"
        assert here("pause", str(lake)).stdout == "the sync is paused already\n"
        until(lake, State.PAUSED, ended)
        db.run("insert into t select generate_series(11, 20)")
        if mode == "logical":
            inserted = position(db)
            eventually(lambda: (status_of(lake).received_lsn or Lsn.ZERO) >= inserted, LIMIT_S)
        assert count(lake, spark) == 10
        checked = here("status", str(lake), "--check")
        assert (checked.returncode, checked.stdout) == (ExitCode.UNHEALTHY, "problem: paused\n")
        assert here("resume", str(lake)).stdout == "resumed\n"
        assert here("resume", str(lake)).stdout == "the sync is not paused\n"
        eventually(lambda: count(lake, spark) == 20, LIMIT_S)
        until(lake, following, ended)
        db.run("insert into t values (21)")
        assert here("stop", str(lake), "--at", str(position(db))).stdout.startswith("stop requested at ")
        assert ended.result(LIMIT_S).complete
    assert count(lake, spark) == 21
    assert pipeline_state(lake).state is State.STOPPED
    assert pipeline_state(lake).last_error is None
    assert "stopped since " in here("status", str(lake)).stdout
    assert not (lake / "_stop.json").exists()
    refused = here("stop", str(lake))
    assert (refused.returncode, "no sync is running" in refused.stderr) == (ExitCode.NOT_ANSWERABLE, True)


def test_an_end_at_once_is_no_error_and_a_failure_is_told(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    db.run("create table t (id int primary key)")
    publish(db, "t")
    with running(db.dsn(), lake, spark) as ended:
        until(lake, State.FOLLOWING, ended)
        slot = pipeline_state(lake).slot
        assert slot is not None
        assert (slot.name, slot.wal_status) == (db.names.slot, "reserved")
        assert here("stop", str(lake)).returncode == ExitCode.OK
        assert not ended.result(LIMIT_S).complete
    with pytest.raises(SourceError):
        tidemark.sync(f"{db.dsn().reveal()} port=1", lake, spark=spark)
    failed = pipeline_state(lake)
    assert failed.state is State.FAILED
    assert failed.last_error is not None
    shown = here("status", str(lake)).stdout
    assert "failed since " in shown
    assert failed.last_error.message in shown
    assert f"Fix:           {failed.last_error.hint}" in shown
    checked = here("status", str(lake), "--check").stdout
    assert checked.startswith("problem: failed since ")


def test_health_is_judged_by_process_lag_and_slot(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    db.run("create table t (id int primary key)")
    publish(db, "t")
    tidemark.sync(db.dsn(), lake, spark=spark, once=True)
    found = status_of(lake)
    assert found.pipeline is not None
    now = found.pipeline.reported_at
    following = replace(found.pipeline, state=State.FOLLOWING, lag_bytes=2000, lag_s=30.0)
    well = replace(found, pipeline=following, is_running=True)
    assert problems_of(well, HealthLimits(60, 4000), now) == []
    assert problems_of(well, HealthLimits(20, 1000), now) == [
        "lag 30 s, more than 20 s",
        "lag 2 kB, more than 1000 bytes",
    ]
    assert problems_of(well, HealthLimits(), now + timedelta(minutes=10)) == [
        "no report of the running sync for 10 min"
    ]
    killed = replace(well, is_running=False)
    assert lag_s(killed, now + timedelta(minutes=1)) == 90.0
    (problem,) = problems_of(killed, HealthLimits(), now)
    assert problem.startswith("killed while following, after ")
    lost = SlotUse("s", False, "lost", 1, "wal_removed")
    assert problems_of(replace(well, pipeline=replace(following, slot=lost)), HealthLimits(), now) == [
        "replication slot s is lost"
    ]


def test_a_slot_that_was_dropped_is_recorded_as_missing(db: Database, tmp_path: Path) -> None:
    used: list[SlotUse] = []
    SlotWatch(PipelineOptions(db.dsn(), tmp_path / "lake", db.names), used.append).step()
    assert used == [SlotUse(db.names.slot, False, MISSING, None, None)]


def test_a_source_that_refuses_connections_is_logged_once(
    db: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "INTERVAL_S", 0.0)
    unreachable = Dsn(f"{db.dsn().reveal()} port=1")
    watch = SlotWatch(PipelineOptions(unreachable, tmp_path / "lake", db.names), lambda _: None)
    for _ in range(3):
        watch.step()
    (logged,) = (record.getMessage() for record in caplog.records)
    assert logged.startswith("cannot read the replication slot: cannot connect to ")


def test_the_record_counts_equal_errors_removes_unfinished_ones_and_is_left_to_the_pipeline_that_runs(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    db.run("create table t (id int primary key)")
    publish(db, "t")
    tidemark.sync(db.dsn(), lake, spark=spark, once=True)
    unfinished = lake / f"_pipeline.json.{'0' * 32}{TEMPORARY}"  # as a kill leaves it
    unfinished.touch()
    with StateRecord(lake) as record:
        assert not unfinished.exists()
        unfinished.touch()
        record.failed("folding failed")
        record.failed("folding failed")
        with StateRecord(lake) as other:
            other.failed("something else")
            assert unfinished.exists(), "the pipeline that runs may be writing it"
        error = pipeline_state(lake).last_error
        assert error is not None
        assert (error.message, error.count) == ("folding failed", 2)
        assert status_of(lake).is_running
    assert not status_of(lake).is_running
    for at, left in ((Lsn(1), StopRequest(Lsn(1))), (None, None)):  # requests to a sync that was killed
        request_stop(lake, StopRequest(at))
        with StateRecord(lake):
            assert read_stop(lake) == left
