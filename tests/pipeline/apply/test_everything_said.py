"""Everything that the stream can say about a table, read back as of every commit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.database import Database
from harness.lake import following, lakeside
from tests.conftest import installs_from, quick_only

pytestmark = pytest.mark.quick

install = installs_from(16)
IDENTITIES = ("full", "using index t_a", "nothing", "full with a deferrable key")
LARGE = "(select string_agg(md5({} || i::text), '') from generate_series(1, 400) i)"  # 12,800 bytes: stored out of line


def test_every_kind_of_change_reads_back_at_every_commit(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, v text, n numeric(10,2), at timestamptz)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        side.run_and_note(
            [
                "insert into t select i, 'row ' || i, i / 7.0, '2024-01-01' from generate_series(1, 50) i",
                "update t set v = v || '!' where id % 3 = 0",
                "update t set id = id + 1000 where id < 10",
                "delete from t where id between 20 and 30",
                "insert into t values (1, 'again', null, 'infinity'), (2, null, 'nan', '-infinity')",
                "begin; insert into t values (7, 'short', 1, now()); delete from t where id = 7; commit",
                "begin; update t set v = 'a' where id = 1; update t set v = 'b' where id = 1; commit",
                "begin; insert into t values (9, 'x'); truncate t; insert into t values (3, 'y', 1, null); commit",
                "truncate t",
                "insert into t values (4, 'after', 0.01, '2000-01-01')",
            ],
            "t",
        )
        side.apply_all()
        assert side.require_noted() == 10


@pytest.mark.parametrize("identity", quick_only(IDENTITIES, "full"))
def test_each_replica_identity_reads_back(db: Database, spark: SparkSession, tmp_path: Path, identity: str) -> None:
    key = "primary key deferrable initially deferred" if "deferrable" in identity else "primary key"
    db.run(f"create table t (id int {key}, a int not null, v text)", "create unique index t_a on t (a)")
    db.run(f"alter table t replica identity {identity.split(' with')[0]}")
    statements = [
        "insert into t select i, i * 10, 'v' || i from generate_series(1, 9) i",
        "insert into t values (10, 1)",
    ]
    if identity != "nothing":
        statements += [
            "update t set v = v || v where id > 5",
            "update t set id = id + 100, a = a + 1000 where id < 4",
            "delete from t where id in (5, 101)",
        ]
    if "deferrable" in identity:
        statements.append(
            "begin; update t set id = 6 where id = 7 and a = 70; update t set id = 7 where a = 60; commit"
        )
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        side.run_and_note([*statements, "truncate t", "insert into t values (1, 2, 'three')"], "t")
        side.apply_all()
        side.require_noted()


@pytest.mark.full
def test_a_table_without_a_key_counts_its_duplicates(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table m (a int, b float8, c text[])", "alter table m replica identity full")
    with following(lakeside(db, tmp_path, spark, "m")) as side:
        side.run_and_note(
            [
                "insert into m select 1, 0.5, '{x,NULL}' from generate_series(1, 4)",
                "insert into m values (2, '-0'), (2, '0'), (2, 'nan'), (2, 'nan'), (null, null)",
                "delete from m where ctid in (select ctid from m where a = 1 limit 2)",
                "update m set a = 3 where ctid = (select ctid from m where b = 'nan' limit 1)",
                "delete from m where b = 0 and b::text = '-0'",
                "update m set b = 7 where a is null",
                "insert into m select * from m",
            ],
            "m",
        )
        side.apply_all()
        side.require_noted()


@pytest.mark.full
def test_a_large_value_that_did_not_change_is_found(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, n int, big text, more text)")
    db.run("alter table t alter big set storage external", "alter table t alter more set storage external")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        side.run_and_note(
            [
                f"insert into t select g, 0, {LARGE.format('g')}, {LARGE.format('-g')} from generate_series(1, 6) g",
                "update t set n = n + 1",
                f"update t set n = n + 1, more = {LARGE.format(5)} where id = 2",
                "update t set id = 100 where id = 3",
                "begin; update t set id = 200 where id = 100; update t set id = 300, n = 9 where id = 200; commit",
                "delete from t where id = 4",
                "update t set id = 4 where id = 5",
                f"update t set big = {LARGE.format(77)} where id = 4",
                "update t set id = 5, n = -1 where id = 4",
                "update t set id = 3 where id = 1",
            ],
            "t",
        )
        side.apply_all()
        side.require_noted()


@pytest.mark.full
def test_a_transaction_streamed_over_many_slices_is_visible_whole_or_not_at_all(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key, v text)", "create table u (id int primary key, v text)")
    db.admin(f"alter role mirror in database {db.name} set logical_decoding_work_mem = '64kB'")
    side = lakeside(db, tmp_path, spark, "t", "u", segment_bytes=150_000)
    side.options = replace(side.options, cycle_bytes=100_000, slice_bytes=20_000)
    with following(side), db.connect() as open_one, db.connect() as other:
        open_one.autocommit = other.autocommit = False
        open_one.execute("insert into t select i, repeat('x', 50) from generate_series(1, 5000) i")
        open_one.execute("savepoint s")
        open_one.execute("insert into u select i, repeat('y', 50) from generate_series(1, 3000) i")
        open_one.execute("rollback to s")
        open_one.execute("insert into u select i, repeat('z', 50) from generate_series(2000, 5000) i")
        for n in range(20):
            other.execute(f"insert into t values ({10_000 + n}, 'small')")
            other.commit()
        side.note("t", "u")
        open_one.execute("update t set v = 'changed' where id % 7 = 0")
        open_one.commit()
        side.note("t", "u")
        other.execute("delete from t where id > 9000")
        other.commit()
        side.note("t", "u")
        with side.writing() as writer:
            upto, cycles = side.position(), 0
            writer.read_catalog()
            side.mirror.catch_up()
            while writer.apply() is not None:
                cycles += 1
            assert cycles > 1
            writer.catch_up(upto)
        assert side.require_noted() == 3


def test_a_streamed_transaction_that_alters_its_table_is_read_under_each_definition(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key, v text)")
    db.admin(f"alter role mirror in database {db.name} set logical_decoding_work_mem = '64kB'")
    side = lakeside(db, tmp_path, spark, "t", segment_bytes=150_000)
    side.options = replace(side.options, slice_bytes=20_000)
    with following(side):
        db.run(
            "begin; insert into t select i, repeat('x', 50) from generate_series(1, 4000) i; "
            "alter table t add column n int default 7; "
            "insert into t select i, repeat('y', 50), i from generate_series(4001, 8000) i; commit"
        )
        side.apply_all()
        side.note("t")
        side.apply_all()
        assert side.require_noted() == 1


def test_what_is_not_applied_yet_is_read_from_the_log(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, v text)", "create table m (a int)")
    db.run("alter table m replica identity full")
    with following(lakeside(db, tmp_path, spark, "t", "m")) as side:
        side.run_and_note(["insert into t select i, 'v' from generate_series(1, 9) i"], "t", "m")
        side.apply_all()
        side.run_and_note(
            [
                "update t set v = 'w' where id < 4",
                "insert into m values (1), (1), (2)",
                "delete from t where id = 9",
                "truncate m",
                "insert into t values (9, 'new')",
            ],
            "t",
            "m",
        )
        side.mirror.catch_up()
        with side.writing() as writer:
            before = writer.cycle.applied_lsn
            while writer.tables.lsns.mirror < side.notes[-1].lsn:
                writer.read_catalog()
            writer.record_progress()
            assert writer.cycle.applied_lsn == before
        assert side.require_noted() == 6
