"""A key's bucket is the same, whether Spark or Python says it."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidemark.reads.hashing import bucket_of

pytestmark = pytest.mark.quick

BUCKETS = 97


@pytest.mark.spark
def test_buckets_are_sparks(spark: SparkSession) -> None:
    chance = random.Random(7)  # noqa: S311 - the same every time
    numbers = [0, 1, -1, 2**31 - 1, -(2**31), *(chance.randint(-(2**31), 2**31 - 1) for _ in range(60))]
    texts = ["", "a", "ü€😀", *("".join(chance.choices("abcü€😀 '", k=n)) for n in range(1, 63))]
    rows = [(n, n * 2**31 + 5, n % 2**15, text) for n, text in zip(numbers, texts, strict=True)]
    columns = {"i": pa.int32(), "l": pa.int64(), "s": pa.int16(), "t": pa.string()}
    frame = spark.createDataFrame(rows, "i int, l long, s short, t string")
    for keys in (("i",), ("l",), ("s",), ("t",), ("i", "t"), ("t", "l", "s")):
        found = frame.select(*columns, F.pmod(F.xxhash64(*keys), F.lit(BUCKETS)).alias("bucket")).collect()
        for row in found:
            assert bucket_of([(columns[name], row[name]) for name in keys], BUCKETS) == row["bucket"], (keys, row)
