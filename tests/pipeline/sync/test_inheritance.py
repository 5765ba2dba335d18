"""A table from which others inherit shows their rows as well, as PostgreSQL does, at every position of a mirror."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import tidemark
from harness.database import MIRROR, Database
from harness.lake import following, lakeside
from harness.postgres import installs
from harness.syncing import publish, syncing
from tests.conftest import NEWEST
from tidemark.clock import Lsn
from tidemark.errors import NotAnswerable
from tidemark.pipeline.sinks import lake_sink

pytestmark = [pytest.mark.full, pytest.mark.spark]

# A diamond, a key that is there twice, values that are kept as text in children only, and columns in another order.
TREE = (
    "create table parent (id int primary key, v text, day date)",
    "create table one (extra text, primary key (id)) inherits (parent)",
    "create table two (other int, primary key (id)) inherits (parent)",
    "create table three (primary key (id)) inherits (one, two)",
    "create table apart (more int, day date, gone int, v text, id int not null, primary key (id))",
    "alter table apart drop gone",
    "insert into parent select i, 'parent', date '2024-01-01' + i from generate_series(1, 9) i",
    "insert into one select i, 'one', null, 'extra' from generate_series(5, 14) i",
    "insert into two select i, 'two', 'infinity', i from generate_series(21, 25) i",
    "insert into three select i, 'three', date '2024-02-29', 'extra', i from generate_series(1, 40, 3) i",
    "insert into apart select i, '0044-03-15 BC', 'apart', i from generate_series(3, 50, 10) i",
)
PUBLISHED = ("only parent", "only one", "only two", "only three", "only apart")
READ = ("parent", "only parent", "one", "only one", "three")


def kinds(frame: DataFrame) -> Counter[str]:
    return Counter(row["_change_type"] for row in frame.collect())


@pytest.mark.quick
@NEWEST
def test_a_parent_shows_the_rows_of_every_table_that_inherits_from_it_once(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(*TREE)
    with syncing(db, tmp_path, spark, *PUBLISHED, folds=False) as synced:
        synced.copy_all()
        before = synced.note("parent", "only parent")
        synced.catch_up(before)  # so that the definition there is known before the table is altered
        db.run("update parent set v = 'x' where id % 2 = 0", "alter table apart inherit parent")
        synced.catch_up()
        synced.note("parent", "only parent")
        synced.require_noted()
        mirror = tidemark.open(synced.options.lake, spark)
        with mirror.at() as moment:
            counts = "select (select count(*) from parent *), (select count(*) from only public.parent)"
            assert moment.sql(counts).collect() == db.admin(counts)
            for statement in (
                "select id, v from parent where id = 7 order by v",
                "select v from parent where id = 13 and exists (select 1 from one where id = 7 and extra = 'extra')",
                "select p.v from only (parent) p, parent q where p.id = q.id and q.id = 4 order by 1",
            ):
                assert moment.sql(statement).collect() == db.admin(statement), statement
            with pytest.raises(NotAnswerable, match=r"public\.apart, public\.one, public\.two inherit from parent"):
                moment.changes("parent", before)
            with pytest.raises(NotAnswerable, match="must be read alone"):
                moment.history("parent", 4)
            assert kinds(moment.changes("parent", before, only=True)) == {"update_postimage": 4}
            assert [row["v"] for row in moment.history("parent", 4, only=True).collect()] == ["parent", "x"]
            assert kinds(moment.diff("parent", before, only=True)) == {"update_preimage": 4, "update_postimage": 4}
            changed, joined = 4 + 5 + 2 + 7, 5
            assert kinds(moment.diff("parent", before)) == {"delete": changed, "insert": changed + joined}


@pytest.mark.parametrize("folds", [False, True], ids=["unfolded", "folded"])
@NEWEST
def test_reads_follow_the_tree_as_it_was_at_their_position(
    db: Database, spark: SparkSession, tmp_path: Path, folds: bool
) -> None:
    db.run(*TREE)
    with syncing(db, tmp_path, spark, *PUBLISHED, folds=False) as synced:
        synced.copy_all()
        synced.catch_up()
        synced.note(*READ)
        unknown: list[Lsn] = []
        for ddl in (
            "alter table apart inherit parent",
            "update parent set v = v || '!' where id % 3 = 0",
            "alter table parent rename v to w",
            "alter table parent add column added int default 7",
            "truncate only two",
            "alter table one rename to uno",
            "alter table uno rename to one",
            "alter table parent drop column day",
            "alter table one no inherit parent",
            "delete from parent where id > 30",
            "alter table one inherit parent",
            "drop table three",
            "alter table apart no inherit parent",
        ):
            db.run(ddl)
            if ddl.endswith("inherit parent"):
                unknown.append(synced.replication.position())
                db.run("insert into parent (id) select max(id) + 1 from only parent")
            synced.catch_up()
            if folds:
                synced.fold()
            names = {name for (name,) in db.admin("select relname::text from pg_class where relkind = 'r'")}
            synced.note(*(table for table in READ if table.removeprefix("only ") in names))
            synced.catch_up()
        synced.require_noted()
        mirror = tidemark.open(synced.options.lake, spark)
        for lsn in unknown:
            with pytest.raises(
                NotAnswerable, match=r"public\.parent cannot be read at .* altered between two catalog snapshots"
            ):
                mirror.at(lsn).table("parent")
        db.run("drop table parent cascade")
        synced.catch_up()
        with pytest.raises(NotAnswerable, match="dropped"):
            mirror.at().table("parent")
        synced.require_noted_here()


@NEWEST
def test_types_that_change_in_a_whole_tree_are_read_as_they_were(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(*TREE)
    with syncing(db, tmp_path, spark, *PUBLISHED, folds=False) as synced:
        synced.copy_all()
        synced.catch_up()
        synced.note(*READ)
        for ddl in ("alter day type timestamp", "alter v type varchar(20)", "alter v type text"):
            before, whole = len(synced.said), ddl != "alter v type text"
            db.run(f"alter table parent {ddl}", "update three set day = day + interval '1 s'")
            copied = {f"public.{table}: copied" for table in ("parent", "one", "two", "three") if whole}
            synced.until(lambda: all(any(each in said for said in synced.said[before:]) for each in copied))  # noqa: B023
            synced.catch_up()
            synced.note(*READ)
            synced.catch_up()
        synced.require_noted()


@NEWEST
def test_a_child_that_cannot_be_read_is_named_and_the_parent_refused(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(*TREE, "alter table apart inherit parent")
    names = publish(db, "only parent", "only one", "only two", "only three", inserts="only apart")
    with syncing(db, tmp_path, spark, folds=False) as synced:
        synced.until(lambda: not synced.replication.copies and sum(" copied" in each for each in synced.said) == 4)
        synced.catch_up()
        mirror = tidemark.open(synced.options.lake, spark)

        def refused(what: str) -> None:
            synced.catch_up()
            with mirror.at() as moment:
                with pytest.raises(NotAnswerable, match=rf"public\.parent cannot be read at .*{what}") as error:
                    moment.table("parent")
                assert "Or read ONLY public.parent" in error.value.hint
                assert moment.table("parent", only=True).count() == 9
                assert moment.table("two").count() == db.admin("select count(*) from two")[0][0]

        refused(r"public\.apart cannot be read at .*no replica identity")
        db.run("alter table apart no inherit parent")
        synced.catch_up()  # the LSN of a comparison must be at or above the catalog snapshot that shows the new tree
        synced.require_equal("parent")
        for create, dropped in (
            ("create table late (primary key (id)) inherits (parent)", "table"),
            ("create unlogged table late (primary key (id)) inherits (parent)", "table"),
            ("create foreign table late () inherits (parent) server nowhere", "foreign table"),
        ):
            if dropped == "foreign table":
                db.admin("create foreign data wrapper w", "create server nowhere foreign data wrapper w")
            db.admin(create)
            refused(r"public\.late \(oid \d+\), one of its inheritance children, is not mirrored")
            db.admin(f"drop {dropped} late")
            synced.catch_up()
            synced.require_equal("parent")
        db.run("create table late (primary key (id)) inherits (parent)", "insert into late values (77, 'late')")
        refused("is not mirrored")
        db.admin(f"alter publication {names.publication} add table only late")
        synced.until(lambda: any("public.late: copied" in each for each in synced.said))
        synced.require_equal("parent", "late")


@NEWEST
def test_without_a_copy_a_child_that_waits_for_one_is_named(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table parent (id int primary key)", "create table child (primary key (id)) inherits (parent)")
    with following(lakeside(db, tmp_path, spark, "only parent")) as side:
        db.run("insert into child values (1)", "insert into parent values (2)")
        db.admin(f"alter publication {db.names.publication} add table only child")
        side.apply_all()
        moment = side.open().at()
        with pytest.raises(
            NotAnswerable, match=r"public\.parent cannot be read.*public\.child.*have not been copied yet"
        ):
            moment.table("parent")
        assert moment.sql("select id from only parent").collect() == [(2,)]


@NEWEST
def test_now_shows_the_tree_that_a_session_sees_or_refuses_the_parent(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(*TREE)
    with syncing(db, tmp_path, spark, *PUBLISHED, folds=False) as synced:
        synced.copy_all()
        synced.catch_up()
        mirror = tidemark.open(synced.options.lake, spark, source=db.dsn(MIRROR))
        counts = "select count(*), (select count(*) from only parent) from parent"
        for ddl in ("alter table apart inherit parent", "drop table three", "alter table two no inherit parent"):
            db.run(ddl)
            with mirror.at("now", wait=1) as now, pytest.raises(NotAnswerable, match="has not read the new definition"):
                now.table("parent")
            synced.catch_up()
            synced.replication.step()
            with mirror.at("now") as now:
                assert now.sql(counts).collect() == db.admin(counts), ddl
        mirror.close()


@NEWEST
def test_a_change_of_the_tree_that_is_not_visible_yet_is_not_taken_for_known(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    """A child that is not mirrored holds no lock on its parent when it leaves it."""
    db.run("create table parent (id int primary key)", "create unlogged table child () inherits (parent)")
    db.run("insert into parent values (1)")
    with syncing(db, tmp_path, spark, "only parent", folds=False) as synced, db.connect() as session:
        synced.copy_all()
        synced.catch_up()
        writer = synced.replication.applier
        (parent,) = (oid for oid, each in writer.tables.histories.items() if each.name == "public.parent")
        known = writer.tables.lsns.of(parent)
        session.execute(b"begin; alter table child no inherit parent")
        db.run("insert into parent values (2)")
        for _ in range(4):
            synced.replication.applier.read_catalog()
            synced.replication.step()
        stopped = writer.tables.lsns.of(parent)
        db.run("insert into parent values (3)")
        for _ in range(4):
            synced.replication.applier.read_catalog()
            synced.replication.step()
        assert writer.tables.lsns.of(parent) == stopped >= known
        session.execute(b"commit")
        synced.require_equal("parent")


@NEWEST
def test_a_column_that_only_a_child_has_is_not_looked_up_for_its_parent(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a subquery it is a column of the query around it, and rows of every bucket count."""
    monkeypatch.setattr(lake_sink, "buckets_for", lambda _: 8)
    db.run(
        "create table parent (id int primary key)",
        "create table child (code int primary key) inherits (parent)",
        "create table outside (id int primary key, code int)",
        "insert into child select i, i from generate_series(1, 100) i",
        "insert into outside select i, 5 from generate_series(1, 100) i",
    )
    with syncing(db, tmp_path, spark, "only parent", "only child", "outside", folds=False) as synced:
        synced.copy_all()
        synced.catch_up()
        statement = "select count(*) from outside o where exists (select 1 from parent where code = 5 and id = o.id)"
        assert tidemark.open(synced.options.lake, spark).sql(statement).collect() == db.admin(statement) == [(100,)]


