"""Spark and Arrow generate the same text of a value: PostgreSQL's, with which `tests/values` compares Arrow's."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark_types

from tests.values.test_encoding import GENERATED
from tidemark.reads.text import postgres_text
from tidemark.spark.types import spark_type
from tidemark.values.cells import DecodedColumn
from tidemark.values.output import column_strings

pytestmark = [pytest.mark.quick, pytest.mark.spark]

ROWS = 6


def test_only_the_empty_text_null_and_ascii_white_space_are_quoted_in_an_array(spark: SparkSession) -> None:
    words = ["", "null", "NULL", "null\x85", "\x85", "\u2028", "\u00a0", "a\x85", "null\n", "\x0b", "\t", "\x1c", "a b"]
    array = pa.array([[word] for word in words], pa.list_(pa.string()))
    frame = spark.createDataFrame(pa.table({"v": array}))
    texts = frame.select(postgres_text(F.col("v"), frame.schema["v"].dataType).alias("v")).toArrow()["v"].to_pylist()
    assert texts == column_strings(DecodedColumn(array)).to_pylist()
    bare = {"null\x85", "\x85", "\u2028", "\u00a0", "a\x85", "\x1c"}
    assert texts == [f"{{{word}}}" if word in bare else f'{{"{word}"}}' for word in words]


@settings(max_examples=5, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_spark_and_arrow_generate_the_same_text(spark: SparkSession, data: st.DataObject) -> None:
    columns = {
        f"v{n}": pa.array(data.draw(st.lists(st.none() | values, min_size=ROWS, max_size=ROWS)), kind)
        for n, (kind, values) in enumerate(GENERATED.values())
    }
    fields = [spark_types.StructField(name, spark_type(array.type)) for name, array in columns.items()]
    frame = spark.createDataFrame(pa.table(columns), spark_types.StructType(fields))
    texts = frame.select(*(postgres_text(F.col(field.name), field.dataType).alias(field.name) for field in fields))
    found = texts.toArrow()
    for name, array in columns.items():
        assert found[name].to_pylist() == column_strings(DecodedColumn(array)).to_pylist(), array.type
