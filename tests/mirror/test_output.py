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
