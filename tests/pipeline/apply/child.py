"""A writer of a lake that is killed at a named point, and the Spark Connect server that it is a client of.

serve     a server; says its port, and runs until standard input ends
write     writers that catch up when they are told with what, one after the other, each killed at its point: "written:2"
          is kill -9 of itself, the second time there; if it is told so, one then folds all tables, lets go of what is
          older, and compacts the rest; says how each has ended
hold      a writer that says when the lake's lock is its own, and keeps it until standard input ends
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tidemark.clock import Lsn
from tidemark.lake.lock import WRITING, LakeLock
from tidemark.pipeline.apply import job as apply_job
from tidemark.pipeline.apply.lake_applier import lake_applier
from tidemark.pipeline.apply.options import ApplyOptions
from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake
from tidemark.pipeline.fold import change_files
from tidemark.pipeline.fold.compactor import Compactor
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.spark import SparkOptions, spark_session
from tidemark.storage import fail_points
from tidemark.storage.fail_points import AnyFailPoint, FailPoint

CONNECT = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.ui.enabled": "false",
}


def as_json(options: ApplyOptions, upto: Lsn, before: Lsn | None = None) -> str:
    """For a child's standard input: the connection string has a password."""
    plain = {
        "source": options.source.reveal(),
        "log": str(options.log),
        "lake": str(options.lake),
        "names": options.names.mirror,
        "cycle_bytes": options.cycle_bytes,
        "slice_bytes": options.slice_bytes,
        "upto": str(upto),
        "before": str(before) if before is not None else "",
    }
    return json.dumps(plain)


def from_json(text: str) -> tuple[ApplyOptions, Lsn, Lsn | None]:
    """What `as_json` gave."""
    plain = json.loads(text)
    upto, before = Lsn.parse(plain.pop("upto")), plain.pop("before")
    typed: dict[str, Any] = {
        "source": Dsn(plain["source"]),
        "log": Path(plain["log"]),
        "lake": Path(plain["lake"]),
        "names": MirrorNames(plain["names"]),
    }
    return ApplyOptions(**{**plain, **typed}), upto, Lsn.parse(before) if before else None


def killer(name: str, times: int, *victims: int) -> Callable[[AnyFailPoint], None]:
    """Kills these processes, and its own, at the n-th time that it is told of a point."""
    seen: Counter[AnyFailPoint] = Counter()

    def observe(point: AnyFailPoint) -> None:
        seen[point] += 1
        if point is FailPoint(name) and seen[point] >= times:
            for pid in (*victims, os.getpid()):
                os.kill(pid, signal.SIGKILL)

    return observe


def kill_at(name: str, times: str, job: Any = apply_job) -> None:
    """Be killed there. A file is written by a task of the job, in a process of Spark's: it kills us, and itself."""
    if FailPoint(name) is not FailPoint.FILE_WRITTEN:
        fail_points.attach(killer(name, int(times)))
        return
    driver, original = os.getpid(), job._run

    def run(*given: Any) -> Iterator[pa.RecordBatch]:
        observe = killer(name, int(times), driver)
        fail_points.attach(observe)
        try:
            yield from original(*given)
        finally:
            fail_points.detach(observe)  # the process may get other tasks

    job._run = run


def serve() -> None:
    session = spark_session(SparkOptions(master="local[2]", conf=CONNECT))
    jvm = session.sparkContext._jvm
    assert jvm is not None
    service = jvm.java.lang.Class.forName("org.apache.spark.sql.connect.service.SparkConnectService$")
    say(str(service.getField("MODULE$").get(None).localPort()))
    sys.stdin.read()
    session.stop()


def write() -> None:
    """Writers are forked, so that what takes longest to start is started once."""
    importlib.import_module("pyspark.sql.connect.session")
    told = sys.stdin.read()
    for point in sys.argv[2:]:
        pid = os.fork()
        if pid == 0:
            write_until(point, told)
            sys.exit()
        say(f"{point} {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


def write_until(point: str, told: str) -> None:
    session = spark_session(SparkOptions(remote=os.environ["SPARK_CONNECT"]))
    options, upto, before = from_json(told)
    kill_at(*point.split(":"))
    with lake_applier(options, session) as writer:
        writer.catch_up(upto)
    if before is not None:
        with Compactor(options.lake, session) as compactor:
            for table in compactor.foldable():
                compactor.fold(table)
        expire_lake(options.lake, ExpireOptions(keep_s=None, before=before, grace_s=0))
        compact(options.lake, session)


def compact(lake: Path, session: SparkSession) -> None:
    """Merge files of changes, even if there are only two."""
    usual = change_files.MANY, change_files.GROWTH
    change_files.MANY, change_files.GROWTH = 2, 1
    try:
        with Compactor(lake, session) as compactor:
            for table in compactor.compactable():
                compactor.compact(table)
    finally:
        change_files.MANY, change_files.GROWTH = usual


def hold() -> None:
    with LakeLock(Path(sys.argv[2]), WRITING):
        say("held")
        sys.stdin.read()


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    {"serve": serve, "write": write, "hold": hold}[sys.argv[1]]()
