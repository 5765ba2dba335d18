"""Spark: the one place that makes or takes a session, and the Java it needs."""

from tidemark.spark.failures import has_ended, what_failed
from tidemark.spark.session import PINNED, SparkOptions, require_pinned, spark_session, tasks_beside

__all__ = ["PINNED", "SparkOptions", "has_ended", "require_pinned", "spark_session", "tasks_beside", "what_failed"]
