"""DDL: what is only metadata reads on, what may have changed values ends in a gap, and nothing is guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.database import Database
from harness.lake import Lakeside, following, lakeside
from tests.conftest import NEWEST
from tidemark.clock import Lsn
from tidemark.errors import InvalidValue, NotAnswerable

pytestmark = pytest.mark.quick


@pytest.mark.full
def test_columns_added_dropped_renamed_and_widened_read_back_at_every_commit(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key, a int, b numeric(6,2), c varchar(10))")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        side.run_and_note(["insert into t values (1, 10, 1.50, 'one'), (2, 20, 2.25, 'two')"], "t")
        for ddl, dml in [
            ("alter table t add column d int default 7", "insert into t values (3, 30, 3, 'three', 3)"),
            ("alter table t rename column a to z", "update t set z = z + 1 where id = 1"),
            ("alter table t drop column z", "update t set d = 8 where id = 2"),
            ("alter table t add column a text", "update t set a = 'new' where id = 3"),
            ("alter table t alter column b type numeric(12,2)", "insert into t values (4, 123456789.01, 'four')"),
            ("alter table t alter column c type text", "update t set c = repeat('long', 9) where id = 4"),
            (
                "alter table t add column ts timestamptz default 'infinity'",
                "insert into t (id, ts) values (5, '2020-01-01')",
            ),
            ("alter table t alter column b type numeric", "update t set b = 0.123456789 where id = 1"),
        ]:
            side.apply_all()
            db.run(ddl)
            side.apply_all()  # between a change and the look that sees it a table is refused
            side.note("t")
            side.run_and_note([dml], "t")
        side.apply_all()
        assert side.require_noted() == 17


@pytest.mark.full
@NEWEST
def test_a_column_dropped_and_added_again_under_its_name_is_another_column(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key, a int)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        side.run_and_note(["insert into t values (1, 10), (2, 20)"], "t")
        side.apply_all()
        db.run("alter table t drop column a, add column a int")
        side.apply_all()
        side.note("t")
        side.run_and_note(["insert into t values (3, 30)"], "t")
        side.apply_all()
        side.require_noted()


@pytest.mark.full
@NEWEST
def test_between_two_looks_a_definition_is_not_known_and_reads_there_are_refused(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key)", "create table u (id int primary key)")
    with following(lakeside(db, tmp_path, spark, "t", "u")) as side:
        before = side.apply_all()
        db.run("insert into u values (1)")
        between = side.position()
        db.run("alter table t add column a int")
        after = side.apply_all()
        mirror = side.open()
        assert mirror.at(before).table("t").columns == ["id"]
        assert mirror.at(after).table("t").columns == ["id", "a"]
        assert mirror.at(between).table("u").count() == 1
        with pytest.raises(NotAnswerable, match=r"altered between two catalog snapshots: column 'a' added") as refused:
            mirror.at(between).table("t")
        since = refused.value.hint.rpartition("from ")[2].removesuffix(" on.")
        assert between < Lsn.parse(since) <= after
        assert mirror.at(since).table("t").columns == ["id", "a"]


@pytest.mark.full
@NEWEST
def test_a_table_altered_and_written_before_anyone_looked_is_looked_at_then(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key)")
    with following(lakeside(db, tmp_path, spark, "t")) as side, side.writing() as writer:
        side.run_and_note(["insert into t values (1)"], "t")
        writer.catch_up(side.position())
        db.run("alter table t add column a int default 5; insert into t values (2, 6)")
        side.mirror.catch_up()
        assert writer.apply() is not None
        side.note("t")
        writer.catch_up(side.position())
        assert side.require_noted() == 2


@NEWEST
def test_a_definition_that_nobody_saw_is_a_gap_and_stays_one(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        side.run_and_note(["insert into t values (1)"], "t")
        side.apply_all()
        db.run("alter table t add column b int", "insert into t values (2, 2)")
        db.run("alter table t add column c int", "insert into t values (3, 3, 3)")
        after = side.apply_all()
        side.apply_all()
        assert side.require_noted() == 1
        with pytest.raises(NotAnswerable, match="altered more than once"):
            side.open().at(after).table("t")


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("alter table t alter column a type bigint using a * 100", "changed its type from pg_catalog.int4"),
        pytest.param(
            "alter table t alter column a type int using a * 100", "rewritten and altered", marks=pytest.mark.full
        ),
        pytest.param(
            "alter type mood rename value 'fine' to 'good'", "changed its type from public.mood", marks=pytest.mark.full
        ),
        pytest.param(
            "alter table t drop constraint t_pkey, add primary key (a)", "its key changed from", marks=pytest.mark.full
        ),
    ],
)
def test_ddl_that_may_have_changed_values_is_a_gap(
    db: Database, spark: SparkSession, tmp_path: Path, ddl: str, reason: str
) -> None:
    db.run("create type mood as enum ('sad', 'fine')", "create table t (id int primary key, a int, m mood)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        side.run_and_note(["insert into t values (1, 1, 'fine'), (2, 2, 'sad')"], "t")
        side.apply_all()
        db.run(ddl, "insert into t values (3, 3, 'sad')")
        after = side.apply_all()
        assert side.require_noted() == 1
        with pytest.raises(NotAnswerable, match=reason):
            side.open().at(after).table("t")
        db.run("truncate t")
        side.apply_all()
        side.run_and_note(["insert into t values (4, 4, 'sad')"], "t")
        side.apply_all()
        assert side.require_noted() == 2


@NEWEST
def test_a_table_dropped_and_another_of_its_name_are_told_apart(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key, a int)", "create table other (id int primary key)")
    with following(lakeside(db, tmp_path, spark, "t", "other")) as side:
        side.run_and_note(["insert into t values (1, 1)"], "t")
        side.apply_all()
        db.run("drop table t", "create table t (id text primary key)")
        db.admin(f"alter publication {side.mirror.publications[0]} add table t")
        after = side.apply_all()
        side.run_and_note(["insert into t values ('x')"], "t")
        side.apply_all()
        side.require_noted()
        assert side.open().at(after).table("t").count() == 0
        db.run("drop table t")
        gone = side.apply_all()
        with pytest.raises(NotAnswerable, match="dropped"):
            side.open().at(gone).table("t")


@pytest.mark.full
@NEWEST
def test_a_table_that_held_rows_before_is_refused_and_says_what_it_needs(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key)", "insert into t values (1)", "create table u (id int primary key)")
    with following(lakeside(db, tmp_path, spark, "t", "u")) as side:
        db.run("insert into t values (2)", "insert into u values (1)")
        side.apply_all()
        mirror = side.open()
        assert mirror.table("u").count() == 1
        with pytest.raises(NotAnswerable, match="has rows that have not been copied yet"):
            mirror.table("t")
        with pytest.raises(InvalidValue, match=r"table public\.v does not exist"):
            mirror.table("v")


@pytest.mark.full
@NEWEST
def test_a_table_waits_until_transactions_older_than_its_publication_have_ended(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key)", "create table elsewhere (id int)")
    with db.connect() as older, following(lakeside(db, tmp_path, spark, "t")) as side:
        db.run("create table u (id int primary key)")
        older.autocommit = False
        older.execute("insert into elsewhere values (1)")
        db.admin(f"alter publication {side.options.names.publication} add table u")
        with side.writing() as writer:
            for _ in range(3):
                writer.catch_up(side.position())
                db.run("insert into elsewhere values (2)")
        with pytest.raises(
            NotAnswerable, match="transactions that began before the table was published have not ended"
        ):
            side.open().table("u")
        older.commit()
        side.apply_all()
        side.run_and_note(["insert into u values (1)"], "t", "u")
        side.apply_all()
        assert side.require_noted() == 1


@pytest.mark.full
@NEWEST
def test_a_table_whose_updates_are_not_published_is_not_shown_as_if_they_were(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int)", "create table u (id int primary key)")
    side = lakeside(db, tmp_path, spark, "u")
    inserts = side.options.names.inserts_publication
    generated = ", publish_generated_columns = stored" if db.server.install.major >= 18 else ""
    db.admin(f"create publication {inserts} for table t with (publish = 'insert, truncate'{generated})")
    _accept(side)
    with following(side):
        db.run("insert into t values (1)", "update t set id = 2")
        side.apply_all()
        with pytest.raises(NotAnswerable, match="no replica identity"):
            side.open().table("t")


def _accept(side: Lakeside) -> None:
    """Have the log begin with the publications as they are now."""
    from harness.mirrored import take_over_slot

    take_over_slot(side.mirror.options)
