"""Failures during a copy: no row is lost or stored twice, and a repeated copy ends with equal tables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from harness.copied import record_copied
from harness.database import MIRROR, OWNER, Database, create_database
from harness.mirrored import eventually
from harness.proxy import Proxy
from harness.recorder import TABLES, Recorder
from harness.standby import shared
from tests.conftest import NEWEST, Start, quick_only
from tests.target.copies import Pair, pair_of, tables
from tidemark.errors import ConnectionLost, TableChanged, TargetError, TimedOut
from tidemark.pipeline.copy import parts
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.identity import locate
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.shared import SharedSnapshot
from tidemark.schema.fingerprint import Fingerprint
from tidemark.target import copying, pipe
from tidemark.target.copying import TableFailed
from tidemark.target.state import PartRecorder

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]

KINDS = (
    "create table large (id int, v text)",
    "create table small (id int)",
    "create unlogged table fleeting (id int, v text)",
    "insert into large select i, repeat(md5(i::text), 10) from generate_series(1, 10000) i",
    "insert into small values (1)",
    "insert into fleeting select i, repeat(md5(i::text), 10) from generate_series(1, 3000) i",
)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LEAST_BYTES", 1 << 17)
    monkeypatch.setattr(parts, "PART_BYTES", 1 << 19)


@pytest.fixture
def pair(db: Database) -> Iterator[Pair]:
    with pair_of(db.server, db.server) as found:
        found.fill(*KINDS)
        yield found


class Failing(Recorder):
    """Calls a function the first time that a part of the large table has been recorded, before COMMIT."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        object.__setattr__(self, "act", act)
        object.__setattr__(self, "once", threading.Lock())

    def add(self, session: Session, table: Fingerprint, part: parts.Part, rows: int) -> None:
        super().add(session, table, part, rows)
        if table.name == "large" and part.first and self.once.acquire(blocking=False):  # type: ignore[attr-defined]
            self.act()  # type: ignore[attr-defined]


def test_a_target_that_crashes_is_continued_after_its_restart(db: Database, start: Start) -> None:
    server = start()
    target = create_database(server)
    target.run(TABLES)
    pair = Pair(db, target, Failing(lambda: server.restart("immediate")))
    pair.fill(*KINDS)
    results = pair.copy(jobs=1)
    failed = {name: each.error for name, each in results.items() if isinstance(each, TableFailed)}
    assert set(failed) == {"fleeting"}
    assert isinstance(failed["fleeting"], TargetError)
    assert "emptied by a crash" in failed["fleeting"].message
    pair.copy_all()
    pair.require_equal()


