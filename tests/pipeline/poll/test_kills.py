"""Whenever a poll ends before its end: the lake reads as before or as after it, and the next poll is exact.

Most ends are made by an exception at a named point, which nobody catches; some are kill -9 of a process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import Database
from harness.lake import by_postgres, by_spark
from harness.polled import PolledMirror, polling
from tests.conftest import NEWEST
from tests.pipeline.poll.child import as_json
from tests.striking import striking
from tidemark.clock import Xid8
from tidemark.errors import Retry, SourceError, TableChanged, policy_of
from tidemark.pipeline.poll import cycle, following
from tidemark.pipeline.poll.horizon import Horizon
from tidemark.pipeline.poll.lake_poller import lake_poller
from tidemark.spark import TasksStopped
from tidemark.storage.fail_points import FailPoint

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]

TABLES = ("orders", "bag")
POINTS = (
    FailPoint.TABLE_COMMITTED,
    FailPoint.COLUMNS_ADDED,
    FailPoint.GENERATION_COMMITTED,
    FailPoint.ALL_COMMITTED,
    FailPoint.EVENTS_COMMITTED,
    FailPoint.CYCLE_COMMITTED,
)
KILLED = ("locked:1", "file written:1", "table committed:2", "events committed:1")


def create(db: Database) -> None:
    db.run(
        "create table orders (id int primary key, v text)",
        "create table bag (n int, v text)",
        "insert into orders select i, 'v' || i from generate_series(1, 100) i",
        "insert into bag select i % 7, 'v' || i % 3 from generate_series(1, 100) i",
    )


def work(db: Database, n: int) -> list[str]:
    """Something of every kind: rows that come, change and go, columns, and tables that are new; which there are."""
    db.run(
        f"insert into orders (id, v) select {n} * 1000 + i, 'new' from generate_series(1, 5) i",
        f"update orders set v = v || '.{n}' where id % 10 = {n} % 10",
        f"delete from orders where id % 10 = {n + 5} % 10 and id < {n} * 1000",
        f"insert into bag (n, v) values ({n}, 'twice'), ({n}, 'twice')",
        "delete from bag where ctid = (select min(ctid) from bag)",
        f"alter table orders add column c{n} int default {n}",
        f"alter table bag add column c{n} int",
        f"drop table if exists fresh{n - 1}",
        f"create table fresh{n} as select i, 'f' v from generate_series(1, 5) i",
    )
    return [*TABLES, f"fresh{n}"]


def shown(lake: Path, spark: SparkSession, tables: list[str]) -> dict[str, object]:
    """What readers get of all tables at once."""
    with tidemark.open(lake, spark).at() as moment:
        return {table: by_spark(moment.table(table)) for table in tables}


def held(db: Database, tables: list[str]) -> dict[str, object]:
    return {table: by_postgres(db, table) for table in tables}


def test_the_first_poll_is_struck(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    create(db)
    for point in (FailPoint.GENERATION_COMMITTED, FailPoint.EVENTS_COMMITTED):
        with striking(point), polling(db, tmp_path, spark) as mirror:
            mirror.poll()
        work(db, list(FailPoint).index(point) + 1)
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal(*TABLES)


def test_struck_at_every_point_the_next_poll_is_exact(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    create(db)
    lake = tmp_path / "lake"
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal(*TABLES)
    before = held(db, list(TABLES))
    for n, point in enumerate(POINTS, 1):
        tables = work(db, n)
        now = held(db, tables)
        with striking(point), polling(db, tmp_path, spark) as mirror:
            mirror.poll()
        if point is FailPoint.CYCLE_COMMITTED:
            before = now
        assert shown(lake, spark, list(before)) == before, point
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal(*TABLES, f"fresh{len(POINTS)}")


@contextmanager
def child(connect: str, mirror: PolledMirror) -> Iterator[Callable[[str], None]]:
    """Gives what has a process poll, and be killed at a point."""
    command, pipe = [sys.executable, "-W", "ignore", "-m", "tests.pipeline.poll.child"], subprocess.PIPE
    environment = {**os.environ, "SPARK_CONNECT": connect}
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said, told = process.stdout, process.stdin
        told.write(f"{as_json(mirror.options)}\n")

        def poll_until(point: str) -> None:
            told.write(f"{point}\n")
            told.flush()
            assert said.readline().strip() == f"{point} {-signal.SIGKILL}"

        yield poll_until
        told.close()


def test_killed_the_lake_reads_as_before_or_as_after(
    db: Database, tmp_path: Path, spark: SparkSession, connect: str
) -> None:
    create(db)
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal(*TABLES)
    before = held(db, list(TABLES))
    with child(connect, mirror) as poll_until:
        for n, point in enumerate(KILLED, 1):
            work(db, n)
            poll_until(point)
            assert shown(mirror.options.lake, spark, list(before)) == before, point
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal(*TABLES, f"fresh{len(KILLED)}")


def first(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, done: Callable[[], object]) -> None:
    """Do something once, before a function is called for the first time."""
    original, left = getattr(module, name), [done]

    def call(*given: Any, **named: Any) -> Any:
        if left:
            left.pop()()
        return original(*given, **named)

    monkeypatch.setattr(module, name, call)


def require_refused(
    mirror: PolledMirror, kind: type[Exception], match: str | None, before: dict[str, object]
) -> Exception:
    """A poll ends with an error, and the lake reads as before."""
    with pytest.raises(kind, match=match) as caught:
        mirror.poll()
    assert shown(mirror.options.lake, mirror.spark, list(before)) == before
    return caught.value


@pytest.mark.parametrize("where", ["stage", "write_changes"])
def test_a_poll_that_loses_its_sessions_is_one_to_be_done_again(
    db: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    create(db)
    ended = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'tidemark poll'"
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal(*TABLES)
        before = held(db, list(TABLES))
        tables = work(db, 1)
        with monkeypatch.context() as patched:
            first(patched, cycle, where, lambda: db.admin(ended))
            error = require_refused(mirror, SourceError, None, before)
        assert policy_of(error).retry is not Retry.NEVER, error
        mirror.require_equal(*tables)


def test_what_happens_between_the_snapshot_and_the_read_is_no_part_of_a_poll(
    db: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(db)
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal(*TABLES)
        for n, (statement, why) in enumerate(
            (
                ("truncate bag", "truncated or rewritten"),
                ("alter table orders add column late int default 4", "was altered"),
                ("vacuum full bag", "truncated or rewritten"),
                ("alter table orders rename to orders2", "dropped or renamed"),
            ),
            1,
        ):
            before = held(db, list(TABLES))
            work(db, n)
            with monkeypatch.context() as patched:
                first(patched, cycle, "stage", partial(db.run, statement))
                require_refused(mirror, TableChanged, why, before)
            if "rename" in statement:
                db.run("alter table orders2 rename to orders")
            mirror.require_equal(*TABLES, f"fresh{n}")
        mirror.require_idle(*TABLES)


def test_one_who_is_stopped_leaves_the_lake_as_it_was(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    create(db)
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal(*TABLES)
    before = held(db, list(TABLES))
    tables = work(db, 1)
    with lake_poller(mirror.options, spark, stopping=lambda: True) as stopped, pytest.raises(TasksStopped):
        stopped.step()
    assert shown(mirror.options.lake, spark, list(TABLES)) == before
    with polling(db, tmp_path, spark) as again:
        again.require_equal(*tables)


def test_a_table_that_cannot_be_followed_is_read_whole_by_the_next_poll(
    db: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found must explain all that differs, as it cannot where more is missed than is looked for."""
    create(db)
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal(*TABLES)
        before = held(db, list(TABLES))
        with monkeypatch.context() as patched:
            patched.setattr(following, "MOST_MISSED", 3)
            patched.setattr("tidemark.pipeline.poll.horizon.Horizon.between", lambda *_: Horizon(Xid8(3), 0))
            tables = work(db, 1)
            require_refused(mirror, TableChanged, "must be copied again by the next poll", before)
            assert mirror.require_news(*tables).copied == 2  # and the one that is new
