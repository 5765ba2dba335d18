"""Tables folded: for readers nothing changes but the time it takes, and other engines find a plain current table."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from harness.database import Database
from harness.lake import Lakeside, by_postgres, following, lakeside
from harness.outside import path_of
from tests.conftest import NEWEST
from tidemark.errors import LakeInUse, NotAnswerable
from tidemark.lake.versions import read_versions
from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake
from tidemark.pipeline.fold import layout
from tidemark.pipeline.fold.compactor import MANY_FILES, Compactor

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]

Rows = Counter[tuple[Any, ...]]


def foreign(side: Lakeside, columns: str, table: str = "t") -> list[Rows]:
    """What other engines find in a table's live versions."""
    folder = side.options.lake / path_of(side.options.lake, table) / "versions"
    names = columns.split(", ")
    whole = pa.table(DeltaTable(folder).to_pyarrow_table())
    live = whole.filter(pa.compute.is_null(whole["_end_lsn"])).select(names)
    polars = pl.scan_delta(str(folder)).filter(pl.col("_end_lsn").is_null()).select(names).collect()
    dataset = DeltaTable(folder).to_pyarrow_dataset()
    with duckdb.connect() as duck:
        duck.register("versions", dataset)
        ducks = duck.execute(f"select {columns} from versions where _end_lsn is null").fetchall()
    return [
        Counter(tuple(row.values()) for row in live.to_pylist()),
        Counter(polars.rows()),
        Counter(ducks),
    ]


def require_foreign(side: Lakeside, columns: str) -> None:
    theirs = Counter(side.database.admin(f"select {columns} from t"))
    for ours in foreign(side, columns):
        assert ours == theirs


@pytest.mark.full
def test_other_engines_find_what_postgresql_has_also_after_renames_type_changes_and_drops(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key, a int, b numeric(6,2), c text)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        db.run("insert into t select i, i, i / 4.0, 'text ' || i from generate_series(1, 200) i")
        side.note("t")
        side.apply_all()
        side.fold()
        require_foreign(side, "id, a, b, c")
        db.run("update t set a = -a where id % 3 = 0", "delete from t where id % 5 = 0")
        side.note("t")
        side.apply_all()
        db.run(
            "alter table t rename column a to renamed",
            "alter table t alter column b type numeric(12,2)",
            "alter table t drop column c",
            "alter table t add column d int default 7",
            "alter table t add column moment timestamp",
            "insert into t values (1000, 1, 1234567890.25, 8, '2024-02-29 12:00')",
        )
        side.apply_all()
        side.note("t")
        side.apply_all()
        side.fold()
        require_foreign(side, "id, renamed, b, d, moment")
        schema = pa.schema(
            DeltaTable(side.options.lake / path_of(side.options.lake, "t") / "versions").schema().to_arrow()
        )
        assert schema.names == ["id", "renamed", "b", "d", "moment", "c~4", "_begin_lsn", "_end_lsn"]
        assert schema.field("b").type == pa.decimal128(12, 2)
        assert side.require_noted() == 3


