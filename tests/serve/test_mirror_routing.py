"""Statements through the server are answered by the mirror exactly as by PostgreSQL, or by PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from harness.database import OWNER, PASSWORD, Database
from harness.mirrored import eventually
from harness.standby import standby_of, wait_for
from harness.syncing import Synced, syncing
from tests.conftest import NEWEST
from tests.serve.raw import Raw, error_of, kinds
from tests.serve.serving import Serving, serving
from tidemark.monitoring.server_metrics import ServerMetrics
from tidemark.serve import messages
from tidemark.serve.conversation import EngineKind, Setup
from tidemark.serve.engine_client import EngineClient
from tidemark.serve.messages import SYNC, BindMessage
from tidemark.serve.mirror_router import MirrorRouter
from tidemark.serve.session_settings import ServeSettings

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]

TABLES = (
    "create table orders (id int primary key, customer int, total numeric(12,2), state char(4), placed date)",
    "create table customers (id int primary key, name text)",
    """insert into orders select i, i % 5, i * 1.25, (array['new', 'paid', null])[1 + i % 3], date '2026-01-01' + i
    from generate_series(1, 300) i""",
    "insert into customers select i, 'customer ' || i from generate_series(0, 3) i",
)
ANSWERED = (
    "select count(*) from orders",
    "select state, count(*), sum(total), avg(total), min(placed) from orders group by state order by state",
    "select c.name, sum(o.total) from orders o left join customers c on c.id = o.customer group by c.name order by 2",
    "select to_char(sum(total), '999G999D99') from orders where placed between '2026-02-01' and '2026-03-01'",
)


@dataclass
class Routed:
    """A database, its mirror, and a server before both."""

    database: Database
    engine: EngineClient
    running: Serving
    metrics: ServerMetrics

    def connect(
        self, *, direct: bool = False, user: str = OWNER, name: str = "", **options: Any
    ) -> psycopg.Connection[Any]:
        """Connect through the server, or to the source, to the mirrored database or another one."""
        port = self.database.server.port if direct else self.running.port
        return psycopg.connect(
            host="127.0.0.1",
            port=port,
            dbname=name or self.database.name,
            user=user,
            password=PASSWORD,
            autocommit=True,
            **options,
        )


@contextmanager
def routed(db: Database, spark: SparkSession, folder: Path, *more: str, cost: float = 0.0) -> Iterator[Routed]:
    """Mirror the tables, and more that exist, and serve them with the local engine."""
    db.run(*TABLES)
    with mirrored(db, spark, folder, *more) as synced, before(db, synced.options.lake, cost) as routed:
        yield routed


@contextmanager
def mirrored(db: Database, spark: SparkSession, folder: Path, *more: str) -> Iterator[Synced]:
    """Mirror the tables."""
    with syncing(db, folder, spark, "orders", "customers", *more) as synced:
        synced.copy_all()
        synced.catch_up()
        yield synced


@contextmanager
def before(db: Database, lake: Path, cost: float = 0.0) -> Iterator[Routed]:
    """Serve a database and its mirror with the local engine."""
    engine = EngineClient(Setup(str(lake), EngineKind.DUCKDB, db.dsn().reveal()))
    metrics = ServerMetrics(lambda: engine.is_open)
    with serving(db, MirrorRouter(engine, ServeSettings(cost=cost), metrics)) as running:
        stop = asyncio.Event()
        ended = asyncio.run_coroutine_threadsafe(computing(engine, stop), running.loop)
        try:
            eventually(lambda: engine.is_open, 120)
            yield Routed(db, engine, running, metrics)
        finally:
            running.loop.call_soon_threadsafe(stop.set)
            ended.result(30)


async def computing(engine: EngineClient, stop: asyncio.Event) -> None:
    """Run an engine until it is to stop."""
    task = asyncio.create_task(engine.run())
    await stop.wait()
    task.cancel()
    await asyncio.wait([task])


def last(connection: psycopg.Connection[Any]) -> str:
    """Who answered the last statement, and why."""
    (text,) = connection.execute("show tidemark.last").fetchone() or ("",)
    return str(text)


@pytest.mark.quick
def test_the_mirror_answers_what_is_proven_at_the_snapshot_of_the_session(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    with routed(db, spark, tmp_path) as both, both.connect() as client, both.connect(direct=True) as source:
        for statement in ANSWERED:
            assert client.execute(statement).fetchall() == source.execute(statement).fetchall()
            assert last(client).startswith("mirror: "), (statement, last(client))
        by_key = "select count(*), max(total) from orders where customer = %s and placed > %s::date"
        for parameters in ((3, "2026-02-01"), (None, "2026-02-01")):
            assert client.execute(by_key, parameters).fetchone() == source.execute(by_key, parameters).fetchone()
            assert last(client).startswith("mirror: ")
        client.execute("insert into orders values (1000, 1, 0.5, 'new', '2026-11-01')")
        assert client.execute("select count(*), max(id) from orders").fetchone() == (301, 1000)
        assert last(client).startswith("mirror: ")
        with client.transaction():
            client.execute("set transaction isolation level repeatable read")
            assert client.execute("select count(*) from orders").fetchone() == (301,)
            source.execute("delete from orders where id = 1000")
            assert client.execute("select count(*) from orders").fetchone() == (301,)
            assert last(client).startswith("mirror: ")
            client.execute("update orders set state = 'paid' where id = 3")
            assert client.execute("select count(*) from orders where state = 'paid'").fetchone() == (101,)
            assert last(client) == "source: the transaction has written; cost " + last(client).rpartition(" ")[2]
        assert client.execute("select count(*) from orders").fetchone() == (300,)
        assert client.execute("select string_agg(name, ',' order by id) from customers").fetchone()
        assert last(client).startswith("source: ")
        source.execute("insert into orders values (2000, 1, 0.5, 'new', '2026-11-01')")
        require_settings(client)
        require_pipelines(both)
        answered = both.metrics.registry.get_sample_value(
            "tidemark_server_statement_duration_seconds_count", {"route": "mirror"}
        )
        waited, computed = (
            both.metrics.registry.get_sample_value(f"tidemark_server_{name}_seconds_count")
            for name in ("gate_wait", "engine")
        )
        assert answered is not None
        assert waited is not None
        assert computed is not None
        assert waited >= computed >= answered >= len(ANSWERED) + 4


def require_settings(client: psycopg.Connection[Any]) -> None:
    """Settings of a session decide who answers, and what is not answered is refused with the reason."""
    client.execute("set tidemark.route = 'source'")
    client.execute("select count(*) from orders")
    assert last(client).startswith("source: tidemark.route is source")
    client.execute("set tidemark.route = 'mirror'")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match=r"tidemark\.route is mirror, and the mirror cannot"):
        client.execute("select string_agg(name, ',' order by id) from customers")
    client.execute("set tidemark.route = 'elsewhere'")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"invalid value for tidemark.route: 'elsewhere'"):
        client.execute("select count(*) from orders")
    client.execute("reset tidemark.route")
    client.execute("set tidemark.at = 'latest'")
    assert client.execute("select count(*) from orders").fetchone() == (300,)
    with pytest.raises(psycopg.errors.DivisionByZero):  # in the past; the source has another row, and would return 1
        client.execute("select 1 / (count(*) - 300) from orders")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        client.execute("delete from orders")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match=r"tidemark\.at is set"):
        client.execute("select string_agg(name, ',' order by id) from customers")
    assert client.execute("select relname from pg_catalog.pg_class where relname = 'orders'").fetchone() == ("orders",)
    client.execute("set tidemark.at = 'no time'")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="invalid position"):
        client.execute("select count(*) from orders")
    client.execute("reset tidemark.at")
    lines = [line for (line,) in client.execute("explain (tidemark) select count(*) from orders").fetchall()]
    assert lines[0] == "Route: mirror"


def require_pipelines(both: Routed) -> None:
    """With tidemark.at, the source answers nothing that is not one statement alone; a BEGIN may come with it."""
    count = b"select count(*) from orders"
    begin = [messages.parse(b"", b"BEGIN"), messages.bind(BindMessage(b"", b"", (), (), ())), messages.execute(b"")]
    one = [messages.parse(b"", count), messages.bind(BindMessage(b"", b"", (), (), ())), messages.execute(b"")]
    for options in ("", "-c tidemark.at=latest"):
        client = Raw(both.running.port, both.database.name, options=options)
        answer = client.ask(*begin, *one, SYNC)
        assert kinds(answer) == "12C12DCZ", answer
        client.ask(messages.query(b"commit"))
        (report,) = [body for kind, body in client.ask(messages.query(b"show tidemark.last")) if kind == ord("D")]
        assert b"mirror: " in report, report
        for pipeline, sqlstate in (
            ([*one, *one, SYNC], "0A000"),
            ([messages.query(b"select 1; select count(*) from orders")], "0A000"),
            ([messages.query(b"begin; select count(*) from orders; commit")], "25006"),
        ):
            answer = client.ask(*pipeline)
            if options:
                assert (kinds(answer), error_of(answer)) == ("EZ", sqlstate)
            else:
                assert "E" not in kinds(answer)
        client.ask(messages.query(b"reset tidemark.at"))
        assert "E" not in kinds(client.ask(*one, *one, SYNC)) or options
        answer = client.ask(messages.query(b"set tidemark.at = 'latest'"), *one, *one, SYNC, readies=2)
        assert (kinds(answer), error_of(answer)) == ("CZEZ", "0A000")
        client.close()


def test_constants_of_a_prepared_statement_are_those_of_its_preparation(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table events (id int primary key, seen timestamptz)")
    times = "timestamptz '2026-01-01 00:00+00' + i * interval '1 h'"
    db.run(f"insert into events select i, {times} from generate_series(1, 48) i")
    query = b"select count(*) from events where seen < '2026-01-02 00:00'"
    bound = [messages.bind(BindMessage(b"", b"s", (), (), ())), messages.execute(b""), SYNC]
    with routed(db, spark, tmp_path, "events") as both:
        direct, through = (Raw(port, db.name) for port in (db.server.port, both.running.port))
        for client in (direct, through):
            client.ask(messages.query(b"set timezone = 'UTC'"))
            client.ask(messages.parse(b"s", query), SYNC)
        for zone in (b"UTC", b"America/New_York", b"UTC"):
            found = []
            for client in (direct, through):
                client.ask(messages.query(b"set timezone = '" + zone + b"'"))
                found.append(client.ask(*bound))
            assert found[0] == found[1], zone
            (report,) = [body for kind, body in through.ask(messages.query(b"show tidemark.last")) if kind == ord("D")]
            assert (b"mirror: " in report) == (zone == b"UTC"), report
        for client in (direct, through):
            client.close()


def test_rights_are_those_of_the_client(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    with routed(db, spark, tmp_path) as both:
        role = f"nobody_{db.name}"
        db.admin(f"create role {role} login password '{PASSWORD}'", f"grant select (id) on orders to {role}")
        try:
            with both.connect(user=role) as client:
                assert client.execute("select count(id) from orders").fetchone() == (300,)
                for statement in ("select sum(total) from orders", "select count(*) from customers"):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for table"):
                        client.execute(statement)
        finally:
            db.admin(f"drop owned by {role}", f"drop role {role}")


def test_without_its_engine_the_server_relays_and_the_engine_comes_back(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    with routed(db, spark, tmp_path) as both, both.connect() as client:
        statement = ANSWERED[1]
        expected = client.execute(statement).fetchall()
        assert last(client).startswith("mirror: ")
        (engine,) = [pid for pid in children() if "engine_process" in Path(f"/proc/{pid}/cmdline").read_text()]
        os.kill(engine, signal.SIGKILL)
        eventually(lambda: not both.engine.is_open, 30)
        assert client.execute(statement).fetchall() == expected
        assert last(client) == "source: the engine is not started yet"
        eventually(lambda: both.engine.is_open, 120)
        assert client.execute(statement).fetchall() == expected
        assert last(client).startswith("mirror: ")


def test_a_source_answers_in_place_of_an_engine_that_hangs(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    with routed(db, spark, tmp_path) as both, both.connect() as client:
        statement = ANSWERED[1]
        expected = client.execute(statement).fetchall()
        assert last(client).startswith("mirror: ")
        (engine,) = [pid for pid in children() if "engine_process" in Path(f"/proc/{pid}/cmdline").read_text()]
        os.kill(engine, signal.SIGSTOP)
        try:
            assert client.execute(statement).fetchall() == expected
            assert last(client).startswith("source: the engine does not respond"), last(client)
            client.execute("set tidemark.route = 'mirror'")
            with pytest.raises(psycopg.errors.CannotConnectNow, match="the engine does not respond"):
                client.execute(statement)
        finally:
            os.kill(engine, signal.SIGCONT)
        assert client.execute(statement).fetchall() == expected


def test_a_mirror_that_lags_is_not_waited_for_again_and_again(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(*TABLES)
    with mirrored(db, spark, tmp_path) as synced:
        lake = synced.options.lake
    with before(db, lake, cost=0.5) as both, both.connect() as client:
        db.run("insert into orders values (1000, 1, 0.5, 'new', '2026-11-01')")
        reasons = []
        for _ in range(6):
            assert client.execute(ANSWERED[0]).fetchone() == (301,)
            reasons.append(last(client))
        assert reasons[1].startswith("source: the engine is measured meanwhile"), reasons

        def has_stopped_waiting() -> bool:
            client.execute(ANSWERED[0])
            return "a short time ago" in last(client)

        eventually(has_stopped_waiting, 30)


def children() -> list[int]:
    """The processes that this one has started."""
    return [int(pid) for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()] + [
        int(pid)
        for task in Path(f"/proc/{os.getpid()}/task").iterdir()
        if task.name != str(os.getpid())
        for pid in (task / "children").read_text().split()
    ]


def test_statements_that_cost_little_are_relayed(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    with routed(db, spark, tmp_path, cost=1_000_000.0) as both, both.connect() as client:
        for _ in range(3):
            client.execute("select count(*) from orders")
        assert last(client).startswith("source: its cost of ")


def test_a_copy_of_the_database_is_not_the_mirrored_one(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run(*TABLES)
    copy = f"{db.name}_copy"
    db.server.sql(f"create database {copy} template {db.name}")
    try:
        with mirrored(db, spark, tmp_path) as synced, before(db, synced.options.lake) as both:
            with both.connect(name=copy) as client:
                client.execute("delete from orders where id > 10")
                assert client.execute("select count(*) from orders").fetchone() == (10,)
                assert "not in the mirrored database" in last(client)
                client.execute("set tidemark.at = 'latest'")
                with pytest.raises(psycopg.errors.FeatureNotSupported, match="not in the mirrored database"):
                    client.execute("select count(*) from orders")
    finally:
        db.server.sql(f"drop database {copy} with (force)")


def test_sessions_of_a_standby_are_answered_at_what_they_see(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run(*TABLES)
    with mirrored(db, spark, tmp_path) as synced, standby_of(db) as there:
        wait_for(there, db)
        with before(there, synced.options.lake) as both, both.connect() as client, both.connect(direct=True) as source:
            client.execute("set tidemark.wait = '60s'")
            for statement in ANSWERED:
                synced.catch_up()
                assert client.execute(statement).fetchall() == source.execute(statement).fetchall()
                assert last(client).startswith("mirror: "), (statement, last(client))
            there.server.sql("select pg_wal_replay_pause()")
            db.run("delete from orders where id > 200")
            synced.catch_up()
            assert client.execute(ANSWERED[0]).fetchone() == (300,)
            assert last(client).startswith("mirror: "), last(client)
            there.server.sql("select pg_wal_replay_resume()")
            wait_for(there, db)
            synced.catch_up()
            with client.transaction():
                assert client.execute(ANSWERED[0]).fetchone() == (200,)
                assert last(client).startswith("mirror: "), last(client)
            with client.transaction():
                client.execute("set transaction isolation level repeatable read")
                assert client.execute(ANSWERED[0]).fetchone() == (200,)
                assert last(client).startswith("source: on a standby"), last(client)


def test_a_promoted_standby_with_another_history_is_not_answered_from_the_log(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(*TABLES)
    with mirrored(db, spark, tmp_path) as synced, standby_of(db) as there:
        wait_for(there, db)
        there.server.sql("alter system set primary_conninfo = ''", "select pg_reload_conf()")
        eventually(lambda: not there.server.sql("select 1 from pg_stat_wal_receiver"), 30)
        for _ in range(50):
            db.run("update orders set customer = customer + 1")
        db.run("delete from orders where id > 200")
        synced.catch_up()
        there.server.sql("select pg_promote()")
        with before(there, synced.options.lake) as both, both.connect() as client:
            assert client.execute(ANSWERED[0]).fetchone() == (300,)
            assert "timeline 2, which the log does not follow" in last(client), last(client)
