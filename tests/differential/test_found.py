"""What the search found, each by its mechanism: answers of the mirror that were not PostgreSQL's, or none at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import MIRROR, Database
from harness.syncing import Synced, syncing
from tests.conftest import NEWEST

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]


def require_same(synced: Synced, when: str, *statements: str) -> None:
    """PostgreSQL and the mirror give the same rows, in any order."""
    mirror = tidemark.open(synced.options.lake, synced.spark, source=synced.database.dsn(MIRROR))
    with mirror.at(when) as moment:
        for statement in statements:
            found = sorted(map(repr, (tuple(row) for row in moment.sql(statement).collect())))
            assert found == sorted(map(repr, synced.database.run(statement))), statement
    mirror.close()


def test_a_column_is_set_to_null_after_it_was_added_with_a_default(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key)", "insert into t select generate_series(1, 5)")
    with syncing(db, tmp_path, spark, "t", folds=False) as synced:
        synced.copy_all()
        db.run("alter table t add column n int default 5", "update t set n = null where id = 2")
        synced.catch_up()
        require_same(synced, "latest", "select id, n from t")


def test_rows_with_values_without_a_twin_are_read_by_their_other_columns_before_they_are_folded(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    tables = ("emptied", "empty", "bag")
    db.run(
        *(f"create table {table} (id int primary key, d date)" for table in tables[:2]),
        "create table bag (id int, d date)",
        "alter table bag replica identity full",
        *(f"insert into {table} values (1, 'infinity'), (2, '2020-01-01')" for table in ("emptied", "bag")),
    )
    statements = [f"select id from {table} where id > 1" for table in tables]
    with syncing(db, tmp_path, spark, *tables, folds=False) as synced:
        synced.copy_all()
        for table in tables:
            db.run(f"truncate {table}", f"insert into {table} values (1, 'infinity'), (2, '2020-01-01')")
        synced.catch_up()
        require_same(synced, "latest", *statements)
        db.run(*(f"insert into {table} values (3, '-infinity')" for table in tables))
        require_same(synced, "now", *statements)
