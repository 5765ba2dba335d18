"""The JVM of a command: in its own process group, with its standard error in Tidemark's log.

The terminal sends Ctrl-C to every process of the foreground job, so otherwise Spark's Python workers would print
tracebacks before the command can shut down. The JVM exits when its standard input is closed, so it never outlives the
command.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Mapping
from typing import IO

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

from tidemark.errors import SparkError
from tidemark.spark.java import jvm_environment

TAIL = 5  # lines of standard error that the error message contains if the JVM does not start
_LOGGER = logging.getLogger("tidemark.spark")


def launch_jvm(conf: Mapping[str, str]) -> None:
    """Start the JVM for the next session of this process, unless one is running."""
    if SparkContext._gateway is not None:
        return
    settings = SparkConf(loadDefaults=False)
    for key, value in conf.items():
        settings.set(key, value)
    tail: deque[str] = deque(maxlen=TAIL)
    reading, writing = os.pipe()
    thread = threading.Thread(target=_follow, args=[os.fdopen(reading, "rb"), tail], name="spark", daemon=True)
    thread.start()
    try:
        with jvm_environment():
            gateway = launch_gateway(settings, {"process_group": 0, "stderr": writing})  # type: ignore[no-untyped-call]
    except PySparkException as error:
        os.close(writing)
        thread.join(1)
        raise SparkError(
            f"Spark did not start: {'; '.join(tail) or error}",
            "Run `tidemark --log-level debug` with the same command to see the output of Java.",
        ) from error
    os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)


def _follow(stderr: IO[bytes], tail: deque[str]) -> None:
    with stderr:
        for line in stderr:
            text = line.decode(errors="replace").rstrip()
            tail.append(text)
            _LOGGER.debug("%s", text)
