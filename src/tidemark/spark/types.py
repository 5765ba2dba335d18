"""Spark types for the Arrow types that have the same values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql import types as spark

_PLAIN: Mapping[pa.DataType, spark.DataType] = MappingProxyType(
    {
        pa.bool_(): spark.BooleanType(),
        pa.int16(): spark.ShortType(),
        pa.int32(): spark.IntegerType(),
        pa.int64(): spark.LongType(),
        pa.float32(): spark.FloatType(),
        pa.float64(): spark.DoubleType(),
        pa.string(): spark.StringType(),
        pa.binary(): spark.BinaryType(),
        pa.date32(): spark.DateType(),
        pa.timestamp("us"): spark.TimestampNTZType(),
        pa.timestamp("us", "UTC"): spark.TimestampType(),
    }
)


def spark_type(kind: pa.DataType) -> spark.DataType:
    """Return the Spark type with the same values."""
    if pa.types.is_decimal(kind):
        return spark.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return spark.ArrayType(spark_type(kind.value_type))
    return _PLAIN[kind]
