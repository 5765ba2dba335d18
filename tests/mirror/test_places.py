"""Reads of tables whose keys are not one integer: changed rows are left out by their places, as by their keys."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.database import Database
from harness.lake import Lakeside, following, lakeside
from harness.outside import path_of
from harness.syncing import syncing
from tests.conftest import NEWEST
from tidemark.lake.versions import read_versions
from tidemark.pipeline.fold import compactor
from tidemark.pipeline.sinks import lake_sink
from tidemark.reads import places, planning
from tidemark.reads.places import MOST_FILES, Places, _modulus

pytestmark = pytest.mark.quick

ROWS, BUCKETS = 25_000, 4
TABLES = {
    "by_text": ("k text primary key", "md5(i::text)"),
    "by_pair": ("a int, b date, primary key (b, a)", "i / 50, date '2020-01-01' + i % 50"),
    "by_number": ("k numeric primary key", "i / 8.0"),
    "by_float": ("k float8 primary key", "case when i = 1 then 'NaN' when i = 2 then '-0' else i / 4.0 end"),
    "by_time": ("k timestamptz primary key", "timestamptz '2020-01-01' + i * interval '1 s'"),
    "by_bytes": ("k bytea primary key", "decode(md5(i::text), 'hex')"),
}
KEYS = {"by_pair": "a, b"}


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Places | None]:
    """The places that reads have found, and None where they have not."""
    results: list[Places | None] = []

    def places_of(*given: object) -> Places | None:
        results.append(places.places_of(*given))  # type: ignore[arg-type]
        return results[-1]

    monkeypatch.setattr(places, "WORTH_ROWS", 1)
    monkeypatch.setattr(compactor, "bucket_count", lambda *_: BUCKETS)
    monkeypatch.setattr(planning, "places_of", places_of)
    return results


def live_files(side: Lakeside, table: str) -> int:
    versions = read_versions(side.options.lake, path_of(side.options.lake, table))
    assert versions is not None
    return len(versions.live)


def indexes(side: Lakeside, table: str) -> int:
    return len(list((side.options.lake / path_of(side.options.lake, table) / "versions").glob("_live-*.keys")))


def changed(table: str) -> list[str]:
    """Rows with other values, some of them twice, rows that are gone, and new ones."""
    key = KEYS.get(table, "k")
    mine = "ctid in (select ctid from {} order by {} limit {} offset {})"
    return [
        f"update {table} set v = 'changed' where {mine.format(table, key, 300, 100)}",
        f"delete from {table} where {mine.format(table, key, 200, 5000)}",
        f"insert into {table} select {TABLES[table][1]}, 'new' from generate_series(1000001, 1000300) i",
        f"update {table} set v = 'twice' where {mine.format(table, key, 100, 350)}",
    ]


@pytest.mark.spark
@NEWEST
def test_changed_rows_are_left_out_by_their_places_whatever_the_key(
    db: Database, spark: SparkSession, tmp_path: Path, found: list[Places | None], short: bool
) -> None:
    tables = ["by_text", "by_pair"] if short else list(TABLES)
    for table in tables:
        columns = TABLES[table][0].split(", primary key (")
        constraint = f", primary key ({columns[1]}" if len(columns) > 1 else ""
        db.run(f"create table {table} ({columns[0]}, v text{constraint})")
    with following(lakeside(db, tmp_path, spark, *tables)) as side:
        for table in tables:
            db.run(f"insert into {table} select {TABLES[table][1]}, 'old' from generate_series(1, {ROWS}) i")
        side.apply_all()
        side.fold()
        for table in tables:
            assert indexes(side, table) == live_files(side, table) == BUCKETS
            for statement in changed(table):
                db.run(statement)
        side.note(*tables)
        side.apply_all()
        side.require_noted_now()
        assert len(found) == len(tables)
        assert all(found), "no places"
        side.fold()
        for table in tables:
            assert indexes(side, table) >= live_files(side, table)
        side.require_noted_now()


@pytest.mark.full
@pytest.mark.spark
@NEWEST
def test_copied_rows_have_places_too(
    db: Database,
    spark: SparkSession,
    tmp_path: Path,
    found: list[Places | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lake_sink, "buckets_for", lambda _: 3)
    times = "case when i % 5000 = 0 then 'infinity' else timestamptz '2020-01-01' + i * interval '1 s' end"
    db.run(
        "create table t (name text, at timestamptz, v int, primary key (name, at))",
        f"insert into t select 'name ' || i, {times}, 0 from generate_series(1, {ROWS}) i",
    )
    with syncing(db, tmp_path, spark, "t", folds=False) as synced:
        synced.copy_all()
        db.run("update t set v = 1 where at = 'infinity' or name like '%77'", "delete from t where name like '%88'")
        synced.note("t")
        synced.require_noted()
        assert found
        assert all(found)
        versions = tmp_path.glob("**/versions/_live-*.keys")
        assert len(list(versions)) >= 3


@pytest.mark.full
@pytest.mark.spark
@NEWEST
def test_values_that_were_not_sent_come_from_rows_that_are_left_out(
    db: Database, spark: SparkSession, tmp_path: Path, found: list[Places | None]
) -> None:
    db.run("create table t (k text primary key, n int, v text)", "alter table t alter v set storage external")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        db.run(f"insert into t select md5(i::text), i, 'v' from generate_series(1, {ROWS}) i")
        db.run("update t set v = repeat('large ', 1000) where n % 1000 = 0")
        side.apply_all()
        side.fold()
        db.run("update t set n = -n where n % 500 = 0", "update t set k = 'key ' || n where n % 700 = 0")
        side.note("t")
        side.apply_all()
        side.require_noted_now()
        assert len(found) == 1
        assert found[0] is not None


@pytest.mark.full
@pytest.mark.spark
@NEWEST
def test_places_are_not_used_where_they_could_not_be_right(
    db: Database, spark: SparkSession, tmp_path: Path, found: list[Places | None]
) -> None:
    db.run(
        "create table t (a numeric(8,2), b text, v int, primary key (a, b))",
        "create table m (_metadata text primary key)",
    )
    with following(lakeside(db, tmp_path, spark, "t", "m")) as side:
        db.run(
            "insert into t values ('NaN', 'b', 0)",
            f"insert into t select i, 'b', 0 from generate_series(1, {ROWS}) i",
            f"insert into m select i from generate_series(1, {ROWS}) i",
        )
        side.apply_all()
        side.fold()
        db.run("delete from m where _metadata like '%7'", "update t set v = 1 where a % 100 = 0")
        side.note("t", "m")
        side.apply_all()
        side.require_noted_now()
        assert [each is None for each in found] == [False, True], "a column `_metadata` hides the places"
        db.run("alter table t alter a type numeric", "update t set v = 2 where a % 90 = 0")
        side.apply_all()
        side.notes.clear()
        side.note("t")
        side.apply_all()
        found.clear()
        side.require_noted_now()
        assert not any(found), "the files have keys of another type"


def test_a_number_is_found_modulo_which_all_sizes_differ() -> None:
    chance = random.Random(1)  # noqa: S311 - the same every time
    for count in (0, 1, 2, 8, 100, MOST_FILES):
        sizes = chance.sample(range(1, 1 << 26), count)
        modulus = _modulus(sizes)
        assert modulus is not None
        assert len({size % modulus for size in sizes}) == count
    assert _modulus([5, 7, 5]) is None
    assert _modulus(range(MOST_FILES + 1)) is None
