"""A mirror that polls shows a parent with the rows of the tables that inherit from it, as each poll saw the tree."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import Database
from harness.mirrored import eventually
from harness.polled import polling
from tests.conftest import NEWEST
from tests.pipeline.poll.test_observed import syncing
from tidemark.errors import NotAnswerable
from tidemark.mirror.compare.comparison import Compared, CompareOptions, Comparison
from tidemark.mirror.compare.narrowing import Verdict
from tidemark.schema.selection import Pattern, Selection

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]

TREE = (
    "create table parent (id int primary key, v text)",
    "create table one (extra text, primary key (id)) inherits (parent)",
    "create table two (other int, primary key (id)) inherits (parent)",
    "create table three () inherits (one, two)",
    "create table apart (v text, id int not null)",
    "insert into parent select i, 'parent' from generate_series(1, 9) i",
    "insert into one select i, 'one', 'extra' from generate_series(5, 14) i",
    "insert into two select i, 'two', i from generate_series(21, 25) i",
    "insert into three select i, 'three', 'extra', i from generate_series(1, 40, 3) i",
    "insert into apart select 'apart', i from generate_series(3, 50, 10) i",
)
READ = ("parent", "only parent", "one", "only one", "three")


def test_every_poll_shows_the_tree_that_its_snapshot_shows(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    db.run(*TREE)
    with polling(db, tmp_path, spark) as mirror:
        mirror.poll(*READ)
        for statements in (
            ("alter table apart inherit parent", "update parent set v = v || '!' where id % 3 = 0"),
            ("alter table parent rename v to w", "create table new () inherits (three)", "insert into new values (9)"),
            ("alter table one no inherit parent", "truncate only two"),
            ("drop table three cascade", "insert into apart values ('more', 60)"),
        ):
            db.run(*statements)
            mirror.poll(*(READ if "drop" not in statements[0] else READ[:-1]))
        assert len(mirror.notes) == 5
        mirror.require_noted()


def compared(lake: Path, spark: SparkSession, db: Database) -> list[Compared]:
    """The result for every table; none while the snapshot is that of a poll that began before the TRUNCATE."""
    done = list(Comparison(tidemark.open(lake, spark), db.dsn(), CompareOptions()).run())
    early = [each for each in done if each.verdict is Verdict.NOT_COMPARED and "was truncated" in each.reason]
    return done if not early else []


def test_a_parent_is_compared_as_the_poll_saw_it_and_alone(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    db.run(*TREE)
    lake = tmp_path / "lake"
    with syncing(db, lake, spark):
        db.run("alter table apart inherit parent", "truncate only two", "insert into two values (70)")
        for done in eventually(lambda: compared(lake, spark, db)):
            assert done.verdict is Verdict.EQUAL, done
            assert done.source is not None
            table = f"{'only ' * done.only}{done.table}"
            assert db.admin(f"select count(*) from {table}") == [(done.source.rows,)], table


def test_a_child_that_is_not_polled_is_named_and_the_parent_refused(
    db: Database, tmp_path: Path, spark: SparkSession
) -> None:
    db.run(*TREE, "create unlogged table unlogged () inherits (apart)", "revoke select on two from mirror")
    selection = Selection((Pattern("parent"), Pattern("apart")), (Pattern("three"),))
    with polling(db, tmp_path, spark, selection) as mirror:
        mirror.poll()
        moments = tidemark.open(mirror.options.lake, spark)
        assert moments.at().tables == ("public.apart", "public.one", "public.parent", "public.two")
        for table, why in (
            ("apart", r"public\.unlogged \(oid \d+\), one of its inheritance children, is not mirrored"),
            ("one", r"public\.three \(oid \d+\), one of its inheritance children, is not mirrored"),
            ("parent", r"public\.(two cannot be read at .*no SELECT privilege|three \(oid \d+\), .* is not mirrored)"),
        ):
            with pytest.raises(NotAnswerable, match=rf"public\.{table} cannot be read at .*{why}"):
                moments.at().table(table)
        db.run("drop table unlogged", "drop table three", "grant select on two to mirror")
        mirror.require_equal(*READ[:-1], "apart")
