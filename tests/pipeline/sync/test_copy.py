"""What a copy brings: every kind of table and value as PostgreSQL has it, and everything that comes after."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from harness.database import Database
from harness.outside import path_of
from harness.syncing import syncing
from tests.conftest import NEWEST, installs_from
from tests.pgoutput.corpus import ARRAYS, AS_TEXT, SCALARS
from tidemark.lake.versions import read_versions
from tidemark.pipeline.copy import parts
from tidemark.pipeline.fold import layout

pytestmark = [pytest.mark.quick, pytest.mark.spark]

install = installs_from(16)
CORPUS = {**SCALARS, **ARRAYS, **AS_TEXT}


@pytest.mark.full
def test_every_type_is_copied_as_postgresql_prints_it(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    columns = ", ".join(f"c{at} {kind}" for at, kind in enumerate(CORPUS))
    db.run(f"create table t (id int primary key, {columns})")
    with db.connect() as session:
        places = ", ".join(f"%s::{kind}" for kind in CORPUS)
        for row in range(max(map(len, CORPUS.values()))):
            values = [literals[row % len(literals)] for literals in CORPUS.values()]
            session.execute(f"insert into t values ({row}, {places})".encode(), values)
        session.execute("insert into t values (-1)")
    with syncing(db, tmp_path, spark, "t") as synced:
        synced.copy_all()
        synced.note("t")
        db.run(
            "update t set id = id + 1000 where id % 2 = 0", "delete from t where id = 3", "insert into t values (5000)"
        )
        synced.note("t")
        assert synced.require_noted() == 2


@pytest.mark.full
def test_all_kinds_of_tables_are_copied_and_followed(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run(
        "create table keyed (id int primary key, v text)",
        "insert into keyed select i, repeat('v', i % 50) from generate_series(1, 3000) i",
        "create table bag (a int, b float8, l int[])",
        "alter table bag replica identity full",
        "insert into bag select i % 7, case i % 3 when 0 then -0.0 else 0.0 end, array[i % 2] "
        "from generate_series(1, 300) i",
        "create table nothing ()",
        "alter table nothing replica identity full",
        "insert into nothing select from generate_series(1, 4)",
        'create table "Odd.näme" ("a b" int primary key, "C d" text, _begin_lsn int)',
        "insert into \"Odd.näme\" values (1, 'x', 2)",
        "create table made (id int primary key, twice int generated always as (id * 2) stored)",
        "insert into made select i from generate_series(1, 50) i",
        "create table root (id int, v text, primary key (id)) partition by range (id)",
        "create table low partition of root for values from (0) to (100)",
        "create table high partition of root for values from (100) to (1000)",
        "insert into root select i, 'leaf' from generate_series(50, 150) i",
        "create table parent (id int primary key)",
        "create table child (extra text) inherits (parent)",
        "alter table child add primary key (id)",
        "insert into parent values (1)",
        "insert into child values (2, 'only in child')",
        "create table bare (id int primary key)",
        "create domain price as numeric(12,2) check (value > 0)",
        "create domain discounted as price",
        "create table priced (id int primary key, p price, d discounted, l price[])",
        "insert into priced select i, i, i / 2.0, array[i] from generate_series(1, 20) i",
    )
    tables = ["keyed", "bag", "nothing", '"Odd.näme"', "low", "high", "parent", "child", "bare", "priced"]
    shown = [*tables, "made"] if db.server.install.major >= 18 else tables
    with syncing(db, tmp_path, spark, *(f"only {table}" for table in [*tables, "made"])) as synced:
        synced.copy_all()
        synced.note(*shown)
        db.run(
            "update keyed set v = 'new' where id % 100 = 0",
            "delete from bag where ctid in (select ctid from bag limit 5)",
            "insert into bag values (0, -0.0, null)",
            "insert into nothing default values",
            "update root set id = id + 500 where id = 60",
            "insert into parent values (3)",
            "insert into bare values (9)",
            "insert into made values (100)",
            "update priced set d = 7.25 where id = 3",
        )
        synced.note(*shown)
        synced.require_noted()
        if db.server.install.major < 18:
            names = synced_columns(synced.options.lake / path_of(synced.options.lake, "made") / "versions")
            assert names == ["id", "_begin_lsn", "_end_lsn"]


def synced_columns(folder: Path) -> list[str]:
    return [field.name for field in DeltaTable(folder).schema().fields]


@pytest.mark.full
@NEWEST
def test_a_table_in_many_parts_and_buckets_is_whole(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LEAST_BYTES", 1 << 17)
    monkeypatch.setattr(layout, "BUCKET_BYTES", 1 << 16)
    db.run(
        "create table t (id bigint, sub numeric(20, 3), moment date, v text, primary key (sub, id, moment))",
        "insert into t select i, i / 7.0, case when i % 400 = 0 then 'infinity' else date '2020-01-01' + i end, "
        "md5(i::text) from generate_series(1, 20000) i",
    )
    with syncing(db, tmp_path, spark, "t", folds=False) as synced:
        synced.copy_all()
        versions = read_versions(synced.options.lake, path_of(synced.options.lake, "t"))
        assert versions is not None
        assert len({file.bucket for file in versions.files}) == versions.buckets > 4
        assert {column.name for column in versions.stored if column.text} == {"moment~text"}
        synced.note("t")
        db.run(
            "update t set v = 'changed' where id % 1000 = 0", "delete from t where moment = 'infinity' and id < 5000"
        )
        synced.note("t")
        synced.require_noted()
        assert len(synced.fold()) == 1
        assert synced.require_noted() == 2
