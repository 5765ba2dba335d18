"""Pollers that are killed at named points, one for each line of standard input: "file written:1" is kill -9.

They are clients of a Spark Connect server, and forked, so that what takes longest to start is started once.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

from tests.pipeline.apply.child import kill_at, say
from tidemark.pipeline.poll import writing
from tidemark.pipeline.poll.lake_poller import lake_poller
from tidemark.pipeline.poll.options import PollOptions
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.schema.selection import Selection
from tidemark.spark import SparkOptions, spark_session


def as_json(options: PollOptions) -> str:
    """The first line of a child's standard input: the connection string has a password."""
    return json.dumps([options.source.reveal(), str(options.lake), options.names.mirror])


def poll_until(point: str, told: str) -> None:
    session = spark_session(SparkOptions(remote=os.environ["SPARK_CONNECT"]))
    source, lake, names = json.loads(told)
    name, times = point.split(":")
    kill_at(name, times, writing)
    with lake_poller(PollOptions(Dsn(source), Path(lake), MirrorNames(names), Selection()), session) as poller:
        poller.step()


def main() -> None:
    importlib.import_module("pyspark.sql.connect.session")
    told = sys.stdin.readline()
    for line in iter(sys.stdin.readline, ""):
        pid = os.fork()
        if pid == 0:
            poll_until(line.strip(), told)
            os._exit(0)
        say(f"{line.strip()} {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


if __name__ == "__main__":
    main()
