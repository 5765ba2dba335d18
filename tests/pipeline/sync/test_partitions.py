"""A partitioned table is what its partitions are together, wherever a read stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import Database
from harness.lake import Row, by_spark, spread
from harness.syncing import Synced, syncing
from tests.conftest import NEWEST
from tidemark.clock import Lsn
from tidemark.errors import NotAnswerable

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]


def whole(db: Database) -> tuple[Lsn, list[Row]]:
    """Where the source is, and what the root holds there, as it is printed."""
    rows = db.admin("select id::text, v, day::text from root order by root.id")
    return Lsn.parse(db.admin("select pg_current_wal_insert_lsn()::text")[0][0]), rows


def require(synced: Synced, noted: list[tuple[Lsn, list[Row]]]) -> None:
    mirror = tidemark.open(synced.options.lake, synced.spark)
    for lsn, rows in spread(noted):
        columns, found = by_spark(mirror.at(lsn).table("root"))
        assert columns == ("id", "v", "day")
        assert sorted(found.elements(), key=lambda row: int(row[0] or 0)) == rows, lsn


def test_the_root_is_the_union_of_its_leaves_through_attach_detach_and_truncate(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(
        "create table root (id int, v text, day date, primary key (id)) partition by range (id)",
        "create table low partition of root for values from (0) to (100)",
        "create table middle partition of root for values from (100) to (300) partition by range (id)",
        "create table m1 partition of middle for values from (100) to (200)",
        "create table m2 (day date, gone int, id int not null, v text, primary key (id))",
        "alter table m2 drop gone",
        "alter table middle attach partition m2 for values from (200) to (300)",
        "insert into root select i, 'v' || i, case when i % 50 = 0 then 'infinity' else date '2024-01-01' + i end "
        "from generate_series(1, 299, 7) i",
        "create table apart (id int primary key, v text, day date)",
        "insert into apart values (301, 'apart', null)",
    )
    with syncing(db, tmp_path, spark, "low", "m1", "m2", "apart") as synced:
        synced.copy_all()
        synced.catch_up()
        noted = [whole(db)]
        db.run("update root set v = 'x' where id % 2 = 0", "update root set id = 250 where id = 8")
        noted.append(whole(db))
        synced.catch_up()
        for ddl in (
            "alter table root attach partition apart for values from (300) to (400)",
            "truncate m1",
            "alter table root detach partition low",
        ):
            db.run(ddl)
            synced.catch_up()
            noted.append(whole(db))
            synced.catch_up()
        require(synced, noted)
        mirror = tidemark.open(synced.options.lake, spark)
        moment = mirror.at(noted[1][0])
        assert moment.sql("select v from root where id = 250").collect()[0][0] == "x"
        assert {"public.root", "public.middle", "public.low"} <= set(moment.tables)
        assert moment.sql("select * from only root").collect() == db.admin("select * from only root") == []
        with pytest.raises(NotAnswerable, match="no changes of its own"):
            moment.changes("root", noted[0][0])
        db.run("create table more partition of root for values from (400) to (500)", "insert into root values (450)")
        synced.catch_up()
        with pytest.raises(NotAnswerable, match="is not mirrored"):
            mirror.at().table("root")
        require(synced, noted)
        db.admin(f"alter publication tidemark_{db.name} add table more")
        synced.until(lambda: any("public.more: copied" in each for each in synced.said))
        synced.catch_up()
        noted.append(whole(db))
        synced.catch_up()
        require(synced, noted)
        db.run("drop table root")
        synced.catch_up()
        with pytest.raises(NotAnswerable, match="dropped"):
            mirror.at().table("root")
        require(synced, noted)
