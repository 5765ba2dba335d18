"""Parquet files as written: how columns are kept is chosen by the first rows, and holds whatever comes after."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tidemark.lake.files import FileWriter

pytestmark = pytest.mark.quick

ROWS = 6000  # that lie near each other, more than are looked at; extremes come after them
NOON = datetime(2024, 2, 29, 12, 0, tzinfo=UTC)
DAY = date(2024, 2, 29)
NEAR: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "small": (pa.int16(), list(range(ROWS)), [-(2**15), 2**15 - 1]),
    "int": (pa.int32(), list(range(ROWS)), [-(2**31), 2**31 - 1]),
    "long": (pa.int64(), list(range(ROWS)), [-(2**63), 2**63 - 1]),
    "tax": (
        pa.decimal128(9, 2),
        [Decimal(n).scaleb(-2) for n in range(ROWS)],
        [Decimal("-9999999.99"), Decimal("9999999.99")],
    ),
    "price": (
        pa.decimal128(18, 2),
        [Decimal(n).scaleb(-2) for n in range(ROWS)],
        [Decimal("-9999999999999999.99"), Decimal("9999999999999999.99")],
    ),
    "day": (pa.date32(), [DAY + timedelta(n) for n in range(ROWS)], [date.min, date.max]),
    "time": (
        pa.timestamp("us", "UTC"),
        [NOON + timedelta(microseconds=n) for n in range(ROWS)],
        [datetime(1900, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)],
    ),
}
APART = {
    "scattered": pa.array([n * 2**40 for n in range(ROWS)] + [0] * 5, pa.int64()),
    "few": pa.array([n % 3 for n in range(ROWS)] + [7] * 5, pa.int32()),
    "digits": pa.array([Decimal(n) for n in range(ROWS)] + [Decimal(10**37)] * 5, pa.decimal128(38, 0)),
    "nothing": pa.nulls(ROWS + 5, pa.int32()),
}


def test_what_lies_near_is_packed_as_differences_and_every_engine_reads_every_value(
    tmp_path: Path, spark: SparkSession
) -> None:
    near = {
        name: pa.array([*values, low, high, low, None, high], kind)
        for name, (kind, values, (low, high)) in NEAR.items()
    }
    rows = pa.table({**near, **APART})
    writer = FileWriter(tmp_path, "part")
    writer.write(rows)
    file = tmp_path / writer.close().path

    group = pq.read_metadata(file).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    packed = {column.path_in_schema for column in columns if "DELTA_BINARY_PACKED" in column.encodings}
    assert packed == set(near)
    expected = rows.to_pylist()
    assert pq.read_table(file).to_pylist() == expected
    assert pl.read_parquet(file).to_dicts() == expected
    assert duckdb.sql(f"select * from '{file}'").to_arrow_table().cast(rows.schema).to_pylist() == expected
    assert spark.read.parquet(str(file)).toArrow().cast(rows.schema).to_pylist() == expected