def test_a_target_that_stays_down_leaves_tables_unfinished(
    db: Database, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "PAUSE_S", 0.01)
    server = start()
    target = create_database(server)
    target.run(TABLES)
    pair = Pair(db, target, Failing(lambda: server.stop("immediate")))
    pair.fill(*KINDS)
    results = pair.copy()
    large = results["large"]
    assert isinstance(large, TableFailed)
    assert "public.large, at the target" in large.error.message
    server.start()
    pair.require_consistent()
    pair.copy_all()
    pair.require_equal()


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["", "unlogged"])
def test_a_copy_that_fails_is_not_settled_by_the_record_of_an_earlier_run(
    db: Database, target: Database, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """That run has read an earlier snapshot. Readers of the target keep this one from its lock."""
    monkeypatch.setattr(copying, "ATTEMPTS", 2)
    monkeypatch.setattr(copying, "PAUSE_S", 0.01)
    monkeypatch.setattr(copying, "_WRITING", Timeouts(lock_s=0.1, statement_s=0))
    pair = Pair(db, target, PartRecorder("c", "first"))
    pair.fill(f"create {kind} table t (id int primary key)", "insert into t values (1)")
    with db.session() as session:
        definitions = [Fingerprint.of(each, []) for each in read_catalog(session).tables]
        record_copied(target, "c", locate(session, db.dsn(), may_replicate=True).identity, definitions)
    pair.copy_all()
    pair.source.run("insert into t values (2)")
    pair.recorder = PartRecorder("c", "second")
    with target.connect() as reader:
        reader.execute("begin; lock table t in access share mode")
        (result,) = pair.copy().values()
    assert isinstance(result, TableFailed)
    assert isinstance(result.error, TimedOut)
    pair.copy_all()
    pair.require_equal()


@pytest.mark.quick
@pytest.mark.parametrize("moment", quick_only(["before", "after", "while it is retried"], "after"))
def test_a_commit_without_an_answer_is_settled_by_the_record(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    committed, late = pipe._commit, list[threading.Timer]()
    lost = iter(range(4))

    def commit(session: Session) -> None:
        if next(lost, None) is None:
            committed(session)
            return
        if moment == "after":
            committed(session)
        elif moment == "while it is retried":
            late.append(threading.Timer(1.5, _commit, [session.connection]))
            late[-1].start()
            session._connection = pair.target.connect()
        session.close()
        raise ConnectionLost("the answer is lost")

    monkeypatch.setattr(pipe, "_commit", commit)
    pair.copy_all(jobs=1)
    for each in late:
        each.join()
    pair.require_equal()
    assert pair.target.admin("select sum(rows) from tidemark.parts") == [(13_001,)]


def _commit(connection: psycopg.Connection[Any]) -> None:
    with connection:
        connection.execute("commit")


def test_connections_that_are_cut_again_and_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "PAUSE_S", 0.01)
    proxies = [Proxy(pair.source.server.port), Proxy(pair.target.server.port)]
    ended = threading.Event()

    def cut() -> None:
        for n in range(8):
            ended.wait(0.1 + n / 20)
            proxies[n % 2].cut()

    thread = threading.Thread(target=cut)
    thread.start()
    target = Dsn(f"{pair.target.dsn(OWNER).reveal()} port={proxies[1].port}")
    source = Dsn(f"{pair.source.dsn(MIRROR).reveal()} port={proxies[0].port}")
    for _ in range(3):
        with shared(pair.source) as (snapshot, session), suppress(ConnectionLost):
            pair.copied(SharedSnapshot(source, None, snapshot.name), tables(session), dsn=target)
        pair.require_consistent()
    ended.set()
    thread.join()
    for proxy in proxies:
        proxy.close()
    pair.copy_all()
    pair.require_equal()


@pytest.mark.parametrize("act", ["truncate large", "alter table large add c int", "alter table large rename to gone"])
def test_a_table_of_the_source_that_changes_meanwhile_fails(pair: Pair, act: str) -> None:
    changing = threading.Thread(target=pair.source.run, args=[act])

    def change() -> None:
        changing.start()
        waiting = f"select from pg_locks where relation = {oid} and not granted"
        eventually(lambda: pair.source.admin(waiting), 30)  # for the end of the part

    ((oid,),) = pair.source.admin("select 'large'::regclass::oid")
    pair.recorder = Failing(change)
    large = pair.copy(jobs=1)["large"]
    changing.join()
    assert isinstance(large, TableFailed)
    assert isinstance(large.error, TableChanged)
    assert "public.large, at the source" in large.error.message
    pair.recorder = Recorder()
    if "rename" in act:
        pair.source.run("alter table gone rename to large")
    elif "add" in act:
        pair.target.run("alter table large add c int")
    pair.copy_all()
    pair.require_equal()


def test_a_trigger_that_rejects_a_row_is_named_before_anything_is_written(pair: Pair) -> None:
    pair.target.run(
        "create function f() returns trigger language plpgsql as 'begin raise exception ''no''; end'",
        "create trigger tr before insert on small for each row execute function f()",
    )
    small = pair.copy()["small"]
    assert isinstance(small, TableFailed)
    assert "trigger 'tr'" in small.error.message
    pair.target.run("alter table small disable trigger tr")
    pair.copy_all()
    pair.require_equal()


@pytest.mark.full
def test_a_worker_that_is_killed_is_replaced(pair: Pair, spark: SparkSession, tmp_path: Path) -> None:
    pair.recorder = Killing(marker=str(tmp_path / "killed"))
    pair.copy_all("small", "large", spark=spark, jobs=2)
    assert (tmp_path / "killed").exists()
    pair.copy_all("fleeting")
    pair.require_equal()


@dataclass(frozen=True)
class Killing(Recorder):
    """Kills the process of the first part that is recorded, before COMMIT."""

    marker: str = ""

    def add(self, session: Session, table: Fingerprint, part: parts.Part, rows: int) -> None:
        super().add(session, table, part, rows)
        with suppress(FileExistsError):
            Path(self.marker).touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.full
def test_a_process_that_is_killed_leaves_nothing_that_is_half_copied(pair: Pair) -> None:
    for recorded in (1, 2, 4, 8, 20):
        command = [sys.executable, "-W", "ignore", "-m", "tests.target.copy_child"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(json.dumps([pair.source.dsn(MIRROR).reveal(), pair.target.dsn(OWNER).reveal()]))
            child.stdin.close()
            for _ in range(recorded):
                assert child.stdout.readline() == "recorded\n"
            child.kill()
        busy = f"select from pg_stat_activity where datname = '{pair.target.name}' and usename = '{OWNER}'"
        eventually(lambda: not pair.target.admin(busy), 30)  # noqa: B023 - the same in every turn
        pair.require_consistent()
    pair.copy_all()
    pair.require_equal()