@pytest.mark.parametrize("install", [each for each in installs().values() if each.major < 16][:1], indirect=True)
def test_a_column_that_only_a_child_generates_is_refused_where_the_stream_has_no_values_of_it(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    """From PostgreSQL 16 on a child cannot generate a column that its parent does not."""
    db.run(
        "create table parent (id int primary key, n int)",
        "create table child (id int, n int generated always as (id * 2) stored, primary key (id)) inherits (parent)",
        "insert into parent values (1, 1)",
        "insert into child (id) values (2)",
    )
    with syncing(db, tmp_path, spark, "only parent", "only child", folds=False) as synced:
        synced.copy_all()
        synced.catch_up()
        moment = tidemark.open(synced.options.lake, spark).at()
        with pytest.raises(NotAnswerable, match=r"with public\.child, whose column n is generated"):
            moment.table("parent")
        assert moment.sql("select id, n from only parent").collect() == [(1, 1)]


@NEWEST
def test_generated_columns_and_no_columns_at_all_are_inherited(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run(
        "create table parent (id int primary key, n int generated always as (id * 2) stored)",
        "create table child (extra int, primary key (id)) inherits (parent)",
        "create table bare ()",
        "create table filled (id int primary key) inherits (bare)",
        "alter table bare replica identity full",
        "insert into parent values (1)",
        "insert into child (id, extra) values (2, 3)",
        "insert into bare default values",
        "insert into filled values (1), (2)",
    )
    with syncing(db, tmp_path, spark, "only parent", "only child", "only bare", "only filled") as synced:
        synced.copy_all()
        synced.catch_up()
        moment = tidemark.open(synced.options.lake, spark).at()
        shown = "*" if db.server.install.major >= 18 else "id"
        statement = f"select {shown} from parent order by id"
        assert moment.sql(statement).collect() == db.admin(statement)
        assert moment.table("bare").count() == 3
        assert moment.table("bare", only=True).count() == 1
