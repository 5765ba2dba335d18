"""A running mirror deletes what is older than its retention, and everything else reads as before."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import Database
from harness.mirrored import eventually
from harness.syncing import syncing
from tests.conftest import NEWEST
from tidemark.errors import InvalidValue, NotAnswerable
from tidemark.lake.registers import read_retained
from tidemark.pipeline.plan import PipelineOptions

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]


@pytest.mark.full
def test_history_expires_while_the_mirror_runs(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, v text)", "insert into t select i, 'v' from generate_series(1, 50) i")
    with syncing(db, tmp_path, spark, "t", keep_s=2.0) as synced:
        synced.copy_all()
        first = synced.note("t")

        def changed_and_expired() -> bool:
            db.run("update t set v = v || '.' where id % 7 = 0")
            synced.catch_up()
            return read_retained(synced.options.lake) > first

        eventually(changed_and_expired, 120)
        synced.notes = []
        synced.note("t")
        synced.catch_up()
        synced.require_noted()
        mirror = tidemark.open(synced.options.lake, spark)
        with pytest.raises(NotAnswerable, match="the history is kept from"):
            mirror.at(first)


def test_a_retention_of_nothing_is_refused(db: Database, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="a retention of 0 s is too short"):
        PipelineOptions(db.dsn(), tmp_path, keep_s=0.0)
