"""Folding beside the one who applies: both go on, and every position reads as PostgreSQL had it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from harness.database import Database
from harness.lake import following, lakeside
from harness.logs import logged
from harness.outside import path_of
from tests.conftest import NEWEST
from tidemark.lake.versions import read_versions
from tidemark.pipeline.fold import background, change_files
from tidemark.pipeline.fold.background import BackgroundFold
from tidemark.pipeline.fold.compactor import Compactor

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]


@pytest.mark.full
def test_tables_are_folded_again_and_again_while_they_are_applied(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "INTERVAL_S", 0.05)
    db.run("create table t (id int primary key, v text)")
    with logged("tidemark.pipeline") as said, following(lakeside(db, tmp_path, spark, "t")) as side:
        with side.writing() as writer, BackgroundFold(side.options.lake, spark):
            deadline, n = time.monotonic() + 600, 0
            while len(said) < 3 and time.monotonic() < deadline:
                db.run(
                    f"insert into t select {n} * 100 + i, 'v' from generate_series(1, 100) i",
                    f"update t set v = v || '.' where id % 5 = {n % 5}",
                )
                side.note("t")
                writer.catch_up(side.position())
                n += 1
        assert len(said) >= 3, said
        assert all("table public.t: folded " in each for each in said), said
        versions = read_versions(side.options.lake, path_of(side.options.lake, "t"))
        assert versions is not None
        side.notes = side.notes[-2:]
        assert side.require_noted() == len(side.notes)


@pytest.mark.full
def test_what_keeps_it_from_folding_is_said_and_tried_again(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "INTERVAL_S", 0.05)
    monkeypatch.setattr(background, "RETRY_S", 0.05)
    db.run("create table t (id int primary key)")
    with logged("tidemark.pipeline") as said, following(lakeside(db, tmp_path, spark, "t")) as side:
        db.run("insert into t select generate_series(1, 100)")
        side.apply_all()
        with Compactor(side.options.lake, spark), BackgroundFold(side.options.lake, spark) as folding:
            while not said:
                time.sleep(0.02)
            folding.close()
        assert "is being folded: pid" in said[0]
        with BackgroundFold(side.options.lake, spark):
            while ": folded " not in said[-1]:
                time.sleep(0.02)
        assert read_versions(side.options.lake, path_of(side.options.lake, "t")) is not None


@pytest.mark.full
def test_a_table_that_cannot_be_compacted_holds_back_no_other(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in (
        (background, "INTERVAL_S", 0.05),
        (background, "COMPACT_S", 0.05),
        (change_files, "MANY", 2),
        (change_files, "GROWTH", 1),
    ):
        monkeypatch.setattr(module, name, value)
    db.run("create table a (id int primary key)", "create table b (id int primary key)")
    with logged("tidemark.pipeline") as said, following(lakeside(db, tmp_path, spark, "a", "b")) as side:
        for number in range(3):
            db.run(f"insert into a values ({number})", f"insert into b values ({number})")
            side.apply_all()
        side.fold()
        lake = side.options.lake
        damaged = DeltaTable(lake / path_of(lake, "a") / "changes").file_uris()[0]
        Path(damaged).write_bytes(bytes(Path(damaged).stat().st_size))
        with BackgroundFold(lake, spark):
            while not said or len(DeltaTable(lake / path_of(lake, "b") / "changes").file_uris()) > 1:
                time.sleep(0.02)
        assert "table public.a: compaction failed: " in said[0]
        assert len(DeltaTable(lake / path_of(lake, "a") / "changes").file_uris()) == 3
