"""A mirror that polls shows, after every poll, what the poll's snapshot showed."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import Database
from harness.polled import polling
from tests.conftest import NEWEST
from tidemark.errors import NotAnswerable, NotTheSameSource

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]


def test_every_kind_of_change_is_found(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    db.run(
        "create table orders (id bigint primary key, item text, price numeric, at timestamptz default now())",
        "insert into orders select i, 'item ' || i, i / 3.0 from generate_series(1, 1000) i",
    )
    with polling(db, tmp_path, spark) as mirror:
        assert mirror.require_news("orders").copied == 1
        mirror.require_idle("orders")
        db.run(
            "update orders set item = 'other' where id % 100 = 0",
            "delete from orders where id % 50 = 1",
            "insert into orders values (5000, null, 'NaN', 'infinity')",
            "update orders set id = id + 10000 where id = 7",
            "update orders set item = item where id between 10 and 20",
        )
        polled = mirror.require_news("orders")
        assert polled.changes == 10 + 20 + 1 + 2
        feed = tidemark.open(mirror.options.lake, spark).changes("orders", polled.upto.before())
        kinds = {row[0]: row[1] for row in feed.groupBy("_change_type").count().collect()}
        assert kinds == {"update_postimage": 10, "delete": 21, "insert": 2}
        db.run("truncate orders")
        assert mirror.require_news("orders").changes == 1
        db.run("insert into orders values (1, 'again', 1)")
        mirror.require_equal("orders")


@pytest.mark.full
def test_many_equal_rows_without_a_key_are_told_apart_no_further(
    db: Database, tmp_path: Path, spark: SparkSession
) -> None:
    db.run("create table bag (a int)", "insert into bag select 1 from generate_series(1, 11000)")
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal("bag")
        db.run("insert into bag values (1), (2)")
        assert mirror.require_news("bag").changes == 2


@pytest.mark.full
def test_rows_without_a_key_are_what_they_hold(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    db.run(
        "create table bag (a int, b float8, c text)",
        "insert into bag select i % 5, i % 3, 'c' from generate_series(1, 100) i",
        "insert into bag values (null, 'nan', null), (null, 'nan', null), (1, '-0', 'x'), (1, '0', 'x')",
    )
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal("bag")
        db.run(
            "insert into bag values (null, 'nan', null), (9, 9, '9')",
            "delete from bag where ctid in (select ctid from bag where a = 2 limit 3)",
            "update bag set b = '0' where b = '-0' and c = 'x'",
        )
        assert mirror.require_news("bag").changes > 0
        mirror.require_idle("bag")
        db.run("update bag set c = c")
        assert mirror.require_news("bag").changes == 0
        db.run("truncate bag")
        mirror.require_equal("bag")


@pytest.mark.full
def test_keys_of_every_kind_and_collation(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    collated = "collate public.caseless" if _has_caseless(db) else 'collate "C"'
    db.run(
        f"create table words (word text {collated} primary key, n int)",
        "insert into words values ('Äpfel', 1), ('b,\"c\"', 2), ('', 3), (' x\\y', 4), ('(z)', 5)",
        "create table pairs (a uuid, b numeric, c date, primary key (a, b, c))",
        "insert into pairs select gen_random_uuid(), i / 7.0, date '2024-01-01' + i from generate_series(1, 300) i",
        "insert into pairs values (gen_random_uuid(), 'NaN', 'infinity'), (gen_random_uuid(), 1.50, '-infinity')",
        "create table flags (f bool, t timestamptz, x bytea, primary key (f, t, x))",
        "insert into flags values (true, 'infinity', '\\x00ff'), (false, now(), '\\x')",
    )
    tables = ("words", "pairs", "flags")
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal(*tables)
        db.run(
            "delete from words where n in (2, 4)",
            "update words set word = 'ÄPFEL' where n = 1",
            "delete from pairs where b < 10 or b = 'NaN'",
            "update pairs set b = b + 1 where c = '-infinity'",
            "delete from flags where f",
        )
        mirror.require_equal(*tables)
        db.run("insert into pairs select a, b + 100, c from pairs", "update words set n = n + 1")
        mirror.require_equal(*tables)


@pytest.mark.full
def test_a_transaction_with_a_lower_id_that_commits_later_is_not_lost(
    db: Database, tmp_path: Path, spark: SparkSession
) -> None:
    db.run("create table t (id int primary key, v text)")
    with polling(db, tmp_path, spark) as mirror, db.connect() as early, db.connect() as nested:
        mirror.require_equal("t")
        early.autocommit = nested.autocommit = False
        early.execute("insert into t values (1, 'early')")
        nested.execute("insert into t values (2, 'before the savepoint')")
        for n in range(3, 40):
            nested.execute(f"savepoint s{n}".encode())
            nested.execute(f"insert into t values ({n}, 'in a savepoint')".encode())
        db.run("insert into t values (100, 'late')")
        assert mirror.require_news("t").changes == 1
        db.run("insert into t values (101, 'later')")
        assert mirror.require_news("t").changes == 1
        early.commit()
        assert mirror.require_news("t").changes == 1
        nested.commit()
        assert mirror.require_news("t").changes == 38


@pytest.mark.full
def test_what_is_altered_is_followed_or_read_whole(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    db.run(
        "create type mood as enum ('sad', 'glad')",
        "create table t (id int primary key, v varchar(10), m mood)",
        "insert into t select i, 'v' || i, 'sad' from generate_series(1, 50) i",
        "create table gone (id int primary key)",
    )
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal("t", "gone")
        for statements, whole in (
            (["alter table t add column added int default 7"], False),
            (["alter table t rename column v to w", "update t set w = 'new' where id = 3"], False),
            (["alter table t alter column w type text", "delete from t where id = 4"], False),
            (["alter table t drop column added"], False),
            (["alter type mood rename value 'sad' to 'blue'"], True),
            (["alter table t alter column w type text using w || '!'"], True),
            (["alter table t drop constraint t_pkey"], True),
            (["vacuum full t"], False),
            (["drop table gone", "create table gone (id int, b int)", "insert into gone values (1, 2)"], True),
            (["create table later as select generate_series(1, 5) n"], True),
        ):  # fmt: skip
            db.run(*statements)
            polled = mirror.require_equal("t", "gone")
            assert bool(polled.copied if polled else 0) == whole, statements
        mirror.require_equal("later")
        db.run("drop table later")
        before = mirror.poller.cycle.applied_lsn
        mirror.poll()
        moments = tidemark.open(mirror.options.lake, spark)
        with pytest.raises(NotAnswerable, match="later"):
            moments.at().table("later")
        assert moments.at(before).table("later").count() == 5


@pytest.mark.full
def test_partitions_are_read_and_their_root_is_their_union(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    db.run(
        "create table p (id int, v text, primary key (id)) partition by range (id)",
        "create table p1 partition of p for values from (0) to (100)",
        "create table p2 partition of p for values from (100) to (200)",
        "create table apart (id int primary key, v text)",
        "insert into p select i, 'v' from generate_series(0, 199, 10) i",
        "insert into apart select i, 'w' from generate_series(200, 220) i",
    )
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal("p", "apart")
        db.run("update p set id = 101 where id = 50", "delete from p1 where id = 10")
        mirror.require_equal("p", "p1", "p2")
        db.run("alter table p attach partition apart for values from (200) to (300)")
        mirror.require_equal("p", "apart")
        db.run("alter table p detach partition p1", "truncate p2")
        mirror.require_equal("p", "p1")


def test_what_our_role_may_not_read_is_left_out(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    db.run(
        "create table open (id int primary key)",
        "create table closed (id int primary key)",
        "create table secured (id int primary key)",
        "alter table secured enable row level security",
        "insert into open values (1)",
        "insert into closed values (1)",
    )
    db.run("revoke select on closed from mirror")
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal("open")
        mirror_of = tidemark.open(mirror.options.lake, spark)
        for table, why in (("closed", "no SELECT privilege"), ("secured", "row-level security")):
            with pytest.raises(NotAnswerable, match=why):
                mirror_of.at().table(table)
        db.run("grant select on closed to mirror", "revoke select on open from mirror")
        mirror.require_equal("closed")
        with pytest.raises(NotAnswerable, match="no SELECT privilege"):
            mirror_of.at().table("open")


def test_rows_that_are_gone_stay_until_they_are_looked_for(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    db.run("create table t (id int primary key)", "insert into t select generate_series(1, 10)")
    with polling(db, tmp_path, spark, reconcile_every=3) as mirror:
        mirror.poll()
        for n in range(3):
            db.run(f"delete from t where id = {n + 1}", f"insert into t values ({n + 100})")
            mirror.poll("t")
            rows = tidemark.open(mirror.options.lake, spark).table("t").count()
            seen = mirror.poller.seen
            assert seen is not None
            looked = seen.reconciled == mirror.poller.cycle.applied_lsn
            assert rows == (10 if looked else 11 + n)
        assert looked
        mirror.require_equal("t")


def test_another_source_is_refused(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    db.run("create table t (id int primary key)")
    with polling(db, tmp_path, spark) as mirror:
        mirror.poll()
    other = Database(db.server, "postgres")
    with pytest.raises(NotTheSameSource), polling(other, tmp_path, spark) as mirror:
        mirror.poll()


def _has_caseless(db: Database) -> bool:
    """Make a collation under which texts that differ are equal; PostgreSQL from PyPI has none."""
    try:
        db.admin("create collation caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True
