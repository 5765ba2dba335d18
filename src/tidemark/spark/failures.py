"""Detect a terminated JVM, and extract the cause from a Spark error."""

from __future__ import annotations

from pyspark.sql import SparkSession

_TRACEBACK = "Traceback (most recent call last):"


def has_ended(session: SparkSession) -> bool:
    """Whether the JVM that PySpark started for a session has terminated. A JVM started elsewhere is not monitored."""
    gateway = getattr(getattr(session, "_sc", None), "_gateway", None)
    process = getattr(gateway, "proc", None)
    return process is not None and process.poll() is not None


def what_failed(error: BaseException) -> str:
    """Return the cause as one line: the innermost exception of a task if there is one, else the first line."""
    said = str(error)
    if _TRACEBACK in said:
        lines = said.rpartition(_TRACEBACK)[2].splitlines()
        return next((line for line in lines if line and not line.startswith(" ")), type(error).__name__)
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("An error occurred while")]
    return lines[0].rpartition("Exception: ")[2].strip() if lines else type(error).__name__
