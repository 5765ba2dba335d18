"""What a running mirror forgets about tables whose history has expired, and what it does if one of them is back."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.database import Database
from harness.syncing import Synced, syncing
from tests.conftest import NEWEST
from tidemark.lake.registers import read_tables
from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake
from tidemark.pipeline.sinks import sink
from tidemark.schema.history import TableEventKind

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]


def known(synced: Synced) -> dict[str, list[TableEventKind]]:
    """The events of each table; the mirror, and a reader of the lake, know the same ones."""
    tracked, read = synced.replication.applier.tables.histories, read_tables(synced.options.lake).histories
    assert {oid: each.events for oid, each in tracked.items()} == {oid: each.events for oid, each in read.items()}
    return {each.fingerprint.name: [event.kind for event in each.events] for each in read.values()}


@pytest.mark.full
def test_tables_that_were_dropped_and_definitions_that_expired_are_forgotten_by_a_running_mirror(
    db: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "FORGET_S", 0.0)
    for table in ("t", "u", "w"):
        db.run(f"create table {table} (id int primary key)", f"insert into {table} values (1)")
    with syncing(db, tmp_path, spark, "t", "u", "w", folds=False) as synced:
        synced.copy_all()
        for table in ("t", "u", "w"):
            db.run(f"insert into {table} values (2)")
        synced.catch_up()
        oids = {each.fingerprint.name: oid for oid, each in read_tables(synced.options.lake).histories.items()}
        db.admin(f"alter publication {db.names.publication} drop table t")
        db.run("drop table w", "insert into u values (3)")
        synced.catch_up()
        synced.resync("u")
        db.run("insert into u values (4)")
        synced.catch_up()
        before = known(synced)
        assert before["t"][-1] == before["w"][-1] == TableEventKind.DROPPED
        assert before["u"].count(TableEventKind.COPIED) == 2
        retained = synced.replication.applier.cycle.complete
        expire_lake(synced.options.lake, ExpireOptions(keep_s=None, before=retained, grace_s=0))
        synced.replication.step()
        assert known(synced) == {"u": [TableEventKind.COPIED]}
        assert [path.name for path in (synced.options.lake / "tables").iterdir()] == [str(oids["u"])]

        db.admin(f"alter publication {db.names.publication} add table t")
        synced.catch_up()
        synced.copy_all()
        db.run("insert into t values (5)", "update t set id = 20 where id = 2", "insert into u values (6)")
        synced.require_equal("t", "u")
        assert known(synced)["t"][-1] == TableEventKind.COPIED
