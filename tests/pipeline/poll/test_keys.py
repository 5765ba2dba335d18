"""Rows are told apart by keys of any type, as PostgreSQL prints them and as the mirror does."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.database import Database
from harness.polled import polling
from tests.conftest import NEWEST
from tidemark.errors import TableChanged
from tidemark.pipeline.poll import cycle
from tidemark.pipeline.poll.mirrored import MOST_KEPT

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]

# Of each type four values: one that goes, one that becomes the last one, and one that stays.
KEYS = {
    "smallint": ("-32768", "0", "7", "32767"),
    "bigint": ("-9223372036854775808", "0", "7", "9223372036854775807"),
    "numeric": ("1.50", "NaN", "-0.0000001", "1e40"),
    "numeric(10,2)": ("1.5", "-1.5", "0", "NaN"),
    "float4": ("0.1", "-infinity", "nan", "3.4e38"),
    "float8": ("0.1", "infinity", "nan", "5e-324"),
    "text": ("", "NULL", "a,b", 'q"\\ (é) \n'),
    "varchar(9)": ("a", "a ", "{}", "É"),
    "char(5)": ("a", "b ", "é", " c"),
    "name": ("a", "b b", "c", '"'),
    '"char"': ("a", "b", "", "\\001"),
    "bytea": ("\\x", "\\x00", "\\x5c22", "\\xff"),
    "date": ("-infinity", "0044-03-15 BC", "2024-02-29", "infinity"),
    "time": ("00:00", "24:00", "12:00:00.000001", "01:02"),
    "timetz": ("00:00+14", "00:00-12", "12:00:00.5+01", "01:02+00"),
    "timestamp": ("-infinity", "infinity", "2024-02-29 12:00:00.5", "0044-03-15 BC"),
    "timestamptz": ("-infinity", "infinity", "2024-02-29 12:00:00.5+05", "290000-01-01+00"),
    "interval": ("1 mon", "30 days 1 us", "0", "-1 year"),
    "uuid": (*(f"00000000-0000-0000-0000-00000000000{n}" for n in range(4)),),
    "inet": ("10.0.0.1", "10.0.0.1/24", "::1", "fe80::/10"),
    "bit(3)": ("000", "001", "010", "111"),
    "jsonb": ("{}", '{"a": [1, null]}', "null", '"x"'),
    "int[]": ("{}", "{1,null}", "[0:1]={1,2}", "{{1},{2}}"),
    "text[]": ("{}", '{"",null}', '{"NULL","a b"}', '{"\\"\\\\"}'),
    "float8[]": ("{}", "{nan}", "{0.1,null}", "[0:0]={1}"),
    "int4range": ("empty", "[1,2)", "(,)", "[3,)"),
    "oid": ("0", "1", "2147483648", "4294967295"),
    "mood": ("sad", "so so", "glad", "NULL"),
    "email": ("a@b", "", "c@d", "(x)"),
    "spot": ("(1,a)", '(,"")', "(2,)", '(3,"b c")'),
    "pg_lsn": ("0/0", "0/1", "1/0", "FFFFFFFF/FFFFFFFF"),
}
TOGETHER = 3  # tables


@pytest.mark.full
@pytest.mark.parametrize("kept", [MOST_KEPT, 0], ids=["hashes kept", "none kept"])
def test_keys_of_every_type(
    db: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(cycle, "MOST_KEPT", kept)
    db.run(
        "create type mood as enum ('sad', 'so so', 'glad', 'NULL')",
        "create domain email as text",
        "create type spot as (x int, y text)",
    )
    kinds = list(KEYS)
    tables = {f"t{n}": kinds[n::TOGETHER] for n in range(TOGETHER)}
    with db.connect() as session:
        for table, keys in tables.items():
            columns = ", ".join(f"k{n} {kind}" for n, kind in enumerate(keys))
            named = ", ".join(f"k{n}" for n in range(len(keys)))
            session.execute(f"create table {table} ({columns}, v int, primary key ({named}))".encode())
            values = ", ".join(f"%s::text::{kind}" for kind in keys)
            for n in range(3):
                session.execute(f"insert into {table} values ({values}, {n})".encode(), [KEYS[key][n] for key in keys])
        with polling(db, tmp_path, spark) as mirror:
            mirror.require_equal(*tables)
            for table, keys in tables.items():
                late = ", ".join(f"k{n} = %s::text::{kind}" for n, kind in enumerate(keys))
                session.execute(f"delete from {table} where v = 0".encode())
                session.execute(f"update {table} set {late} where v = 1".encode(), [KEYS[key][3] for key in keys])
                session.execute(f"update {table} set v = 3 where v = 2".encode())
            polled = mirror.require_news(*tables)
            assert (polled.copied, polled.changes) == (0, 4 * len(tables))


@pytest.mark.full
def test_zeros_that_are_equal_and_not_the_same(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    db.run(
        "create table f (k float8, w numeric, v int, primary key (k, w))", "insert into f values (0, 1, 1), (1, 1, 1)"
    )
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal("f")
        db.run("update f set w = 1.00 where k = 0")
        assert mirror.require_news("f").copied == 0
        db.run("update f set k = '-0' where k = 0")
        with pytest.raises(TableChanged, match="must be copied again by the next poll"):
            mirror.poll()
        assert mirror.require_news("f").copied == 1
        db.run("delete from f where k = 0")
        assert mirror.require_news("f").copied == 0


@pytest.mark.full
def test_a_table_without_a_key_is_followed_when_it_is_altered(
    db: Database, tmp_path: Path, spark: SparkSession
) -> None:
    db.run("create table bag (n int, v varchar(9))", "insert into bag select i % 3, 'v' from generate_series(1, 30) i")
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal("bag")
        for change in (
            "add column d int default 7",
            "add column e text",
            "rename column v to w",
            "alter column w type text",
            "drop column d",
        ):
            db.run(f"alter table bag {change}")
            polled = mirror.require_news("bag")
            assert (polled.copied, polled.changes) == (0, 0), change
        db.run("insert into bag values (1, 'v', 'e'), (1, 'v', 'e')", "delete from bag where n = 0")
        assert (polled := mirror.require_news("bag")).changes == 12, polled


@pytest.mark.full
def test_tables_that_exchange_their_names(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    db.run(
        "create table a (id int primary key, v text)",
        "create table b (id int primary key, v text)",
        "insert into a select i, 'a' from generate_series(1, 20) i",
        "insert into b select i, 'b' from generate_series(10, 30) i",
    )
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal("a", "b")
        for _ in range(2):
            db.run("begin; alter table a rename to c; alter table b rename to a; alter table c rename to b; commit")
            assert mirror.require_news("a", "b").copied == 0
        db.run("begin; drop table a; create table a (like b including all); insert into a select * from b; commit")
        assert mirror.require_news("a", "b").copied == 1
        db.run("begin; truncate a; insert into a values (11, 'anew'); commit", "update b set v = 'c' where id = 11")
        polled = mirror.require_news("a", "b")
        assert (polled.copied, polled.changes) == (0, 20 + 1 + 1)
