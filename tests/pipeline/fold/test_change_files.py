"""Small files of changes become larger ones: nothing changes for readers, and the number of files stays small."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import tidemark
from harness.database import Database
from harness.lake import Lakeside, by_spark, following, lakeside
from harness.outside import path_of
from tests.conftest import NEWEST
from tests.striking import striking
from tidemark.clock import Lsn
from tidemark.lake import commits
from tidemark.lake.changes import ChangeFile, read_changes
from tidemark.lake.commits import applied, opened
from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake
from tidemark.pipeline.fold import change_files
from tidemark.pipeline.fold.change_files import GROWTH, LIMITS_BYTES, MANY, CompactedChanges, small_files
from tidemark.pipeline.fold.compactor import Compactor
from tidemark.storage.fail_points import FailPoint

pytestmark = pytest.mark.quick


FALLBACKS = frozenset(["a~text", "b~text"])


def file(number: int, size_bytes: int, columns: Iterable[str] = "a") -> ChangeFile:
    lsn = Lsn(10 * number)
    flags = {"only_inserts": False, "truncates": False, "unchanged": False, "preimages": False}
    return ChangeFile(f"f{number}", frozenset(columns), lsn, lsn, **flags, rows=1, size_bytes=size_bytes)


COLUMNS = [["a"], ["a", "a~text"], ["a", "b"], ["a", "b", "b~text"], ["a", "b", "a~text", "b~text"]]


@given(st.lists(st.tuples(st.integers(1, 100 << 20), st.sampled_from(COLUMNS)), max_size=80), st.randoms())
def test_groups_are_consecutive_files_of_the_same_columns_that_are_worth_it(
    made: list[tuple[int, list[str]]], chance: random.Random
) -> None:
    files = [file(number, size_bytes, columns) for number, (size_bytes, columns) in enumerate(made)]
    shuffled = chance.sample(files, len(files))
    groups = small_files(shuffled, FALLBACKS)
    taken = [each for group in groups for each in group]
    assert len({each.path for each in taken}) == len(taken)
    for group in groups:
        sizes = [each.size_bytes for each in group]
        assert len(group) >= MANY
        assert sum(sizes) >= GROWTH * max(sizes)
        assert len({each.columns - FALLBACKS for each in group}) == 1
        assert list(group) == files[files.index(group[0]) :][: len(group)], "nothing lies between them"
        assert max(sizes) < LIMITS_BYTES[-1]


@pytest.mark.parametrize("largest", [20_000, pytest.param(3_000_000, marks=pytest.mark.full)])
def test_a_table_keeps_few_files_and_every_change_is_rewritten_a_few_times(largest: int) -> None:
    """Many cycles, compacted after every hundred."""
    chance = random.Random(1)  # noqa: S311 - the same every time
    files: list[ChangeFile] = []
    rewritten: Counter[str] = Counter()
    total, most = 0, 0.0
    for number in range(1, 60_000):
        files.append(file(number, chance.randint(2_000, largest)))
        total += files[-1].size_bytes
        if number % 100:
            continue
        while groups := small_files(files, FALLBACKS):
            for group in groups:
                size, first = sum(each.size_bytes for each in group), group[0]
                rewritten["bytes"] += size
                joined = replace(group[-1], path=first.path, least=first.least, size_bytes=size)
                gone = {each.path for each in group}
                files = [*(each for each in files if each.path not in gone), joined]
        most = max(most, len(files) - 1.25 * total / LIMITS_BYTES[-1])
    assert most < 4 * MANY, "besides those that are large"
    assert rewritten["bytes"] < 5 * total


def test_text_fallbacks_in_one_of_ten_files_keep_none_of_them_apart() -> None:
    chance = random.Random(1)  # noqa: S311 - the same every time
    named = [["a", "a~text"] if chance.random() < 0.1 else ["a"] for _ in range(3_000)]
    files = [file(number, 2_000, columns) for number, columns in enumerate(named)]
    groups = small_files(files, FALLBACKS)
    assert len(files) - sum(map(len, groups)) + len(groups) < 4 * MANY


@pytest.fixture
def side(db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lakeside:
    monkeypatch.setattr(change_files, "MANY", 3)
    monkeypatch.setattr(change_files, "GROWTH", 1)
    db.run("create table t (id int primary key, v text, n numeric(8,2), at timestamptz, large text)")
    return lakeside(db, tmp_path, spark, "t")


def changed(side: Lakeside, *statements: str) -> None:
    """Each statement becomes a file of its own, or two."""
    for statement in statements:
        side.database.run(statement)
        side.note("t")
        side.apply_all()


WORK = (
    "insert into t select i, 'v' || i, i / 4.0, now(), repeat(md5(i::text), 200) from generate_series(1, 50) i",
    "update t set v = 'w' where id % 3 = 0",
    "update t set id = id + 1000 where id % 7 = 0",
    "delete from t where id % 5 = 0",
    "alter table t add column extra int",
    "truncate t",
    "insert into t values (1, 'infinite', null, 'infinity', repeat('x', 9000))",
    "update t set n = 7",
    "insert into t values (2, '', 0, '-infinity', null)",
)


def compacted(side: Lakeside) -> CompactedChanges | None:
    with Compactor(side.options.lake, side.spark) as compactor:
        done = {table.name: compactor.compact(table) for table in compactor.compactable()}
        return done.get("public.t")


def files(side: Lakeside) -> int:
    return len(read_changes(side.options.lake, path_of(side.options.lake, "t"), Lsn.ZERO).files)


def told(side: Lakeside) -> list[object]:
    """The change feed and the histories of some rows."""
    with side.open().at() as moment:
        rows = by_spark(moment.changes("t", side.notes[0].lsn))
        return [rows, *(by_spark(moment.history("t", key)) for key in (1, 3, 1007))]


@pytest.mark.full
@pytest.mark.spark
@NEWEST
def test_readers_see_the_same_before_and_after(side: Lakeside) -> None:
    with following(side):
        changed(side, *WORK)
        assert compacted(side) is None, "nothing is folded"
        side.fold()
        changed(side, "update t set v = 'not folded' where id = 1")
        folder = side.options.lake / path_of(side.options.lake, "t") / "changes"
        before, reached, seen = files(side), applied(opened(folder)), told(side)
        with side.open().at() as earlier:
            done = compacted(side)
            assert done is not None
            assert files(side) == before - done.before + done.after < before
            assert by_spark(earlier.changes("t", side.notes[0].lsn)) == seen[0], "its files are there still"
        assert applied(opened(folder)) == reached
        assert told(side) == seen
        side.require_noted_now()
        changed(side, "insert into t values (3, 'a writer goes on', 1, null, null)")
        side.require_noted()
        assert compacted(side) is not None, "the later files are folded now"
        assert compacted(side) is None


@pytest.mark.full
@pytest.mark.spark
@NEWEST
def test_files_with_and_without_a_text_fallback_become_one_with_the_same_rows(side: Lakeside) -> None:
    with following(side):
        for n, at in enumerate(["now", "infinity", "now", "infinity"]):
            changed(side, f"insert into t values ({n}, '', 'NaN', '{at}')")
        changed(side, "update t set at = '-infinity' where id = 2", "insert into t values (9, '', 1, now())")
        side.fold()
        before, seen = files(side), told(side)
        assert compacted(side) == CompactedChanges(before, 1)
        assert told(side) == seen
        side.require_noted_now()


@pytest.mark.full
@pytest.mark.spark
@NEWEST
def test_files_with_other_columns_stay_apart(side: Lakeside) -> None:
    with following(side):
        changed(side, *WORK[:3], "alter table t add column more int default 5", "update t set more = id where id < 20")
        changed(side, WORK[3], "delete from t where id < 9", *WORK[6:], "alter table t drop column n")
        changed(side, "update t set v = 'x'", "insert into t values (90)", "delete from t where id = 90")
        side.fold()
        seen = told(side)
        assert compacted(side) is not None
        assert told(side) == seen
        side.require_noted()


@pytest.mark.full
@pytest.mark.spark
@NEWEST
@pytest.mark.parametrize("point", [FailPoint.CHANGES_REWRITTEN, FailPoint.CHANGES_COMPACTED])
def test_struck_nothing_is_lost_or_there_twice(side: Lakeside, point: FailPoint) -> None:
    with following(side):
        changed(side, *WORK)
        side.fold()
        seen = told(side)
        with striking(point):
            compacted(side)
        assert told(side) == seen
        assert compacted(side) is not None, "another group is left"
        assert compacted(side) is None
        assert told(side) == seen
        side.require_noted()


@pytest.mark.full
@pytest.mark.spark
@NEWEST
def test_what_was_replaced_is_deleted_by_expire_and_what_it_removed_first_is_not_brought_back(
    side: Lakeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    with following(side):
        changed(side, *WORK)
        side.fold()
        lake, path = side.options.lake, path_of(side.options.lake, "t")
        exchange = commits.exchange_files

        def expire_first(*arguments: object) -> bool:
            expire_lake(lake, ExpireOptions(keep_s=None, before=side.notes[3].lsn, grace_s=0))
            return exchange(*arguments)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            patched.setattr(change_files, "exchange_files", expire_first)
            done = compacted(side)
            assert done is not None
            assert done.after == 1, "the first group has expired"
        expire_lake(lake, ExpireOptions(keep_s=None, before=side.notes[3].lsn, grace_s=0))
        there = {Path(uri).name for uri in DeltaTable(lake / path / "changes").file_uris()}
        assert {each.name for each in (lake / path / "changes").glob("*.parquet")} == there
        side.notes = side.notes[4:]
        side.require_noted()
        with tidemark.open(lake, side.spark).at() as moment:
            assert moment.changes("t", side.notes[0].lsn).count() > 0
