"""Other engines find every table by the lake's catalog, and select by any column what PostgreSQL selects."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from harness.database import Database
from harness.lake import following, lakeside
from harness.outside import Filter, catalog_of, delta_of, entry_of, require_there, selected
from harness.polled import polling
from harness.shell import NO_SPARK
from harness.shell import tidemark as shell
from harness.syncing import Synced, syncing
from tests.conftest import NEWEST
from tests.striking import striking
from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake
from tidemark.storage.fail_points import FailPoint

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]

LONG = "x" * 70
COLUMNS = (
    "id int primary key, f8 float8, f4 float4, t text, tz timestamptz, ts timestamp, d numeric(20,2), n numeric, "
    "day date, b bool, bin bytea, u uuid, big int8, l int[], late int"
)
ROWS = """
    insert into every
    select i,
           case i % 5 when 0 then 'NaN' when 1 then '-0' when 2 then 0 when 3 then 'Infinity' else 1.5 end,
           case i % 5 when 0 then 'NaN' when 1 then '-0' when 2 then 0 when 3 then '-Infinity' else 1.5 end,
           repeat('x', 70) || i,
           case when i % 7 = 0 then 'infinity' else timestamptz '2020-01-01 00:00:00.123456Z' + i * interval '1 s' end,
           case when i % 7 = 0 then '-infinity' else timestamp '2020-01-01 00:00:00.123456' + i * interval '1 s' end,
           case when i % 11 = 0 then 'NaN' else 123456789012345678.25 + i end,
           i / 7.0,
           case when i % 7 = 0 then 'infinity' else date '2020-01-01' + i end,
           i % 2 = 0,
           decode(lpad(to_hex(i), 4, '0'), 'hex'),
           lpad(i::text, 32, '0')::uuid,
           i * 10000000000,
           array[i, i + 1],
           null
      from generate_series({first}, {last}) i
"""


def equal(column: str, text: str, value: Any, kind: pa.DataType) -> tuple[str, Filter]:
    """Equal to a value, which SQL has as this text."""
    scalar = pa.scalar(value, kind)
    typed = pl.lit(pl.from_arrow(pa.array([value], kind))[0])
    return column, Filter(f"{{}} = {text}", ds.field(column) == scalar, pl.col(column) == typed)


SECOND = datetime(2020, 1, 1, 0, 0, 5, 123456)
FILTERS: dict[str, tuple[str, Filter]] = {
    "f8 = 0": equal("f8", "0", 0.0, pa.float64()),
    "f8 = 1.5": equal("f8", "1.5", 1.5, pa.float64()),
    "f8 > 1e300 and f8 <> 'NaN'": (
        "f8",
        Filter(
            "{0} > 1e300 and not isnan({0})",
            (ds.field("f8") > 1e300) & ~ds.field("f8").is_nan(),
            (pl.col("f8") > 1e300) & ~pl.col("f8").is_nan(),
        ),
    ),
    "f8 = 'NaN'": ("f8", Filter("isnan({})", ds.field("f8").is_nan(), pl.col("f8").is_nan())),
    "f4 = 0": equal("f4", "0", 0.0, pa.float32()),
    "f4 < -1e30": ("f4", Filter("{} < -1e30", ds.field("f4") < -1e30, pl.col("f4") < -1e30)),
    f"t = '{LONG}107'": equal("t", f"'{LONG}107'", f"{LONG}107", pa.string()),
    f"t > '{LONG}2' collate \"C\"": (
        "t",
        Filter(f"{{}} > '{LONG}2'", ds.field("t") > f"{LONG}2", pl.col("t") > f"{LONG}2"),
    ),
    "tz = '2020-01-01 00:00:05.123456+00'": equal(
        "tz", "cast('2020-01-01 00:00:05.123456Z' as timestamp)", SECOND.replace(tzinfo=UTC), pa.timestamp("us", "UTC")
    ),
    "ts = '2020-01-01 00:00:05.123456'": equal(
        "ts", "cast('2020-01-01 00:00:05.123456' as timestamp)", SECOND, pa.timestamp("us")
    ),
    "d = 123456789012345683.25": equal(
        "d", "cast('123456789012345683.25' as decimal(20,2))", Decimal("123456789012345683.25"), pa.decimal128(20, 2)
    ),
    "n = 2": equal("n", "'2.0000000000000000'", "2.0000000000000000", pa.string()),
    "day = '2020-01-06'": equal("day", "cast('2020-01-06' as date)", date(2020, 1, 6), pa.date32()),
    "b": equal("b", "true", True, pa.bool_()),
    "u = '00000000-0000-0000-0000-000000000107'": equal(
        "u", "'00000000-0000-0000-0000-000000000107'", "00000000-0000-0000-0000-000000000107", pa.string()
    ),
    "big = 1070000000000": equal("big", "1070000000000", 1070000000000, pa.int64()),
    "id = 107": equal("id", "107", 107, pa.int32()),
    "late = 7": equal("late", "7", 7, pa.int32()),
}


def require_filters(synced: Synced, table: str, filters: dict[str, tuple[str, Filter]], *, by_spark: bool) -> None:
    """Every engine selects what PostgreSQL selects: by these filters, and by what is null."""
    lake, entry = synced.options.lake, entry_of(synced.options.lake, table)
    stored = {column["name"]: column for column in entry["columns"]}
    assert "parquet.field.id" not in delta_of(lake, entry).schema().to_json()  # DuckDB's delta_scan reads null by them
    for condition, (column, chosen) in filters.items():
        expected = [row[0] for row in synced.database.run(f"select id from {table} where {condition} order by id")]
        assert expected, condition
        found = selected(lake, entry, stored[column]["stored"], chosen, synced.spark if by_spark else None)
        assert found == dict.fromkeys(found, expected), condition
    for column in {name for name, _ in filters.values()}:
        if stored[column]["text"] is not None:
            continue  # null where the value has no twin
        for null, chosen in {
            "is null": Filter("{} is null", ds.field(column).is_null(), pl.col(column).is_null()),
            "is not null": Filter("{} is not null", ds.field(column).is_valid(), pl.col(column).is_not_null()),
        }.items():
            expected = [r[0] for r in synced.database.run(f"select id from {table} where {column} {null} order by id")]
            found = selected(lake, entry, stored[column]["stored"], chosen, None)
            assert found == dict.fromkeys(found, expected), f"{column} {null}"


def ids(synced: Synced, entry: dict[str, Any], table: str) -> None:
    """The current rows of a table by the catalog are PostgreSQL's."""
    everything = Filter("1 = 1", ds.scalar(True), pl.lit(True))
    expected = [row[0] for row in synced.database.run(f"select id from {table} order by id")]
    found = selected(synced.options.lake, entry, "id", everything, None)
    assert found == dict.fromkeys(found, expected), table


