"""Keys that are dropped, replaced and put back between two looks: what was done meanwhile is not guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import Database
from harness.lake import following, lakeside
from tests.conftest import NEWEST, installs_from, quick_only
from tidemark.errors import NotAnswerable

pytestmark = pytest.mark.quick

install = installs_from(16)
TABLE = "create table t (id int primary key, u int not null unique, v text)"
DROP, RESTORE = "alter table t drop constraint t_pkey", "alter table t add primary key (id)"
FULL, DEFAULT = "alter table t replica identity full", "alter table t replica identity default"
BY_U = "alter table t replica identity using index t_u_key"
TWICE = ("update t set id = 1", "delete from t where u = 10")

BETWEEN = {
    "another key names what is deleted": (DROP, BY_U, "delete from t where u = 20", DEFAULT, RESTORE),
    "another key names what is updated": (DROP, BY_U, "update t set u = 30 where u = 20", DEFAULT, RESTORE),
    "in one transaction": ("; ".join(["begin", DROP, BY_U, "delete from t where u = 20", DEFAULT, RESTORE, "commit"]),),
    "a key twice while whole rows are sent": (FULL, DROP, *TWICE, RESTORE, DEFAULT),
}


@NEWEST
@pytest.mark.parametrize("name", quick_only(BETWEEN, "in one transaction"))
def test_what_came_under_another_key_is_a_gap(name: str, db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run(TABLE)
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        side.run_and_note(["insert into t values (1, 10, 'a'), (2, 20, 'b')"], "t")
        side.apply_all()
        db.run(*BETWEEN[name])
        upto = side.apply_all()
        with pytest.raises(NotAnswerable, match="copies the table again"):
            side.open().at(upto).table("t")
        assert side.require_noted() == 1


@NEWEST
def test_a_key_that_was_gone_while_whole_rows_were_sent_is_a_gap(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(TABLE, FULL)
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        side.run_and_note(["insert into t values (1, 10, 'a'), (2, 20, 'b')"], "t")
        side.apply_all()
        db.run(DROP, *TWICE, RESTORE)
        upto = side.apply_all()
        with pytest.raises(NotAnswerable, match="it had no key for some time"):
            side.open().at(upto).table("t")
        assert side.require_noted() == 1


@pytest.mark.full
@NEWEST
def test_what_is_not_applied_yet_goes_by_no_definition_of_long_ago(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(TABLE)
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        for ddl in (FULL, DEFAULT):
            db.run(ddl)
            side.apply_all()
        db.run("insert into t values (1, 10, 'a'), (2, 20, 'b')")
        side.apply_all()
        db.run(FULL, DROP, *TWICE, RESTORE, DEFAULT)
        mirror = tidemark.open(side.options.lake, spark, source=side.options.source)
        with mirror.at("now") as now, pytest.raises(NotAnswerable, match="altered, and the change is not applied yet"):
            now.table("t")
        mirror.close()


@pytest.mark.full
def test_a_table_reads_on_through_changes_of_how_its_rows_are_named(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(TABLE)
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        side.run_and_note(["insert into t values (1, 10, 'a'), (2, 20, 'b')"], "t")
        side.apply_all()
        for n, ddl in enumerate((FULL, DEFAULT, f"{DROP}; {RESTORE}", "reindex table concurrently t"), 3):
            db.run(*ddl.split("; "))
            side.apply_all()
            side.run_and_note([f"insert into t values ({n}, {n}0, 'c')", f"update t set v = '{n}' where id = 1"], "t")
            side.run_and_note([f"delete from t where id = {n - 1}"], "t")
            side.apply_all()
        assert side.require_noted() == 13


INCLUDED = "create table t (id int, w int, v text, primary key (id) include (v))"


@pytest.mark.parametrize("replica", quick_only((DEFAULT, FULL), DEFAULT))
def test_included_columns_are_not_taken_for_the_key(
    replica: str, db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(INCLUDED, replica)
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        side.run_and_note(["insert into t values (1, 1, 'a'), (2, 2, 'b')", "delete from t where id = 1"], "t")
        side.apply_all()
        assert side.require_noted() == 2
