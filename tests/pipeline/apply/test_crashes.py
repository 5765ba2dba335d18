"""Whenever a writer is killed: the next one goes on, and every change is in the lake exactly once.

The writers that are killed with -9 are clients of one Spark Connect server, the ones that go on have a session of their
own. In the quick tier writers end by an exception at the same points.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from harness.database import create_database
from harness.lake import Lakeside, following, lakeside
from harness.outside import require_there
from harness.postgres import Server
from tests.conftest import NEWEST
from tests.pipeline.apply.child import as_json, compact
from tests.striking import striking
from tidemark.clock import Lsn
from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake
from tidemark.storage.fail_points import FailPoint

pytestmark = pytest.mark.quick

CHILD = [sys.executable, "-W", "ignore", "-m", "tests.pipeline.apply.child"]

# A writer is started for each, one after the other, and all of a round have the same work to do.
ROUNDS = {
    "before a table is committed": ("locked:1", "catalog read:1", "planned:1", "file written:2", "written:1"),
    "while tables are committed": ("table committed:1", "table created:1", "columns added:1", "table committed:1"),
    "while it folds and vacuums": (
        "fold planned:1",
        "fold written:2",
        "folded:1",
        "retention committed:1",
        "files removed:2",
    ),
    "while it compacts": ("folded:1", "changes rewritten:1", "changes compacted:1", "changes compacted:1"),
    "while it is told": (
        "events committed:1",
        "all committed:1",
        "cycle committed:1",
        "written:2",
        "events committed:1",
        "catalog written:1",
    ),
}


@pytest.fixture(scope="module")
def rounds() -> Iterator[int]:
    """Numbers for the rounds of one run."""
    return count(1)


@pytest.fixture(scope="module")
def side(server: Server, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakeside]:
    """A database whose lake is written in many small cycles."""
    database = create_database(server)
    database.run(
        "create table t (id int primary key, v text)",
        "create table u (id int primary key, n numeric(10,2))",
        "create table w (id int primary key)",
    )
    made = lakeside(database, tmp_path_factory.mktemp("crashes"), spark, "t", "u", "w")
    made.options = replace(made.options, cycle_bytes=1000, slice_bytes=400)
    with following(made) as running:
        database.run("insert into w values (0)")
        running.apply_all()
        yield running
    database.drop()


def publish(side: Lakeside, table: str) -> None:
    side.database.run(f"create table {table} (id int primary key, v text)")
    side.database.admin(f"alter publication {side.mirror.publications[0]} add table {table}")


def work(side: Lakeside, n: int) -> None:
    """Several cycles' work on several tables: one has no folder yet, one gets a column, one is to be begun."""
    side.database.run(
        f"begin; insert into t select {n} * 100 + i, repeat('v', 40) from generate_series(0, 9) i; "
        f"insert into u select {n} * 100 + i, i / 7.0 from generate_series(0, 9) i; commit"
    )
    side.note("t", "u")
    side.database.run(
        f"begin; update t set v = v || {n} where id % 3 = 0; delete from u where id % 10 = {n % 10}; "
        f"insert into fresh{n} select i, repeat('f', 40) from generate_series(1, 20) i; commit"
    )
    side.note("t", f"fresh{n}")
    side.database.run(
        f"alter table w add column c{n} int default {n}",
        f"begin; insert into w (id, c{n}) values ({n}, -1); update t set v = '' where id % 7 = 0; "
        f"update fresh{n} set id = -id where id < 5; commit",
    )
    publish(side, f"late{n}")


@contextmanager
def waiting(connect: str, points: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process with writers that are to be killed at these points; it waits until it is told what to do."""
    command, environment, pipe = [*CHILD, "write", *points], {**os.environ, "SPARK_CONNECT": connect}, subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def require_once(side: Lakeside) -> None:
    """No change is in the lake twice."""
    for log in side.options.lake.glob("*/*/changes/_delta_log"):
        table = DeltaTable(log.parent)
        rows = pa.table(table.to_pyarrow_table(columns=["_commit_version", "_ordinal", "_change_type"])).to_pylist()
        twice = [key for key, times in Counter(tuple(row.values()) for row in rows).items() if times > 1]
        assert not twice, f"{log.parent} has {len(twice)} changes twice, such as {twice[0]}"
    require_there(side.options.lake)


def test_every_point_is_in_a_round() -> None:
    elsewhere = {
        FailPoint.GENERATION_COMMITTED,
        FailPoint.VERSIONS_ENDED,
    }  # tests/pipeline/sync/test_generations.py, test_outside.py
    elsewhere |= {
        FailPoint.RESTART_DECIDED,
        FailPoint.LOG_EMPTIED,
        FailPoint.SLOT_DROPPED,
        FailPoint.LOG_BEGUN,
    }  # test_restart.py
    elsewhere |= {FailPoint.PART_RECORDED}  # tests/pipeline/sync/test_continued_copies.py
    assert {FailPoint(each.split(":")[0]) for points in ROUNDS.values() for each in points} == set(
        FailPoint
    ) - elsewhere


def prepare(side: Lakeside, n: int, points: Sequence[str]) -> Lsn | None:
    """Have the work of a round waiting; if it is about folds, what is older than the position returned is folded."""
    publish(side, f"fresh{n}")
    side.apply_all()
    before = None
    if any(each.startswith("fold") for each in points):
        side.fold()
        before, side.notes = side.position(), []
    work(side, n)
    return before


def go_on(side: Lakeside, n: int) -> None:
    """Apply what is left of a round."""
    side.apply_all()
    side.note("t", "u", "w", f"fresh{n}", f"late{n}")
    side.apply_all()


@NEWEST
def test_struck_at_every_point_the_next_writer_goes_on(side: Lakeside, rounds: Iterator[int], short: bool) -> None:
    """At every point but the one that a task on an executor reaches; in the quick tier at every third of two rounds."""
    for points in list(ROUNDS.values())[:: 4 if short else 1]:
        n = next(rounds)
        before = prepare(side, n, points)
        for point in points[:: 3 if short else 1]:
            name, times = point.split(":")
            if FailPoint(name) is not FailPoint.FILE_WRITTEN:
                with striking(FailPoint(name), int(times)):
                    write(side, before)
        go_on(side, n)
    side.require_noted()
    require_once(side)


def write(side: Lakeside, before: Lsn | None) -> None:
    """What a writer does until it is struck: it applies, and folds, vacuums and compacts if there is something to."""
    with side.writing() as writer:
        writer.catch_up(side.position())
    if before is not None:
        side.fold()
        expire_lake(side.options.lake, ExpireOptions(keep_s=None, before=before, grace_s=0))
        compact(side.options.lake, side.spark)


@pytest.mark.full
@NEWEST
@pytest.mark.parametrize("points", list(ROUNDS.values()), ids=list(ROUNDS))
def test_killed_at_every_point_the_next_writer_goes_on(
    side: Lakeside, connect: str, rounds: Iterator[int], points: Sequence[str]
) -> None:
    n = next(rounds)
    with waiting(connect, points) as process:
        before = prepare(side, n, points)
        told = as_json(side.options, side.position(), before)
        ends, said = process.communicate(told, timeout=120 * len(points))
        assert ends.splitlines() == [f"{point} {-signal.SIGKILL}" for point in points], said
    go_on(side, n)
    side.require_noted()
    if before is not None:
        assert expire_lake(side.options.lake, ExpireOptions(keep_s=None, before=before, grace_s=0)).retained == before
        side.require_noted()
    require_once(side)