def require_catalog(synced: Synced, *tables: str) -> None:
    """By the catalog other engines find just these tables, and in them what PostgreSQL has."""
    synced.catch_up()
    synced.fold()
    named = {f"{each['schema']}.{each['name']}": each for each in catalog_of(synced.options.lake)["tables"]}
    assert sorted(named) == sorted(f"public.{table}" for table in tables)
    for table in tables:
        entry = named[f"public.{table}"]
        assert (entry["state"], entry["reason"]) == ("readable", None)
        (oid,) = synced.database.admin(f"select '{table}'::regclass::oid::int")[0]
        assert (entry["oid"], entry["path"]) == (oid, f"tables/{oid}")
        ids(synced, entry, table)


def test_every_engine_selects_by_any_column_what_postgresql_selects(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(f"create table every ({COLUMNS})")
    db.run(ROWS.format(first=1, last=200))
    with syncing(db, tmp_path, spark, "every", folds=False) as synced:
        synced.copy_all()
        synced.catch_up()
        copied = {condition: each for condition, each in FILTERS.items() if condition != "late = 7"}
        require_filters(synced, "every", copied, by_spark=False)
        db.run(
            ROWS.format(first=201, last=300),
            "update every set late = 7, b = null, f8 = null where id % 9 = 0",
            "delete from every where id % 10 = 0",
        )
        synced.catch_up()
        synced.fold()
        require_filters(synced, "every", FILTERS, by_spark=True)


@pytest.mark.quick
def test_the_catalog_leads_to_the_table_that_has_a_name_after_renames_swaps_and_drops(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    tables = ("orders", "other", "gone")
    db.run(*(f"create table {table} (id int primary key, v text)" for table in tables))
    for n, table in enumerate(tables):
        db.run(f"insert into {table} select i, '{table} ' || i from generate_series({100 * n}, {100 * n + 9}) i")
    with syncing(db, tmp_path, spark, *tables, folds=False) as synced:
        synced.copy_all()
        require_catalog(synced, *tables)
        synced.until_known(synced.note(*tables))
        db.run(
            "alter table orders rename to old_orders; alter table other rename to orders",
            "insert into orders values (1000, 'after the swap')",
            "delete from old_orders where id = 3",
        )
        require_catalog(synced, "orders", "old_orders", "gone")
        gone = entry_of(synced.options.lake, "gone")
        db.run(
            "drop table gone", "create table gone (id int primary key, w text)", "insert into gone values (7, 'new')"
        )
        db.admin(f"alter publication {synced.options.names.publication} add table gone")
        synced.until(lambda: has_another(synced, gone))
        require_catalog(synced, "orders", "old_orders", "gone")
        require_dropped(synced, gone, list(range(200, 210)))
        assert synced.require_noted_here() == 3


def has_another(synced: Synced, before: dict[str, Any]) -> bool:
    """Whether the catalog leads to another table of a name than before, which can be read."""
    tables = catalog_of(synced.options.lake)["tables"]
    named = [each for each in tables if each["name"] == before["name"] and each["oid"] != before["oid"]]
    return any(each["state"] == "readable" for each in named)


def require_dropped(synced: Synced, before: dict[str, Any], held: list[int]) -> None:
    """A dropped table is listed as such; its Delta table has no rows, and an earlier version what it held last."""
    lake = synced.options.lake
    (entry,) = catalog_of(lake)["dropped"]
    assert (entry["oid"], entry["state"], entry["path"]) == (before["oid"], "dropped", before["path"])
    versions = lake / before["versions"]["path"]
    assert pa.table(DeltaTable(versions).to_pyarrow_table()).num_rows == 0
    earlier = pa.table(DeltaTable(versions, version=entry["last"]["delta_version"]).to_pyarrow_table())
    assert sorted(earlier["id"].to_pylist()) == held


def test_columns_are_named_by_what_they_are_stored_as_also_before_a_rename_is_folded(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(
        'create table t (id int primary key, v text, "V" int, "_end_lsn" int)',
        "create table empty (id int primary key)",
    )
    db.run("insert into t values (1, 'a', 2, 3)")
    with syncing(db, tmp_path, spark, "t", "empty", folds=False) as synced:
        synced.copy_all()
        synced.catch_up()
        names = {column["name"]: column["stored"] for column in entry_of(synced.options.lake, "t")["columns"]}
        assert names == {"id": "id", "v": "v", "V": "V~3", "_end_lsn": "_end_lsn~4"}
        db.run("alter table t rename v to renamed", "alter table t add more int default 5")
        synced.catch_up()
        names = {column["name"]: column["stored"] for column in entry_of(synced.options.lake, "t")["columns"]}
        assert names == {"id": "id", "renamed": "v", "V": "V~3", "_end_lsn": "_end_lsn~4", "more": None}
        db.run("update t set more = 6")
        synced.catch_up()
        synced.fold()
        entry = entry_of(synced.options.lake, "t")
        row = dict(zip(("id", "renamed", "V", "_end_lsn", "more"), (1, "a", 2, 3, 6), strict=True))
        stored = [column["stored"] for column in entry["columns"]]
        current = pa.table(delta_of(synced.options.lake, entry).to_pyarrow_table(filters=[("more", "=", 6)]))
        assert current.select(stored).rename_columns([c["name"] for c in entry["columns"]]).to_pylist() == [row]
        require_catalog(synced, "t", "empty")
    printed = shell("catalog", str(tmp_path / "lake"), program=NO_SPARK)
    assert printed.returncode == 0, printed.stderr
    assert f"public.t      table  readable  tables/{entry['oid']}/versions" in printed.stdout
    assert "The current rows are those of the versions with: _end_lsn is null." in printed.stdout
    as_json = shell("catalog", str(tmp_path / "lake"), "--json", program=NO_SPARK)
    assert json.loads(as_json.stdout) == catalog_of(tmp_path / "lake")


POINTS = (FailPoint.EVENTS_COMMITTED, FailPoint.CYCLE_COMMITTED, FailPoint.VERSIONS_ENDED)


def test_whenever_a_writer_ends_the_next_one_brings_the_catalog_up_to_date(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    names = [f"gone{n}" for n in range(len(POINTS))]
    db.run(*(f"create table {name} (id int primary key)" for name in (*names, "t")))
    with following(lakeside(db, tmp_path, spark, *names, "t")) as side:
        lake = side.options.lake
        db.run(*(f"insert into {name} values (1), (2)" for name in names))
        side.note(*names, "t")
        side.apply_all()
        side.fold()
        oids = {name: entry_of(lake, name)["oid"] for name in (*names, "t")}
        for number, point in enumerate(POINTS):
            db.run(
                f"drop table gone{number}",
                f"alter table t rename to gone{number}",
                f"insert into gone{number} values ({number})",
            )
            with striking(point), side.writing() as writer:
                writer.catch_up(side.position())
            require_there(lake)
            assert f"gone{number}" not in {each["name"] for each in catalog_of(lake)["dropped"]}
            side.apply_all()
            assert entry_of(lake, f"gone{number}")["oid"] == oids["t"]
            assert oids[f"gone{number}"] in {each["oid"] for each in catalog_of(lake)["dropped"]}
            assert require_there(lake) == len(POINTS) - number
            db.run(f"alter table gone{number} rename to t")
            side.apply_all()
        assert side.require_noted_now() == 1
        (lake / "catalog.json").unlink()
        (lake / "catalog.json.new").write_text("{")
        with side.writing():
            assert [entry_of(lake, "t")["oid"], len(catalog_of(lake)["dropped"])] == [oids["t"], len(POINTS)]
            assert require_there(lake) == 1


def test_a_dropped_table_can_be_read_until_it_is_out_of_the_window_and_then_is_not_named(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    db.run(
        "create table gone (id int primary key)", "create table t (id int primary key)", "insert into gone values (1)"
    )
    with syncing(db, tmp_path, spark, "gone", "t", folds=False) as synced:
        synced.copy_all()
        db.run("insert into gone values (2)")
        synced.note("gone")
        require_catalog(synced, "gone", "t")
        db.run("insert into gone values (3)")
        synced.note("gone")
        synced.catch_up()
        before = entry_of(lake, "gone")
        db.run("drop table gone", "insert into t values (1)")
        require_catalog(synced, "t")
        expire_lake(lake, ExpireOptions(keep_s=None, before=synced.notes[0].lsn, grace_s=0))
        require_dropped(synced, before, [1, 2])
        assert synced.require_noted_here() == 2
        expire_lake(lake, ExpireOptions(keep_s=None, before=synced.catch_up(), grace_s=0))
        (entry,) = catalog_of(lake)["dropped"]
        assert (entry["oid"], entry["last"]) == (before["oid"], None)
        assert require_there(lake) == 1
        assert not list((lake / before["versions"]["path"]).glob("*.parquet"))


def test_a_mirror_that_polls_keeps_its_catalog(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    db.run("create table orders (id int primary key)", "create table other (id int primary key)")
    db.run("insert into orders values (1)", "insert into other values (2), (3)")
    with polling(db, tmp_path, spark) as polled:
        polled.poll()
        swapped = {name: entry_of(lake, name)["oid"] for name in ("orders", "other")}
        db.run("alter table orders rename to gone; alter table other rename to orders", "insert into orders values (4)")
        polled.poll()
        polled.fold()
        assert entry_of(lake, "orders")["oid"] == swapped["other"]
        assert sorted(delta_of(lake, entry_of(lake, "orders")).to_pyarrow_table()["id"].to_pylist()) == [2, 3, 4]
        db.run("drop table gone")
        polled.poll()
        (entry,) = catalog_of(lake)["dropped"]
        assert entry["oid"] == swapped["orders"]
        assert require_there(lake) == 1


def test_a_partitioned_table_is_what_the_catalog_says_its_partitions_are(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    db.run(
        "create table root (id int primary key, v text) partition by range (id)",
        "create table low partition of root for values from (0) to (100)",
        "create table high partition of root for values from (100) to (200)",
        "create table parent (id int primary key)",
        "create table child (primary key (id)) inherits (parent)",
        "insert into root select i, 'v' from generate_series(50, 150, 10) i",
        "insert into parent values (1)",
        "insert into child values (2)",
    )
    with syncing(db, tmp_path, spark, "low", "high", "only parent", "child", folds=False) as synced:
        synced.copy_all()
        synced.catch_up()
        synced.fold()
        root, parent = entry_of(lake, "root"), entry_of(lake, "parent")
        assert (root["kind"], root["state"], root["versions"]) == ("partitioned table", "readable", None)
        entries = {entry["oid"]: entry for entry in catalog_of(lake)["tables"]}
        found = [
            row
            for oid in root["partitions"]
            for row in delta_of(lake, entries[oid]).to_pyarrow_table()["id"].to_pylist()
        ]
        assert sorted(found) == list(range(50, 151, 10))
        assert (parent["kind"], parent["children"]) == ("inheritance parent", [entry_of(lake, "child")["oid"]])
        db.admin(f"alter publication {synced.options.names.publication} drop table high")
        synced.until(lambda: entry_of(lake, "root")["state"] == "waiting")
        assert "high" in entry_of(lake, "root")["reason"]
