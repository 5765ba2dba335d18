"""The run's Spark session with few shuffle partitions, since these tables are small and the plans many."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from tests.conftest import INTERPRETED

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.maxMetadataStringLength": "2000",  # so that explain() names every pushed filter
}


@contextmanager
def set_in(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield spark
    for key, was in before.items():
        if was is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, was)


@pytest.fixture(scope="module")
def few(spark: SparkSession) -> Iterator[SparkSession]:
    with set_in(spark, SETTINGS):
        yield spark


@pytest.fixture
def interpreted(few: SparkSession) -> Iterator[SparkSession]:
    """Plans run once as they are, not compiled, which takes longer than these few rows."""
    with set_in(few, INTERPRETED):
        yield few
