"""Hashes are those of Spark and of PostgreSQL, whatever the type of a value."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from harness.database import Database
from tests.conftest import installs_from
from tidemark.pipeline.sinks.lake_copies import by_bucket
from tidemark.values.hashes import buckets_of, can_hash, spark_hash, spark_hashes, text_hashes

pytestmark = pytest.mark.quick

install = installs_from(14)

BUCKETS = 97
CHANCE = random.Random(11)  # noqa: S311 - the same every time
ROWS = 200


def some(make: Any, *extremes: Any) -> list[Any]:
    return [None, *extremes, *(make() for _ in range(ROWS - 1 - len(extremes)))]


def digits(count: int, scale: int) -> Decimal:
    return Decimal(CHANCE.randint(-(10**count) + 1, 10**count - 1)).scaleb(-scale)


COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), some(lambda: CHANCE.random() < 0.5)),
    "short": (pa.int16(), some(lambda: CHANCE.randint(-(2**15), 2**15 - 1), 0, -1)),
    "int": (pa.int32(), some(lambda: CHANCE.randint(-(2**31), 2**31 - 1), 0, -1, -(2**31))),
    "long": (pa.int64(), some(lambda: CHANCE.randint(-(2**63), 2**63 - 1), 0, -1, -(2**63))),
    "float": (pa.float32(), some(lambda: CHANCE.gauss(0, 1e9), 0.0, -0.0, float("nan"), float("-inf"))),
    "double": (pa.float64(), some(lambda: CHANCE.gauss(0, 1e90), 0.0, -0.0, float("nan"), float("inf"))),
    "small": (pa.decimal128(12, 2), some(lambda: digits(12, 2), Decimal("0.00"), Decimal("-0.01"))),
    "large": (pa.decimal128(38, 5), some(lambda: digits(CHANCE.randint(1, 38), 5), *map(Decimal, ("0", "-0.00128")))),
    "text": (pa.string(), some(lambda: "".join(CHANCE.choices("abcü€😀 '", k=CHANCE.randint(0, 70))), "", "a" * 32)),
    "bytes": (pa.binary(), some(lambda: CHANCE.randbytes(CHANCE.randint(0, 70)), b"")),
    "day": (pa.date32(), some(lambda: date(1, 1, 1) + timedelta(CHANCE.randint(0, 3_000_000)))),
    "time": (
        pa.timestamp("us", "UTC"),
        some(lambda: datetime(1, 1, 1, tzinfo=UTC) + timedelta(seconds=CHANCE.random() * 2e11)),
    ),
}


@pytest.mark.spark
def test_buckets_are_sparks(spark: SparkSession) -> None:
    table = pa.table({name: pa.array(values, kind) for name, (kind, values) in COLUMNS.items()})
    frame = spark.createDataFrame(table)
    keys = [*((name,) for name in COLUMNS), ("int", "text"), ("large", "day", "bytes"), tuple(COLUMNS)]
    hashes = [F.pmod(F.xxhash64(*key), F.lit(BUCKETS)).cast("int") for key in keys]
    found = frame.select(*(value.alias(f"k{at}") for at, value in enumerate(hashes))).toArrow()
    for at, key in enumerate(keys):
        cells = [table[name].combine_chunks() for name in key]
        assert buckets_of(cells, BUCKETS).tolist() == found[f"k{at}"].to_pylist(), key
        sliced = [cell.slice(7, 90) for cell in cells]
        assert buckets_of(sliced, BUCKETS).tolist() == found[f"k{at}"].to_pylist()[7:97], key


KEYS = st.lists(
    st.one_of(
        st.tuples(st.just(pa.int16()), st.integers(-(2**15), 2**15 - 1)),
        st.tuples(st.just(pa.int32()), st.integers(-(2**31), 2**31 - 1)),
        st.tuples(st.just(pa.int64()), st.integers(-(2**63), 2**63 - 1)),
        st.tuples(st.just(pa.string()), st.text(max_size=70)),
    ),
    min_size=1,
    max_size=3,
)


@given(KEYS)
def test_the_hash_of_one_key_is_that_of_many(key: list[tuple[pa.DataType, int | str]]) -> None:
    assert spark_hash(key) == spark_hashes([pa.array([value], kind) for kind, value in key])[0]


def test_hashes_of_texts_are_those_of_postgresql(db: Database) -> None:
    texts = ["".join(CHANCE.choices("abcü€😀 '\\", k=length)) for length in range(80)]
    with db.connect() as connection:
        asked = (
            'select hashtextextended(t collate "C", 0) from unnest(%s::text[]) with ordinality each (t, at) order by at'
        )
        found = [row[0] for row in connection.execute(asked, [texts])]
    assert text_hashes(pa.array(texts)).tolist() == found
    assert text_hashes(pa.array(texts).slice(7, 30)).tolist() == found[7:37]


def test_lists_are_not_hashed() -> None:
    assert not can_hash(pa.list_(pa.int32()))
    assert all(can_hash(kind) for kind, _ in COLUMNS.values())


def test_rows_come_in_the_order_of_their_buckets_and_as_they_came_within_one() -> None:
    buckets = np.array([CHANCE.choice((0, 2, 3)) for _ in range(ROWS)], np.int32)
    order, borders = by_bucket(buckets, 5)
    assert order.tolist() == np.argsort(buckets, kind="stable").tolist()
    assert [buckets[order][start:end].tolist() for start, end in itertools.pairwise(borders)] == [
        [bucket] * buckets.tolist().count(bucket) for bucket in range(5)
    ]
