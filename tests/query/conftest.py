"""The run's Spark session with few shuffle partitions, since these tables are small and the plans many."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.maxMetadataStringLength": "2000",  # so that explain() names every pushed filter
}


@pytest.fixture(scope="module")
def few(spark: SparkSession) -> Iterator[SparkSession]:
    before = {key: str(spark.conf.get(key)) for key in SETTINGS}
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)
    yield spark
    for key, value in before.items():
        spark.conf.set(key, value)