@pytest.mark.full
def test_names_that_columns_take_over_from_each_other_lead_to_nobody_elses_values(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    tables = {"t": "id int primary key", "bag": "id int"}
    db.run(*(f"create table {table} ({key}, a int, b int)" for table, key in tables.items()))
    db.run("alter table bag replica identity full")
    with following(lakeside(db, tmp_path, spark, *tables)) as side:
        turns = (
            ["rename a to c", "add a int"],
            ["rename b to d", "rename a to b", "add a int"],
            ["drop c", "rename a to c", "add a int default 5"],
        )
        for turn, alterations in enumerate(turns):
            for table in tables:
                db.run(
                    f"insert into {table} select i, i, -i from generate_series({100 * turn}, {100 * turn + 60}, 2) i"
                )
            side.apply_all()
            for table in tables:
                db.run(*(f"alter table {table} {each}" for each in alterations))
            for folds in (True, False):
                for table in tables:
                    db.run(f"update {table} set a = id + {turn}, b = 7 * id where id % 3 = {turn}")
                    db.run(f"delete from {table} where id % 7 = {turn}")
                side.apply_all()
                side.note(*tables)
                side.apply_all()
                if folds:
                    side.fold()
        assert side.require_noted() == 2 * len(turns)
        side.fold()
        assert side.require_noted() == 2 * len(turns)


@pytest.mark.full
@pytest.mark.parametrize("folds", [True, False])
def test_equal_rows_are_removed_from_a_table_that_loses_columns(
    db: Database, spark: SparkSession, tmp_path: Path, folds: bool
) -> None:
    db.run(
        "create table bag (a int, b text, c int, d int)",
        "alter table bag replica identity full",
    )
    filled = "insert into bag select i % 3, 'b' || i % 2, i % 4, i % 2 from generate_series(1, 120) i"
    fewer = "delete from bag where ctid in (select min(ctid) from bag where a < 2 group by {})"
    with following(lakeside(db, tmp_path, spark, "bag")) as side:
        for step in (
            [filled, fewer.format("a, b, c, d"), "update bag set d = d + 1 where c = 2"],
            ["alter table bag drop c", fewer.format("a, b, d"), "insert into bag values (1, 'b1', 1), (1, 'b1', 1)"],
            ["alter table bag drop b", fewer.format("a, d"), fewer.format("a, d")],
            ["update bag set a = 1 where d = 1", fewer.format("a, d")],
            ["alter table bag drop d", fewer.format("a"), "insert into bag values (0)"],
            [fewer.format("a"), "truncate bag", "insert into bag values (1), (1), (2)", fewer.format("a")],
        ):
            db.run(*step)
            side.apply_all()
            side.note("bag")
            side.apply_all()
            if folds:
                side.fold()
        assert side.require_noted() == 6
        side.fold()
        assert side.require_noted() == 6


@pytest.mark.full
def test_buckets_are_made_anew_when_a_table_has_grown_and_stay_when_not(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "BUCKET_BYTES", 4000)
    db.run("create table t (id int, sub text, v text, primary key (sub, id))", "create table m (v text)")
    db.run("alter table m replica identity full")
    with following(lakeside(db, tmp_path, spark, "t", "m")) as side:
        counts = []
        for n in range(2):
            rows = 300 * 6**n
            db.run(
                f"insert into t select i, 'sub {n}', md5(i::text) from generate_series(1, {rows}) i",
                f"insert into m select md5((i % 50)::text) from generate_series(1, {rows}) i",
                f"update t set v = 'changed' where id = {n + 1}",
                "delete from m where ctid in (select ctid from m limit 5)",
            )
            side.note("t", "m")
            side.apply_all()
            side.fold()
            db.run(f"update t set v = 'again' where id = {n + 1}")
            side.apply_all()
            side.fold()  # goes by what the one before has written
            versions = read_versions(side.options.lake, path_of(side.options.lake, "t"))
            assert versions is not None
            counts.append(versions.buckets)
            assert {file.buckets for file in versions.live} == {versions.buckets}
        assert counts[0] < counts[1]
        db.run("update t set v = 'one' where id = 1 and sub = 'sub 0'")
        side.note("t", "m")
        side.apply_all()
        (folded,) = side.fold()
        assert folded.buckets == 1 < counts[1]
        assert side.require_noted() == 3


@pytest.mark.full
def test_small_files_of_closed_rows_are_joined(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, v text)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        db.run("insert into t select i, 'v' from generate_series(1, 50) i")
        closed = []
        for n in range(MANY_FILES + 2):
            db.run(f"update t set v = v || '{n}' where id % 7 = {n % 7}")
            side.note("t")
            side.apply_all()
            side.fold()
            versions = read_versions(side.options.lake, path_of(side.options.lake, "t"))
            assert versions is not None
            closed.append(len(versions.files) - len(versions.live))
        assert max(closed) == MANY_FILES
        assert closed[-1] < 3
        side.notes = side.notes[::3]
        assert side.require_noted_now() == 4


def test_a_query_for_one_key_reads_its_bucket_and_what_rows_borrow_from_others(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "BUCKET_BYTES", 2000)
    db.run("create table t (id int primary key, n int, big text)", "alter table t alter big set storage external")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        db.run("insert into t select i, i, repeat(md5(i::text), 100) from generate_series(1, 60) i")
        side.apply_all()
        side.fold()
        versions = read_versions(side.options.lake, path_of(side.options.lake, "t"))
        assert versions is not None
        assert versions.buckets > 4
        one = side.open().sql("select * from t where id = 5")
        assert len(one.inputFiles()) == 1
        assert [tuple(row)[:2] for row in one.collect()] == [(5, 5)]
        db.run("update t set id = 1007 where id = 7", "update t set n = -1 where id = 8", "delete from t where id = 9")
        side.apply_all()
        theirs = dict(db.admin("select id, md5(big) from t"))
        moment = side.open().at()
        for key in (5, 7, 8, 9, 1007):
            found = moment.sql(f"select id, md5(big) from public.t where id = {key}").collect()
            assert [tuple(row) for row in found] == [(key, theirs.get(key))] * (key in theirs)


@pytest.mark.full
def test_what_a_table_was_before_it_was_begun_anew_is_kept_until_vacuum_lets_it_go(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key, v text)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        db.run("insert into t values (1, 'one')")
        side.apply_all()
        side.fold()
        db.run("insert into t values (2, 'two')")
        side.note("t")
        side.apply_all()
        expire_lake(side.options.lake, ExpireOptions(keep_s=None, before=side.notes[0].lsn, grace_s=0))
        assert side.require_noted_now() == 1
        db.run("alter table t alter id type bigint", "truncate t")
        side.apply_all()
        db.run("insert into t values (3, 'three')")
        side.apply_all()
        assert side.require_noted_now() == 1, "its versions are still there"
        side.fold()
        assert side.open().table("t").count() == 1
        assert side.require_noted_now() == 1, "they are, at an earlier version of the Delta table"
        expire_lake(side.options.lake, ExpireOptions(keep_s=None, before=side.notes[0].lsn, grace_s=0))
        assert side.require_noted_now() == 1
        expire_lake(side.options.lake, ExpireOptions(keep_s=None, before=side.apply_all(), grace_s=0))
        assert side.open().table("t").count() == 1
        with pytest.raises(NotAnswerable, match="the history is kept from"):
            side.require_noted_now()


@pytest.mark.full
def test_a_second_fold_loses_and_nothing_is_folded_twice(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, v text)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        db.run("insert into t select i, 'v' from generate_series(1, 100) i")
        side.note("t")
        side.apply_all()
        with Compactor(side.options.lake, spark) as compactor:
            with pytest.raises(LakeInUse, match=r"is being folded: pid"):
                Compactor(side.options.lake, spark)
            (once,) = compactor.foldable()
            compactor.fold(once)
            db.run("update t set v = 'w' where id < 50")
            side.note("t")
            side.apply_all()
            (again,) = compactor.foldable()
            compactor.fold(again)
            with pytest.raises(LakeInUse, match="folded by another process"):
                compactor.fold(replace(again, upto=side.position()))
            assert compactor.foldable() == []
        assert side.require_noted_now() == 2
        assert by_postgres(db, "t")[1].total() == sum(foreign(side, "id, v")[0].values())


@pytest.mark.full
def test_a_handle_held_through_folds_and_another_table_made_of_the_same_name(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key, v text)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        db.run("insert into t select i, 'v' from generate_series(1, 100) i")
        side.note("t")
        side.apply_all()
        side.fold()
        held = side.open().at(side.notes[0].lsn)
        before = held.table("t")
        db.run("update t set v = 'w'", "delete from t where id > 50")
        side.apply_all()
        side.fold()
        assert before.where("v = 'v'").count() == held.table("t").count() == 100
        assert side.open().table("t").where("v = 'w'").count() == 50
        held.close()
