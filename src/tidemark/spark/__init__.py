"""Spark: the one place that makes or takes a session, and the Java it needs."""

from tidemark.spark.session import PINNED, SparkOptions, require_pinned, spark_session

__all__ = ["PINNED", "SparkOptions", "require_pinned", "spark_session"]
