"""All tables, in parts, by Spark tasks or by this process: a failure of one table does not affect the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from harness.database import OWNER, Database, create_database
from harness.recorder import TABLES, Recorder
from harness.standby import running, shared, standby_of, wait_for
from tests.conftest import NEWEST, Start
from tests.target.copies import Pair, pair_of, tables
from tests.target.test_copied_types import fill_kinds
from tidemark.errors import NotPermitted, RowRejected, TableChanged, TargetError, TimedOut
from tidemark.pipeline.copy import parts
from tidemark.postgres.session import Session
from tidemark.schema.fingerprint import Fingerprint
from tidemark.spark import TasksStopped
from tidemark.target import copying
from tidemark.target.copying import FilledTable, TableFailed, copy_tables

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]

MANY = "insert into {} select i, repeat(md5(i::text), 10) from generate_series(1, {}) i"


@pytest.fixture
def pair(db: Database) -> Iterator[Pair]:
    with pair_of(db.server, db.server) as found:
        yield found


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LEAST_BYTES", 1 << 17)


def rows_of(results: dict[str, Any]) -> dict[str, int]:
    return {name: each.rows for name, each in results.items() if isinstance(each, FilledTable)}


def test_all_kinds_of_tables_are_copied_by_tasks(pair: Pair, spark: SparkSession) -> None:
    fill_kinds(pair)
    results = pair.copy_all(spark=spark)
    assert rows_of(results)["keyed"] == 3000
    assert {"root", "high"}.isdisjoint(results)
    assert (rows_of(results)["parent"], rows_of(results)["child"], rows_of(results)["leaf"]) == (1, 1, 51)
    rows = pair.require_equal()
    total = pair.progress.total()
    assert (total.rows, total.done) == (rows, total.tables)
    assert (rows, total.tables) == (sum(rows_of(results).values()), len(results))


def test_a_table_in_many_parts_is_complete(pair: Pair, spark: SparkSession, small_parts: None) -> None:
    pair.fill("create table t (id int, v text)", MANY.format("t", 20_000), "delete from t where id % 10 = 3")
    results = pair.copy_all(spark=spark, jobs=3)
    assert rows_of(results) == {"t": 18_000}
    assert pair.require_equal() == 18_000
    assert pair.target.admin("select count(*) from tidemark.parts") == [(3,)]


def test_a_repeated_copy_starts_from_empty(pair: Pair, small_parts: None) -> None:
    pair.fill("create table t (id int, v text)", "create table u (id int)", MANY.format("t", 5000))
    for change in ("insert into u values (1)", "delete from t where id < 100", "truncate u"):
        pair.source.run(change)
        pair.copy_all()
        pair.require_equal()


def test_foreign_tables_are_skipped(pair: Pair) -> None:
    pair.source.admin(
        "create foreign data wrapper none",
        "create server elsewhere foreign data wrapper none",
        "create foreign table far (id int) server elsewhere",
    )
    pair.fill("create table t (id int)", "insert into t values (1)")
    assert rows_of(pair.copy_all()) == {"t": 1}


def test_one_failure_does_not_affect_other_tables(pair: Pair, spark: SparkSession, small_parts: None) -> None:
    pair.fill(*(f"create table t{n} (id int, v text)" for n in range(6)))
    pair.source.run(*(MANY.format(f"t{n}", 2000) for n in range(6)))
    pair.target.run("alter table t1 add check (id < 1500)", "drop table t2")
    pair.target.admin(f"alter table t3 owner to postgres; grant select on t3 to {OWNER}")
    with shared(pair.source) as (snapshot, session):
        chosen = tables(session)
        pair.source.run("truncate t4")
        results = pair.copied(snapshot, chosen, spark)
    assert rows_of(results) == {"t0": 2000, "t5": 2000}
    errors = {name: each.error for name, each in results.items() if isinstance(each, TableFailed)}
    assert isinstance(errors["t1"], RowRejected)
    assert "public.t1, at the target" in errors["t1"].message
    assert "does not exist" in errors["t2"].message
    assert isinstance(errors["t3"], NotPermitted)
    assert f'grant select, insert, truncate on "public"."t3" to "{OWNER}"' in errors["t3"].hint
    assert isinstance(errors["t4"], TableChanged)
    assert "public.t4, at the source: table public.t4 was truncated" in errors["t4"].message
    pair.target.run("alter table t1 drop constraint t1_id_check", "create table t2 (id int, v text)")
    pair.require_consistent()
    pair.target.admin(f"grant select, insert, truncate on t3 to {OWNER}")
    pair.copy_all()
    pair.require_equal()


@pytest.mark.full
def test_a_lock_at_the_source_or_the_target_is_waited_for(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "ATTEMPTS", 2)
    pair.fill("create table t (id int)", "insert into t values (1)")
    for database in (pair.source, pair.target):
        with database.connect() as other:
            other.execute("begin; lock table t")
            (result,) = pair.copy().values()
            assert isinstance(result, TableFailed)
            assert isinstance(result.error, TimedOut)
            assert f"pid {other.info.backend_pid}" in result.error.message
            where = "source" if database is pair.source else "target"
            assert f"public.t, at the {where}" in result.error.message
    pair.copy_all()
    pair.require_equal()


@pytest.mark.full
def test_a_stop_ends_the_copy_and_leaves_the_rest_unfinished(
    pair: Pair, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 1 << 17)
    pair.fill("create table t (id int, v text)", "create table u (id int)", MANY.format("t", 5000))
    with shared(pair.source) as (snapshot, session):
        chosen, target = tables(session), pair.target.dsn(OWNER)
        with pytest.raises(TasksStopped):
            list(copy_tables(None, snapshot, target, chosen, 1, pair.recorder, stopping=lambda: True))
    with pair.target.session(OWNER) as session:
        assert chosen[0].oid in Recorder().unfinished(session)
    pair.require_consistent()
    pair.copy_all()
    pair.require_equal()


@pytest.mark.full
def test_a_standby_is_read_by_the_session_that_holds_its_snapshot(start: Start, small_parts: None) -> None:
    server = start(autovacuum=False)
    db, target = create_database(server), create_database(server)
    target.run(TABLES, "create table t (id int, v text)", "create table u (id int)", "create table w (id int)")
    db.run("create table t (id int, v text)", "create table u (id int)", "create table w (id int)")
    db.run(MANY.format("t", 10_000), "insert into u values (1)", "insert into w values (1)")
    target.run("alter table u add check (id > 1)")
    with standby_of(db) as there, running(db, there, "delete from t where id <= 100") as writer:
        with shared(there) as (snapshot, session):
            chosen = tables(session)
            writer.execute(b"commit")
            wait_for(there, db)
            assert snapshot.name is None
            pair = Pair(there, target)
            results = pair.copied(snapshot, chosen)
    assert rows_of(results) == {"t": 10_000, "w": 1}
    assert isinstance(results["u"], TableFailed)
    assert isinstance(results["u"].error, RowRejected)


def test_another_process_that_copies_the_table_stops_this_one(pair: Pair, small_parts: None) -> None:
    pair.fill("create table t (id int, v text)", MANY.format("t", 5000))
    with shared(pair.source) as (snapshot, session):
        chosen = tables(session)
        results = copy_tables(None, snapshot, pair.target.dsn(OWNER), chosen, 1, Overtaken())
        (result,) = list(results)
    assert isinstance(result, TableFailed)
    assert isinstance(result.error, TargetError)
    assert "another process" in result.error.message
    pair.copy_all()
    pair.require_equal()


class Overtaken(Recorder):
    """Another process begins the table when this one has truncated it."""

    def begin(self, session: Session, table: Fingerprint, parts: int) -> None:
        super().begin(session, table, parts)
        session.connection.execute("update tidemark.tables set run = 'other'")
