"""A transaction that may be altering a table holds back the position at which that table is read, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import Database
from harness.lake import Lakeside, following, lakeside
from harness.mirrored import eventually
from tests.conftest import NEWEST
from tidemark.clock import Lsn
from tidemark.errors import NotAnswerable
from tidemark.lake.catalog import read_catalog
from tidemark.lake.status import TableStatus, status_of
from tidemark.mirror.mirror import Mirror
from tidemark.pipeline.apply.applier import StreamApplier

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]

MOOD = "create type mood as enum ('sad', 'glad')"


@pytest.fixture
def side(db: Database, spark: SparkSession, tmp_path: Path) -> Iterator[Lakeside]:
    db.run(MOOD, "create table t (id int primary key, v text)", "create table other (id int primary key)")
    db.run("create table felt (id int primary key, how mood)")
    db.run("create table parts (id int primary key) partition by range (id)")
    db.run("create table part_1 partition of parts for values from (0) to (10)")
    with following(lakeside(db, tmp_path, spark, "t", "other", "felt", "part_1")) as made:
        yield made


def opened(side: Lakeside) -> Mirror:
    return tidemark.open(side.options.lake, side.spark, source=side.options.source)


def insert(side: Lakeside, row: int) -> Lsn:
    """Insert a row into every table that is not locked; return a position after it."""
    side.database.run(f"insert into other values ({row})")
    return side.position()


def apply_past(writer: StreamApplier, upto: Lsn) -> None:
    """Apply until the schema LSN of the mirror is past a position, whatever single tables wait for."""

    def reached() -> bool:
        writer.read_catalog()
        writer.apply()
        writer.record_progress()
        return writer.cycle.readable >= upto

    eventually(reached, 60)


def status(side: Lakeside, table: str) -> TableStatus:
    return next(each for each in status_of(side.options.lake).tables if each.name == table)


def catalogued(side: Lakeside, table: str) -> str:
    """The state of a table in the catalog for other engines, once everything is folded."""
    side.fold()
    return str(next(each["state"] for each in read_catalog(side.options.lake)["tables"] if each["name"] == table))


def test_a_table_that_is_being_altered_holds_back_no_other_table(side: Lakeside) -> None:
    db, mirror = side.database, opened(side)
    db.run("insert into t values (1, 'one')", "insert into other values (1)")
    before = side.apply_all()
    with db.connect() as altering:
        altering.execute("begin; alter table t add c int default 7; insert into t values (2, 'two')")
        upto = insert(side, 2)
        with side.writing() as writer:
            apply_past(writer, upto)
        assert mirror.at().lsn >= upto
        assert mirror.table("other").count() == 2
        assert mirror.sql("select count(*) from other").collect() == [(2,)]
        assert mirror.table("t").collect() == [(1, "one")], "t is read where its definition is known"
        assert mirror.sql("select max(t.id), max(other.id) from t cross join other").collect() == [(1, 1)]
        with mirror.at() as latest, pytest.raises(NotAnswerable, match=r"public\.t cannot be read at .* known up to"):
            latest.table("t")
        with pytest.raises(NotAnswerable, match=r"public\.t cannot be read at .* known up to"):
            mirror.at(upto).changes("t", before)
        assert "pg_locks" in status(side, "public.t").fix
        assert status(side, "public.t").readable[-1][1] is not None
        assert status(side, "public.other").readable[-1][1] is None

        later = insert(side, 3)
        side.fold()
        with side.writing() as writer:  # another process knows it from the lake
            apply_past(writer, later)
        assert mirror.table("other").count() == 3
        assert mirror.table("t").collect() == [(1, "one")]
        altering.execute("commit")
    side.apply_all()
    assert sorted(mirror.table("t").collect()) == [(1, "one", 7), (2, "two", 7)]
    assert mirror.at(before).table("t").collect() == [(1, "one")]
    assert status(side, "public.t").readable[-1][1] is None
    side.fold()
    assert sorted(mirror.table("t").collect()) == [(1, "one", 7), (2, "two", 7)]
    mirror.close()


@pytest.mark.full
@pytest.mark.parametrize(
    ("statement", "locked"),
    [
        pytest.param("alter type mood add value 'calm'", "felt", id="type"),
        pytest.param("drop table part_1", "parts", id="partition"),
        pytest.param("lock table t in share row exclusive mode", "t", id="lock"),
    ],
)
def test_a_lock_on_what_a_table_depends_on_counts_for_the_table(side: Lakeside, statement: str, locked: str) -> None:
    db, mirror = side.database, opened(side)
    db.run("insert into felt values (1, 'sad')", "insert into part_1 values (1)", "insert into t values (1, '')")
    side.apply_all()
    with db.connect() as altering:
        altering.execute(f"begin; select pg_current_xact_id(); {statement}".encode())
        upto = insert(side, 1)
        with side.writing() as writer:
            apply_past(writer, upto)
        with mirror.at() as latest:
            assert latest.lsn >= upto
            for table in {"t", "felt", "parts", "other"} - {locked}:
                assert latest.table(table).count() == 1
            with pytest.raises(NotAnswerable, match=f"{locked} cannot be read"):
                latest.table(locked)
        assert mirror.table(locked).count() == 1
        known = status(side, f"public.{locked}")
        assert "known up to" in known.reason
        assert known.readable[-1][1] is not None
        with pytest.raises(NotAnswerable, match="changes of other can be read up to"):
            mirror.at(known.readable[-1][1]).changes("other", upto, only=True)
        assert catalogued(side, "parts") == ("waiting" if locked == "parts" else "readable")
        altering.execute("rollback")
    side.apply_all()
    with mirror.at() as latest:
        assert latest.table(locked).count() == 1
    assert catalogued(side, "parts") == "readable"
    mirror.close()


def test_now_waits_for_the_tables_that_are_asked_for(side: Lakeside) -> None:
    db, mirror = side.database, opened(side)
    db.run("insert into other values (1)", "alter table t add c int default 7")
    with mirror.at("now", tables=["other"], wait=600) as now:
        assert now.table("other").count() == 1
        with pytest.raises(NotAnswerable, match=r"public\.t was altered"):
            now.table("t")
    mirror.close()
