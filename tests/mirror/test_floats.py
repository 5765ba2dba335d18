"""Filters on floating-point columns select what PostgreSQL selects: NaN above all numbers, and -0 equal to 0.

File statistics and dictionaries know neither rule, so a reader that skips row groups by them loses rows.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import tidemark
from harness.database import Database
from harness.outside import path_of
from harness.syncing import Synced, syncing
from tests.conftest import NEWEST

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]

MANY = ", ".join(str(n) for n in range(20))
FILTERS = {
    "numbers": [
        "x > 1e6",
        "y > 1e6",
        "x >= 1001",
        "x < 3",
        "x = {nan}",
        "x <> {nan}",
        "x in ({nan}, 5)",
        "x between 990 and {nan}",
        "y = {nan}",
        "not x <= 1000",
    ],
    "zeros": ["x = 0", "x >= 0", "x <= -0.0", "x < 0", "x in (0, 1)", f"x in ({MANY})", "y = 0", f"y in ({MANY})"],
    "few": ["x = 0", "x in (0, 2)", f"x in ({MANY})", "x > 1", "x = {nan}", "y = 0", "y > 1"],
}


def require_same(synced: Synced) -> None:
    """Spark and PostgreSQL select the same rows by every filter, and by each other's rows."""
    synced.catch_up()
    with tidemark.open(synced.options.lake, synced.spark).at() as moment:
        for table, filters in FILTERS.items():
            counts = ", ".join(f"count(case when {each} then 1 end)" for each in filters)
            (row,) = synced.database.run(f"select {counts} from {table}".format(nan="'NaN'::float8"))
            expected = dict(zip(filters, row, strict=True))
            asked = (f"select {n}, count(*) from {table} where {each}" for n, each in enumerate(filters))
            found: dict[int, int] = dict(moment.sql(" union all ".join(asked).format(nan="double('NaN')")).collect())
            assert {each: found[n] for n, each in enumerate(filters)} == expected, table
        joined = "select count(*) from zeros a join few b on a.x = b.x"
        assert [tuple(row) for row in moment.sql(joined).collect()] == synced.database.run(joined)


def test_rows_with_nan_and_negative_zero_are_found_where_they_are_copied_changed_and_folded(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(
        *(f"create table {table} (id int primary key, x float8, y float4)" for table in FILTERS),
        "insert into numbers select i, i, i from generate_series(1, 1000) i",
        "insert into numbers values (0, 'NaN', 'NaN')",
        "insert into zeros select i, '-0', '-0' from generate_series(1, 100) i",
        "insert into few select i, case i % 3 when 0 then '-0' else i % 3 end, "
        "case i % 3 when 0 then '-0' else i % 3 end from generate_series(1, 3000) i",
    )
    with syncing(db, tmp_path, spark, *FILTERS, folds=False) as synced:
        synced.copy_all()
        require_same(synced)
        db.run(
            *(f"update {table} set x = x, y = y where id % 7 = 0" for table in FILTERS),
            "update few set x = 'NaN' where id = 5",
            "insert into zeros values (0, '-0', 0), (-1, '0', '-0')",
        )
        require_same(synced)
        synced.fold()
        require_same(synced)
        require_other_engines(synced.options.lake / path_of(synced.options.lake, "zeros") / "versions", 102)


def require_other_engines(folder: Path, count: int) -> None:
    """Engines that read the files themselves find every zero too."""
    files = DeltaTable(folder).file_uris()
    ((found,),) = duckdb.execute(
        "select count(*) from read_parquet($1) where _end_lsn is null and x = 0", [files]
    ).fetchall()
    assert found == count
    frame = pl.scan_delta(str(folder)).filter(pl.col("_end_lsn").is_null() & (pl.col("x") == 0))
    assert frame.collect().height == count
