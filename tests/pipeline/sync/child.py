"""Mirrors that are killed at named points, one after the other: "file written:1" is kill -9, the first time there.

They are clients of a Spark Connect server, and forked, so that what takes longest to start is started once.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

from tests.pipeline.apply.child import kill_at, say
from tidemark.pipeline.copy import continuing, job, parts
from tidemark.pipeline.logical import LogicalReplication
from tidemark.pipeline.plan import PipelineOptions
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.spark import SparkOptions, spark_session


def as_json(options: PipelineOptions) -> str:
    """For a child's standard input: the connection string has a password."""
    return json.dumps([options.source.reveal(), str(options.lake), options.names.mirror])


def mirror_until(point: str, told: str) -> None:
    session = spark_session(SparkOptions(remote=os.environ["SPARK_CONNECT"]))
    source, lake, names = json.loads(told)
    options = PipelineOptions(Dsn(source), Path(lake), MirrorNames(names), folds=False)
    name, times = point.split(":")
    kill_at(name, times, job)
    if "SMALL_PARTS" in os.environ:
        parts.LEAST_BYTES = parts.PART_BYTES = 1 << 17
        continuing.LARGE_BYTES = 1
    with LogicalReplication(options, session) as replication:
        while True:
            replication.step()


def main() -> None:
    importlib.import_module("pyspark.sql.connect.session")
    told = sys.stdin.read()
    for point in sys.argv[1:]:
        pid = os.fork()
        if pid == 0:
            mirror_until(point, told)
        say(f"{point} {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


if __name__ == "__main__":
    main()
