"""What is published while a mirror runs: a table that was chosen may be gone, and one that is chosen may appear."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.database import Database
from harness.syncing import syncing
from tests.conftest import NEWEST
from tidemark.errors import InvalidValue
from tidemark.pipeline import publishing
from tidemark.pipeline.plan import PipelineOptions
from tidemark.pipeline.publishing import Publisher, publish
from tidemark.schema.selection import Pattern, Selection

pytestmark = [pytest.mark.quick, NEWEST]
WATCHED_S = 7.0  # within which whoever receives has looked at the publications


def published(db: Database) -> list[str]:
    return [
        name
        for (name,) in db.admin(
            f"select tablename::text from pg_publication_tables where pubname = '{db.names.publication}'"
        )
    ]


@pytest.mark.full
@pytest.mark.spark
def test_a_mirror_whose_only_table_is_dropped_goes_on_when_it_is_there_again(
    db: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "INTERVAL_S", 0.0)
    options = PipelineOptions(db.dsn("postgres"), tmp_path / "lake", db.names, Selection((Pattern("public.t"),), ()))
    db.run("create table t (id int primary key)", "insert into t values (1)")
    publish(options, begun=False)
    with syncing(db, tmp_path, spark, folds=False) as synced:
        running = Publisher(options)
        synced.copy_all()
        db.run("drop table t")
        running.step()
        seen = time.monotonic() + WATCHED_S
        synced.until(lambda: time.monotonic() > seen)
        db.run("create table t (id int primary key)", "insert into t values (2)")
        running.step()
        synced.until(lambda: sum("public.t: copied" in each for each in synced.said) == 2)
        db.run("insert into t values (3)")
        synced.require_equal("t")


def test_a_chosen_table_that_is_dropped_ends_no_mirror(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "INTERVAL_S", 0.0)
    options = PipelineOptions(db.dsn("postgres"), tmp_path / "lake", db.names, Selection((Pattern("public.t"),), ()))
    with pytest.raises(InvalidValue, match=r"no table matches 'public\.t'"):
        publish(options, begun=False)
    db.run("create table t (id int primary key)")
    publish(options, begun=False)
    assert published(db) == ["t"]
    running = Publisher(options)
    db.run("drop table t")
    running.step()
    publish(options, begun=True)
    assert published(db) == []
    assert db.admin("select pubname::text from pg_publication") == [(db.names.publication,)], "its stream goes on"
    db.run("create table t (id int primary key)")
    running.step()
    assert published(db) == ["t"]
