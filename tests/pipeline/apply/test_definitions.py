"""How tables were defined at a position, where that is hard to say: each of these once gave a wrong answer."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import Database
from harness.lake import Lakeside, following, lakeside
from harness.mirrored import receiving
from harness.postgres import Install, installs
from tidemark.errors import LogDamaged, NotAnswerable, SparkSettingsDiffer
from tidemark.pipeline.apply.lake_applier import lake_applier

pytestmark = pytest.mark.quick


@pytest.fixture(scope="session", params=list(installs().values())[-1:], ids=lambda each: f"pg{each.major}")
def install(request: pytest.FixtureRequest) -> Install:
    assert isinstance(request.param, Install)
    return request.param


def noted_or_refused(side: Lakeside, reason: str) -> None:
    """What was noted last is refused, and all before it is as PostgreSQL had it."""
    last = side.notes.pop()
    side.require_noted()
    with pytest.raises(NotAnswerable, match=reason):
        side.open().at(last.lsn).table("t")


@pytest.mark.full
def test_a_wide_table_has_all_of_its_columns_also_those_added_later(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    columns = ", ".join(f"c{n} int" for n in range(60))
    db.run(f"create table t (id int primary key, {columns})")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        side.run_and_note(["insert into t (id, c0, c59) values (1, 10, 20)"], "t")
        side.apply_all()
        db.run("alter table t " + ", ".join(f"add d{n} int default 7" for n in range(12)))
        side.apply_all()
        side.run_and_note(["insert into t (id, d0, d5, d11) values (2, 100, 105, 111)"], "t")
        side.apply_all()
        assert side.require_noted() == 2


@pytest.mark.full
def test_defaults_of_added_columns_are_dates_as_postgresql_counts_them(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key)", "insert into t select from generate_series(1, 0)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        side.run_and_note(["insert into t values (1)"], "t")
        side.apply_all()
        defaults = {
            "date": ["1582-10-10", "0900-01-01", "0099-05-05", "infinity", "2024-02-29"],
            "timestamp": ["1000-01-01", "0001-01-01 00:00:00.000001", "1969-12-31 23:59:59.999999", "-infinity"],
            "timestamptz": ["1582-10-10 12:00+00", "2024-03-31 02:30+00"],
            "numeric(10,3)": ["-1.5", "nan"],
            "bytea": ["\\x00ff"],
            "text": ["it''s"],
            "float8": ["-0", "nan", "1e300"],
            "bool": ["t"],
        }
        added = [(kind, value) for kind, values in defaults.items() for value in values]
        every = [f"add c{n} {kind} default '{value}'" for n, (kind, value) in enumerate(added)]
        db.run(f"alter table t {', '.join(every)}, add l date[] default '{{1582-10-10,NULL}}'")
        side.apply_all()
        side.note("t")
        side.apply_all()
        assert side.require_noted() == 2


def test_columns_whose_names_are_swapped_keep_their_values(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, a int, b int)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        side.run_and_note(["insert into t values (1, 1, 2)"], "t")
        side.apply_all()
        swap = "alter table t rename a to x; alter table t rename b to a; alter table t rename x to b"
        db.run(f"begin; {swap}; insert into t (id, a, b) values (2, 100, 200); commit")
        side.apply_all()
        side.note("t")
        side.apply_all()
        assert side.require_noted() == 2
        side.run_and_note([f"begin; {swap}; insert into t (id, a, b) values (3, 5, 6); {swap}; commit"], "t")
        side.apply_all()
        noted_or_refused(side, "altered more than once")


@pytest.mark.full
def test_columns_that_nobody_saw_do_not_lend_their_values_to_later_ones(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key)", "create table u (id int primary key, a int)")
    with following(lakeside(db, tmp_path, spark, "t", "u")) as side:
        side.run_and_note(["insert into t values (1)", "insert into u values (1, 1)"], "t", "u")
        side.apply_all()
        db.run("alter table t add a int; insert into t values (2, 20); alter table t drop a, add a int")
        db.run("alter table u drop a")
        side.apply_all()
        side.note("u")
        db.run("alter table u add a int; insert into u values (2, 2)")
        side.apply_all()
        side.note("u")
        side.run_and_note(["insert into t values (3, 30)"], "t")
        side.apply_all()
        noted_or_refused(side, "must be copied again")


@pytest.mark.full
def test_a_busy_table_may_lose_and_gain_columns(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, a int, b int)")
    with following(lakeside(db, tmp_path, spark, "t")) as side, side.writing() as writer:
        side.run_and_note(["insert into t values (1, 1, 1)"], "t")
        writer.catch_up(side.position())
        for n, ddl in enumerate(["drop a", "add c int default 3", "drop b, add d text", "rename c to a"], 2):
            side.run_and_note([f"insert into t (id) values ({n})"], "t")
            db.run(f"alter table t {ddl}")
            side.run_and_note([f"insert into t (id) values (-{n})"], "t")
            side.mirror.catch_up()
            writer.catch_up(side.position())
            side.notes = [
                each for each in side.notes if each.lsn >= writer.tables.history(_oid(side)).spans()[-1].begin
            ]
            side.note("t")
            side.run_and_note([f"update t set id = id + 100 where id = {n}"], "t")
            writer.catch_up(side.position())
        assert side.require_noted() >= 2


@pytest.mark.parametrize("described", [False, True])
def test_a_writer_that_goes_on_above_what_was_known_recalls_what_was_described_there(
    db: Database, spark: SparkSession, tmp_path: Path, described: bool
) -> None:
    db.run("create table t (id int primary key, a int, b int)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        if not described:
            side.run_and_note(["insert into t values (1, 1, 1)"], "t")
            side.apply_all()
        side.run_and_note(["insert into t values (2, 2, 2)"], "t")
        side.mirror.catch_up()
        with side.writing() as writer:
            writer.apply()
            assert writer.cycle.applied_lsn > writer.cycle.schema_lsn
        db.run("alter table t drop a", "insert into t values (3, 3)")
        side.apply_all()
        side.note("t")
        side.apply_all()
        if described:
            side.notes = side.notes[-1:]
            noted_or_refused(side, "must be copied again")
        else:
            side.notes = side.notes[::2]
            assert side.require_noted() == 2


def _oid(side: Lakeside) -> int:
    return int(side.database.admin("select 't'::regclass::oid::int")[0][0])


@pytest.mark.full
def test_a_column_that_was_another_one_for_a_while_is_not_taken_for_it(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key, a int)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        side.run_and_note(["insert into t values (1, 10)"], "t")
        side.apply_all()
        db.run("alter table t drop a, add a int", "insert into t values (2, 20)", "alter table t add c text")
        side.run_and_note(["insert into t values (3, 30, 'x')"], "t")
        side.apply_all()
        noted_or_refused(side, "must be copied again")


@pytest.mark.full
def test_a_change_that_is_taken_back_before_it_is_told_leaves_nothing(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key, a int)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        with side.writing() as writer:
            writer.catch_up(side.position())
            for ddl in ("alter table t add x int default 5", "alter table t drop x", "alter table t rename a to z"):
                db.run(ddl)
                writer.read_catalog()
            db.run("alter table t rename z to a")
            writer.read_catalog()
            side.run_and_note(["insert into t values (1, 1)"], "t")
            side.mirror.catch_up()
            writer.catch_up(side.position())
        assert side.require_noted() == 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("first", "change", "second"),
    [
        (
            "alter table t add c int",
            "insert into t values (3, 30, 42)",
            "alter table t drop c; alter table t add c int",
        ),
        (
            "alter table t replica identity using index t_u_key",
            "delete from t where u = 20",
            "alter table t replica identity default",
        ),
    ],
    ids=["column", "key"],
)
def test_a_change_between_two_alterations_that_are_both_seen_is_not_taken_for_another(
    db: Database, spark: SparkSession, tmp_path: Path, first: str, change: str, second: str
) -> None:
    """The catalog is read after the change and after the second alteration, before any of it is applied."""
    db.run("create table t (id int primary key, u int not null unique)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        side.run_and_note(["insert into t values (1, 10), (2, 20)"], "t")
        side.apply_all()
        with side.writing() as writer:
            writer.catch_up(side.position())
            for statements in (f"{first}; {change}", second):
                db.run(*statements.split("; "))
                assert writer.read_catalog()
            side.note("t")
            side.mirror.catch_up()
            writer.catch_up(side.position())
        noted_or_refused(side, "must be copied again")


@pytest.mark.full
def test_a_table_is_begun_anew_when_it_is_empty_whatever_was_described_before(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        db.run("alter table t add b int", "insert into t values (2, 2)", "alter table t add c int")
        db.run("insert into t values (3, 3, 3)", "truncate t")
        side.apply_all()
        side.apply_all()
        side.run_and_note(["insert into t values (5, 5, 5)"], "t")
        side.apply_all()
        side.run_and_note(["insert into t values (6, 6, 6)"], "t")
        side.apply_all()
        assert side.require_noted() == 2


@pytest.mark.full
def test_a_table_that_is_truncated_again_and_again_holds_nobody_up(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key)", "create table s (id int primary key)")
    with following(lakeside(db, tmp_path, spark, "t", "s")) as side, side.writing() as writer:
        writer.read_catalog()
        for n in range(4):
            before = writer.tables.lsns.mirror
            db.run("truncate s", f"insert into t values ({n})")
            writer.read_catalog()
            writer.read_catalog()
            assert writer.tables.lsns.mirror > before
        writer.catch_up(side.position())


@pytest.mark.full
def test_a_log_that_was_begun_anew_is_not_taken_for_the_one_that_was_lost(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key)")
    side = lakeside(db, tmp_path, spark, "t")
    with following(side):
        side.run_and_note(["insert into t values (1)"], "t")
        side.apply_all()
    shutil.rmtree(side.options.log)
    name = side.options.names.slot
    db.admin(
        f"select pg_terminate_backend(active_pid, 9000) from pg_replication_slots where slot_name = '{name}'",
        f"select pg_drop_replication_slot('{name}')",
    )
    db.run("insert into t values (2)")
    with receiving(replace(side.mirror, judge="")):
        side.mirror.catch_up()
        db.run("insert into t values (3)")
        with pytest.raises(LogDamaged, match="the changes in between are missing"), side.writing():
            pass
        assert side.require_noted() == 1
        with pytest.raises(NotAnswerable, match="is complete up to"):
            side.open().at(side.position())


def test_a_session_whose_options_could_change_an_answer_is_refused(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        other = spark.newSession()
        other.conf.set("spark.sql.session.timeZone", "America/New_York")
        with pytest.raises(SparkSettingsDiffer, match="timeZone"):
            tidemark.open(side.options.lake, other)
        with pytest.raises(SparkSettingsDiffer, match="timeZone"):
            lake_applier(side.options, other)


@pytest.mark.full
def test_a_backlog_is_applied_while_the_source_is_away_also_after_an_idle_table_was_dropped(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key)", "create table gone (id int primary key)")
    side = lakeside(db, tmp_path, spark, "t", "gone")
    with receiving(side.mirror):
        side.mirror.catch_up()
        side.apply_all()
        db.run("insert into gone values (1)", "insert into t values (1)")
        side.apply_all()
        db.run("drop table gone")
        side.apply_all()
        db.run("insert into t values (2)")
        side.mirror.catch_up()
    with side.writing() as writer:
        upto = side.position()
        db.server.sql(f"alter database {db.name} connection limit 0")
        try:
            db.server.sql(f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{db.name}'")
            assert not writer.read_catalog()
            applied = writer.apply()
        finally:
            db.server.sql(f"alter database {db.name} connection limit -1")
        assert applied is not None
        assert applied.changes == 1
        writer.catch_up(upto)
    with side.open() as mirror:
        assert mirror.at(upto).sql("select count(*) from t").collect() == [(2,)]


def test_a_source_that_writes_no_wal_has_one_time_however_often_it_is_read(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key)")
    with following(lakeside(db, tmp_path, spark, "t")) as side, side.writing() as writer:
        for _ in range(6):
            writer.read_catalog()
        lsns = [lsn for lsn, _ in writer._source_times]
        assert len(lsns) == len(set(lsns))
