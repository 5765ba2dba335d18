"""Many tables: what is done for each of them is little, and what is told of them is told at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from harness.database import Database
from harness.syncing import syncing
from tests.conftest import NEWEST
from tidemark.lake.registers import TABLES, read_events

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]

COUNT = 30


@pytest.mark.full
def test_a_first_look_at_many_tables_is_one_commit_and_they_are_copied_by_one_snapshot(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    names = [f"t{n}" for n in range(COUNT)]
    for name in names:
        db.run(f"create table {name} (id int primary key)", f"insert into {name} select generate_series(1, 5)")
    with syncing(db, tmp_path, spark, *names) as synced:
        assert synced.replication.applier.read_catalog()
        assert len(read_events(synced.options.lake)) == COUNT
        assert DeltaTable(synced.options.lake / TABLES).version() == 1
        synced.copy_all()
        copied = {each.last.lsn for each in synced.replication.applier.tables.histories.values()}
        assert len(copied) == 1
        synced.require_equal(*names[::9])
