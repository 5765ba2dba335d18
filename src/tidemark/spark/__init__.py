"""The only package that creates or reuses a Spark session, and the Java that it needs."""

from tidemark.spark.session import PINNED, SparkOptions, discard_session, require_pinned, spark_session, tasks_beside
from tidemark.spark.tasks import TasksStopped, has_ended, in_a_task, in_parallel, in_tasks, runs_here, what_failed

__all__ = [
    "PINNED",
    "SparkOptions",
    "TasksStopped",
    "discard_session",
    "has_ended",
    "in_a_task",
    "in_parallel",
    "in_tasks",
    "require_pinned",
    "runs_here",
    "spark_session",
    "tasks_beside",
    "what_failed",
]
