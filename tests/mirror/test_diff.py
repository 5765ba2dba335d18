"""What became of a table between two positions: exactly the difference of what PostgreSQL held at both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import tidemark
from harness.database import Database
from harness.lake import Lakeside, Noted, Row, by_spark, following, lakeside, spread
from harness.syncing import syncing
from tests.conftest import NEWEST
from tidemark.errors import InvalidValue, NotAnswerable
from tidemark.reads import difference

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]


@pytest.fixture
def side(db: Database, spark: SparkSession, tmp_path: Path) -> Iterator[Lakeside]:
    db.run(
        "create table t (id int primary key, v float8, at timestamptz, l float4[])",
        "create table named (at timestamptz, name text, v int, primary key (name, at))",
        "create table bag (v float8, w text)",
        "alter table bag replica identity full",
    )
    with following(lakeside(db, tmp_path, spark, "t", "named", "bag")) as made:
        yield made


def found(frame: DataFrame) -> Counter[Row]:
    return by_spark(frame)[1]


def expected(early: Noted, late: Noted, table: str, key: tuple[int, ...]) -> Counter[Row]:
    """By the definition."""
    before, after = early.tables[table][1], late.tables[table][1]
    gone, come = before - after, after - before

    def of(row: Row) -> Row:
        return tuple(row[at] for at in key)

    both = {of(row) for row in gone} & {of(row) for row in come} if key else set()
    told: Counter[Row] = Counter()
    for rows, updated, plain in ((gone, "update_preimage", "delete"), (come, "update_postimage", "insert")):
        for row, count in rows.items():
            told[*row, updated if of(row) in both else plain] += count
    return told


def require_noted(side: Lakeside, table: str, key: tuple[int, ...]) -> None:
    mirror = side.open()
    for early, late in combinations(spread(side.notes), 2):
        told = found(mirror.diff(table, early.lsn, str(late.lsn)))
        assert told == expected(early, late, table, key), f"{table} from {early.lsn} to {late.lsn}"


@pytest.mark.full
def test_a_diff_is_the_difference_of_what_postgresql_held(side: Lakeside) -> None:
    side.run_and_note(
        [
            "insert into t values (1, 0.0, 'infinity', '{0}'), (2, 'NaN', null, null), (3, null, '2024-05-01', '{1}')",
            "update t set v = -0.0, at = '-infinity' where id = 1; update t set v = 'NaN' where id = 2",
            "update t set id = 4 where id = 3; update t set l = '{-0}' where id = 1; delete from t where id = 2",
            "begin; truncate t; insert into t values (1, 0.0, 'infinity', '{0}'); commit",
        ],
        "t",
    )
    side.apply_all()
    require_noted(side, "t", (0,))
    side.fold()
    require_noted(side, "t", (0,))


@pytest.mark.full
def test_keys_without_a_twin_and_keys_in_another_order(side: Lakeside) -> None:
    side.run_and_note(
        [
            "insert into named values ('infinity', 'a', 1), ('-infinity', 'a', 2), ('2024-05-01', 'b', 3)",
            "update named set v = 5 where at = 'infinity'; update named set at = 'infinity' where name = 'b'",
            "delete from named where at = '-infinity'",
        ],
        "named",
    )
    side.apply_all()
    require_noted(side, "named", (1, 0))
    frame = side.open().diff("named", side.notes[0].lsn)
    assert [(row["name"], row["_change_type"]) for row in frame.collect()] == [
        ("a", "delete"), ("a", "update_preimage"), ("a", "update_postimage"), ("b", "insert"), ("b", "delete"),
    ]  # fmt: skip


@pytest.mark.full
def test_without_a_key_rows_count_as_often_as_they_are_there(side: Lakeside) -> None:
    side.run_and_note(
        [
            "insert into bag select 0.0, 'a' from generate_series(1, 5)",
            "insert into bag values (-0.0, 'a'), ('NaN', null)",
            "delete from bag where ctid in (select min(ctid) from bag); insert into bag values (null, '')",
        ],
        "bag",
    )
    side.apply_all()
    require_noted(side, "bag", ())


@pytest.mark.full
def test_without_the_changes_in_between_the_answer_is_the_same(side: Lakeside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(difference, "MANY", 0)
    side.run_and_note(["insert into t values (1), (2)", "update t set v = 1 where id = 1"], "t")
    side.apply_all()
    require_noted(side, "t", (0,))


@pytest.mark.full
def test_a_copy_in_between_changes_nothing(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, v text)", "insert into t select i, 'v' from generate_series(1, 50) i")
    with syncing(db, tmp_path, spark, "t", folds=False) as synced:
        synced.copy_all()
        first = synced.note("t")
        synced.catch_up()
        db.run("update t set v = 'w' where id = 7")
        synced.resync("t")
        db.run("delete from t where id = 8")
        last = synced.note("t")
        synced.catch_up()
        told = found(tidemark.open(synced.options.lake, spark).diff("t", first, last))
        assert told == expected(synced.notes[0], synced.notes[1], "t", (0,))
        assert told.total() == 3


def test_what_cannot_be_compared_is_refused(side: Lakeside) -> None:
    db, mirror = side.database, side.open()
    early = mirror.at()
    db.run("insert into t values (1)")
    first = side.apply_all()
    with pytest.raises(InvalidValue, match="is after"):
        early.diff("t", first)
    db.run("alter table t add w int default 3")
    side.apply_all()
    with pytest.raises(NotAnswerable, match=r"t was altered between .* and ") as refused:
        mirror.diff("t", first)
    since = refused.value.hint.split()[-2]
    db.run("update t set w = 4")
    side.apply_all()
    assert [row["_change_type"] for row in mirror.diff("t", since).collect()] == ["update_preimage", "update_postimage"]
    with pytest.raises(NotAnswerable, match="not mirrored yet"):
        mirror.diff("t", "0/1")
