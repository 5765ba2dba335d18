"""A numeric has one text: what was kept as a decimal reads as PostgreSQL prints it when the column becomes numeric."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.database import Database
from harness.syncing import syncing
from tests.conftest import NEWEST

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]

VALUES = "0, 0.0000001, -0.0000001, 1, -1.5, 9999999999.9999999999, 0.00000000010, 'NaN'"


@pytest.mark.parametrize("folded", [False, pytest.param(True, marks=pytest.mark.full)], ids=["unfolded", "folded"])
def test_decimals_become_numeric_without_a_rewrite(
    db: Database, spark: SparkSession, tmp_path: Path, folded: bool
) -> None:
    """As values, as keys and in whole rows, at every position before and after."""
    tables = ("keyed", "keys", "bare")
    db.run(
        "create table keyed (id int primary key, v numeric(20,10))",
        "create table keys (v numeric(20,10) primary key, n int)",
        "create table bare (v numeric(20,10), n int)",
        "alter table bare replica identity full",
        f"insert into keyed select row_number() over (), v from unnest(array[{VALUES}]::numeric(20,10)[]) v",
        f"insert into keys select v, 1 from unnest(array[{VALUES}]::numeric(20,10)[]) v",
        f"insert into bare select v, i from unnest(array[{VALUES}]::numeric(20,10)[]) v, generate_series(1, 2) i",
    )
    with syncing(db, tmp_path, spark, *tables, folds=False) as synced:
        synced.copy_all()
        db.run("update keyed set v = v * -1 where id % 2 = 0", "update keys set n = 2 where v >= 0")
        synced.note(*tables)
        synced.catch_up()
        if folded:
            synced.fold()
        for table in tables:
            db.run(f"alter table {table} alter v type numeric")
        synced.catch_up()
        synced.note(*tables)
        db.run(
            "update keys set n = 3 where v < 1",
            "delete from keys where v = 'NaN'",
            "update keys set v = v + 0.00000000001 where v = 1",
            "insert into keys values ('Infinity', 5), (1e-30, 6)",
            "update keyed set v = 1e40 where v = 'NaN'",
            "delete from bare where n = 1 and v <= 1 or v = 'NaN'",
        )
        synced.note(*tables)
        synced.require_noted()
        if folded:
            synced.fold()
            synced.require_noted_here()
