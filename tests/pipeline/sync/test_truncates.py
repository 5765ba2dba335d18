"""A table that is truncated again and again: each TRUNCATE spoils its copy, and is a beginning without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import Database
from harness.syncing import syncing
from tests.conftest import NEWEST
from tidemark.clock import Boundary
from tidemark.errors import NotAnswerable
from tidemark.lake.requests import request_restart
from tidemark.pipeline.copy import copying
from tidemark.pipeline.copy.job import copy_parts
from tidemark.pipeline.restart import restart_if_requested
from tidemark.schema.history import TableEventKind

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]


@pytest.mark.full
def test_a_table_whose_every_copy_is_spoiled_by_a_truncate_begins_at_one(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run(
        "create table queue (id int primary key, v text)",
        "create table bag (v text)",
        "create table calm (id int primary key)",
        "insert into queue select i, 'old' from generate_series(1, 100) i",
        "insert into bag select 'old' from generate_series(1, 100)",
        "insert into calm values (1)",
    )
    turns = iter(range(1000))

    def truncated_first(*arguments: object) -> object:
        n = next(turns)
        db.run(
            "begin; insert into queue values (1000, 'before'); truncate queue, bag; "
            f"insert into queue values (1, 'turn {n}'); insert into bag values ('turn {n}'); commit",
            f"insert into queue values (2, 'after {n}')",
        )
        return copy_parts(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(copying, "copy_parts", truncated_first)
    with syncing(db, tmp_path, spark, "queue", "bag", "calm", folds=False) as synced:
        synced.copy_all()
        tables = synced.replication.applier.tables.histories.values()
        kinds = {each.fingerprint.name: [event.kind for event in each.events] for each in tables}
        assert [TableEventKind.EMPTIED in kinds[name] for name in ("queue", "bag", "calm")] == [True, True, False]
        synced.note("queue", "bag", "calm")
        db.run("update queue set v = 'last'", "truncate bag", "insert into bag values ('x'), ('x')")
        synced.note("queue", "bag", "calm")
        synced.require_noted()
        synced.fold()
        synced.require_noted_here()
        begun = {each.fingerprint.name: each.spans()[-1] for each in tables}["queue"].begin
        mirror = tidemark.open(synced.options.lake, spark)
        with mirror.at(begun) as moment:
            assert sorted(row.id for row in moment.table("queue").collect()) == [1]
            with pytest.raises(NotAnswerable, match="are not complete"):
                moment.changes("queue", "0/1")
        with mirror.at(Boundary(synced.notes[-1].lsn, frozenset({begun}))) as moment:
            with pytest.raises(NotAnswerable, match="was truncated at"):
                moment.table("queue")
            assert moment.table("calm").count() == 1


@pytest.mark.full
def test_after_a_restart_a_table_that_begins_at_a_truncate_holds_back_no_other(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run(
        "create table queue (id int primary key)",
        "create table calm (id int primary key)",
        "insert into queue select generate_series(1, 100)",
    )
    with syncing(db, tmp_path, spark, "queue", "calm") as synced:
        synced.copy_all()
        synced.catch_up()
    request_restart(synced.options.lake)
    assert restart_if_requested(synced.options)

    def truncated_first(*arguments: object) -> object:
        db.run("truncate queue", "insert into queue values (1)")
        return copy_parts(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(copying, "copy_parts", truncated_first)
    with syncing(db, tmp_path, spark) as synced:
        synced.copy_all()
        histories = synced.replication.applier.tables.histories.values()
        (queue,) = (each for each in histories if each.name == "public.queue")
        assert queue.events[-1].kind is TableEventKind.EMPTIED
        db.run("insert into calm values (7)")
        synced.note("queue", "calm")
        synced.require_noted()
