"""A table's rows from what the stream said of it: as of every commit, with any commits hidden that can be."""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import cast

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.conftest import INTERPRETED, quick_only
from tests.mirror.conftest import set_in
from tests.mirror.model import (
    PLANS,
    History,
    Identity,
    Intent,
    closed,
    insert_history,
    keyed_history,
    multiset_history,
    rows_after,
    said,
)
from tests.mirror.wire import decoded
from tidemark.errors import InvalidValue
from tidemark.reads.contents import contents
from tidemark.reads.shape import ChangeFacts, Shape, ShownColumn

pytestmark = [pytest.mark.quick, pytest.mark.spark]

META = "_change_type string, _commit_version bigint, _ordinal bigint, _unchanged string, _truncate int"
UNSURE = ChangeFacts(only_inserts=False, truncates=True, unchanged=True, preimages=True)
INSERTS = ChangeFacts(only_inserts=True, truncates=False, unchanged=False, preimages=False)
MARKS = ChangeFacts(only_inserts=False, truncates=False, unchanged=True, preimages=False)
PLAIN = ChangeFacts(only_inserts=False, truncates=False, unchanged=False, preimages=False)

KEYED_BY = (Identity.DEFAULT, Identity.FULL)
KEYED = "sub int, id int, large string, other string, number int"
MULTISET = "sub int, x double, s string"
TRUNCATES = frozenset({2})
AT_TRUNCATE = 1_000_000
Make = Callable[[list[list[Intent]], frozenset[int]], History]


def shape_of(ddl: str, key: Sequence[int]) -> Shape:
    names = [part.split()[0] for part in ddl.split(", ")]
    return Shape(tuple(ShownColumn(name, n + 1) for n, name in enumerate(names)), tuple(key))


# --- every commit of many histories -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One reader of one history. All cases are rows of one table, told apart by its first column."""

    history: History
    visible: frozenset[int]

    @property
    def truncates(self) -> frozenset[int]:
        return frozenset(n for n in self.visible if any(op.is_truncate for op in self.history[n]))

    def changes(self, sub: int, identity: Identity) -> Iterable[tuple[object, ...]]:
        """A position is one change's alone, in all cases, but truncates, which have the same in all."""
        for commit in sorted(self.visible):
            ordinal = sub * 100
            for op in self.history[commit]:
                ordinal += AT_TRUNCATE if op.is_truncate else 1
                for change in () if op.is_truncate else said(op, identity):
                    yield (sub, *change.row, change.kind, commit, ordinal, change.marks, None)


def readers(make: Make, keyed: bool) -> list[Case]:
    """As of every commit, and at each with some commits hidden; half of the histories are truncated."""
    cases: list[Case] = []
    long_plans = PLANS.filter(lambda plan: len(plan) > max(TRUNCATES))

    @settings(max_examples=40, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(PLANS, long_plans, st.data())
    def collect(plan: list[list[Intent]], long_plan: list[list[Intent]], data: st.DataObject) -> None:
        for history in (make(plan, frozenset()), make(long_plan, TRUNCATES)):
            for end in range(len(history)):
                seen = frozenset(range(end + 1))
                hidden = data.draw(st.frozensets(st.integers(0, end), max_size=2))
                some = seen - closed(history, hidden, keyed)
                cases.extend(Case(history, visible) for visible in {seen, some})

    collect()
    return cases


def answers(spark: SparkSession, cases: list[Case], identity: Identity, folder: Path) -> DataFrame:
    """Through the stream's bytes and the decoder. A truncate has no case, so cases that see the same ones share it."""
    ddl, key = (KEYED, (1, 2)) if identity in KEYED_BY else (MULTISET, ())
    tables: dict[frozenset[int], list[tuple[object, ...]]] = defaultdict(list)
    for sub, case in enumerate(cases):
        tables[case.truncates].extend(case.changes(sub, identity))
    for truncates, rows in tables.items():
        nulls = [None] * len(ddl.split(", "))
        rows.extend((*nulls, "truncate", commit, AT_TRUNCATE, None, 1) for commit in truncates)
    facts = ChangeFacts(identity is Identity.NOTHING, truncates=True, unchanged=bool(key), preimages=True)
    letter = {Identity.DEFAULT: "d", Identity.NOTHING: "n"}.get(identity, "f")
    frames = []
    for n, rows in enumerate(tables.values()):
        pq.write_table(decoded(rows, ddl, letter, len(key)), folder / str(n))
        frames.append(spark.read.schema(f"{ddl}, {META}").parquet(str(folder / str(n))))
    return reduce(DataFrame.unionAll, (contents(frame, shape_of(ddl, key), facts) for frame in frames))


@pytest.mark.parametrize(
    ("identity", "make"),
    [
        pytest.param(Identity.DEFAULT, keyed_history, marks=pytest.mark.full),
        pytest.param(Identity.FULL, keyed_history, marks=pytest.mark.full),
        (Identity.MULTISET, multiset_history),
        (Identity.NOTHING, insert_history),
    ],
    ids=lambda value: value.value if isinstance(value, Identity) else "",
)
def test_every_reader_of_every_history_sees_the_models_rows(
    few: SparkSession, tmp_path: Path, identity: Identity, make: Make
) -> None:
    """As of every commit of some eighty histories, with and without hidden commits, each against the model's rows.

    All readers of an identity are rows of two tables, one of them truncated, so two plans, which Spark runs with the
    settings of a lake's: adaptive and compiled, but for the short form. The rules below are interpreted, where no plan
    is looked at.
    """
    keyed = identity in KEYED_BY
    cases = readers(make, keyed)
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for row in answers(few, cases, identity, tmp_path).collect():
        found[row[0]][repr(tuple(row[1:]))] += 1
    for sub, case in enumerate(cases):
        assert found[sub] == rows_after(case.history, case.visible, keyed), case


# --- one rule each ------------------------------------------------------------------------------------------------

T1 = "k int, big string, small int"
T1_SHAPE = shape_of(T1, (1,))


def table(spark: SparkSession, ddl: str, *rows: Sequence[object]) -> DataFrame:
    """Rows as (columns…, kind, commit, ordinal[, marks[, truncate]])."""
    width = len(ddl.split(", ")) + 5
    return spark.createDataFrame([(*row, *[None] * (width - len(row))) for row in rows], f"{ddl}, {META}")


def rows_of(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def plan_of(frame: DataFrame) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        frame.explain()
    return text.getvalue()


def stored(spark: SparkSession, folder: Path) -> DataFrame:
    frame = table(spark, T1, (1, "a", 1, "insert", 10, 1), (2, "b", 2, "insert", 11, 1))
    frame.write.parquet(str(folder / "changes"))
    return spark.read.parquet(str(folder / "changes"))


def test_inserts_alone_are_the_rows_without_a_shuffle_and_filters_and_columns_reach_the_scan(
    few: SparkSession, tmp_path: Path
) -> None:
    rows = contents(stored(few, tmp_path), T1_SHAPE, INSERTS)
    plan = plan_of(rows.filter("small = 2").select("big"))
    assert "Exchange" not in plan
    assert "EqualTo(small,2)" in plan
    assert "ReadSchema: struct<big:string,small:int>" in plan
    assert rows_of(rows.filter("small = 2")) == [(2, "b", 2)]


@pytest.mark.parametrize("facts", [PLAIN, UNSURE], ids=["plain", "unsure"])
def test_a_filter_on_the_key_reaches_the_scan_though_the_newest_change_is_looked_for(
    few: SparkSession, tmp_path: Path, facts: ChangeFacts
) -> None:
    rows = contents(stored(few, tmp_path), T1_SHAPE, facts).filter("k = 2")
    assert "EqualTo(k,2)" in plan_of(rows)
    assert rows_of(rows) == [(2, "b", 2)]


def test_a_filter_on_a_multiset_reaches_the_scan(few: SparkSession, tmp_path: Path) -> None:
    rows = contents(stored(few, tmp_path), shape_of(T1, ()), PLAIN).filter("k = 2")
    assert "EqualTo(k,2)" in plan_of(rows)
    assert rows_of(rows) == [(2, "b", 2)]


def test_the_newest_truncates_commit_reaches_the_scan(few: SparkSession, tmp_path: Path) -> None:
    rows = contents(stored(few, tmp_path), T1_SHAPE, ChangeFacts(True, True, False, False))
    plan = plan_of(rows)
    assert "NestedLoop" not in plan
    assert re.search(r"DataFilters: \[[^\n]*_commit_version#\d+L >= ", plan)
    assert rows_of(rows) == [(1, "a", 1), (2, "b", 2)]


RULES: dict[str, tuple[list[Sequence[object]], list[Sequence[object]]]] = {
    "the newest change of a key wins, and a delete leaves no row": (
        [
            (1, "new", 2, "update_postimage", 10, 2),
            (1, "old", 1, "insert", 10, 1),
            (2, "gone", 1, "insert", 10, 3),
            (2, None, None, "delete", 11, 1),
            (3, None, None, "delete", 11, 2),
            (3, "back", 1, "insert", 12, 1),
        ],
        [(1, "new", 2), (3, "back", 1)],
    ),
    "a marked value is the newest that was sent, even if null": (
        [
            (1, "one", 1, "insert", 10, 1),
            (1, "two", 2, "update_postimage", 11, 1),
            (1, None, 3, "update_postimage", 12, 1, ",2,"),
            (2, "x", 1, "insert", 10, 2),
            (2, None, 2, "update_postimage", 11, 2),
            (2, None, 3, "update_postimage", 12, 2, ",2,"),
        ],
        [(1, "two", 3), (2, None, 3)],
    ),
    "a marked move takes the value along a chain, and never from a former occupant": (
        [
            (2, "stranger", 0, "insert", 9, 1),
            (2, None, None, "delete", 9, 2),
            (1, "mine", 1, "insert", 10, 1),
            (1, None, None, "update_preimage", 11, 1),
            (2, None, 2, "update_postimage", 11, 1, ",2,"),
            (2, None, None, "update_preimage", 12, 1),
            (3, None, 3, "update_postimage", 12, 1, ",2,"),
            (3, None, 4, "update_postimage", 13, 1, ",2,"),
            (2, "later", 5, "insert", 14, 1),
        ],
        [(2, "later", 5), (3, "mine", 4)],
    ),
}


@pytest.fixture(scope="module")
def ruled(few: SparkSession) -> list[tuple[object, ...]]:
    """What is left of all rules' changes, in one table: the rule's number is the first part of the key."""
    changes = [
        (n, *row[:4], row[4], cast(int, row[5]) + 100 * n, *row[6:])
        for n, (rows, _) in enumerate(RULES.values())
        for row in rows
    ]
    ddl = f"rule int, {T1}"
    shape = Shape((ShownColumn("rule", 9), *T1_SHAPE.columns), (9, 1))
    with set_in(few, INTERPRETED):
        return rows_of(contents(table(few, ddl, *changes), shape, UNSURE))


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_of_keys_and_marks_holds(rule: str, ruled: list[tuple[object, ...]]) -> None:
    assert [row[1:] for row in ruled if row[0] == list(RULES).index(rule)] == RULES[rule][1]


def test_without_marks_the_newest_change_of_a_key_wins_too(interpreted: SparkSession) -> None:
    changes, left = next(iter(RULES.values()))
    assert rows_of(contents(table(interpreted, T1, *changes), T1_SHAPE, PLAIN)) == left


def test_marks_of_attnum_12_do_not_mark_attnums_1_and_2(interpreted: SparkSession) -> None:
    shape = Shape((ShownColumn("k", 1), ShownColumn("big", 2), ShownColumn("small", 12)), (1,))
    changes = table(interpreted, T1, (1, "one", 1, "insert", 10, 1), (1, "two", 2, "update_postimage", 11, 1, ",12,"))
    assert rows_of(contents(changes, shape, MARKS)) == [(1, "two", 2)]


def test_a_marked_value_that_no_change_holds_fails_the_query(interpreted: SparkSession) -> None:
    stays = table(interpreted, T1, (1, None, 3, "update_postimage", 12, 1, ",2,"))
    moves = table(
        interpreted, T1, (1, None, None, "update_preimage", 12, 1), (2, None, 3, "update_postimage", 12, 1, ",2,")
    )
    for changes, facts in ((stays, MARKS), (moves, UNSURE)):
        with pytest.raises(PySparkException, match="missing from all earlier changes"):
            contents(changes, T1_SHAPE, facts).collect()


def test_a_marked_key_column_is_taken_from_the_old_row_beside_it(interpreted: SparkSession) -> None:
    ddl = "a int, b string, v int"
    changes = table(
        interpreted,
        ddl,
        (1, "large", 1, "insert", 10, 1),
        (1, "large", None, "update_preimage", 11, 1),
        (2, None, 2, "update_postimage", 11, 1, ",2,"),
    )
    assert rows_of(contents(changes, shape_of(ddl, (2, 1)), UNSURE)) == [(2, "large", 2)]
    with pytest.raises(PySparkException, match="key column b"):
        contents(changes.filter("_change_type <> 'update_preimage'"), shape_of(ddl, (2, 1)), UNSURE).collect()


def test_a_truncate_removes_what_is_ordered_before_it_and_nothing_after(interpreted: SparkSession) -> None:
    changes = table(
        interpreted,
        T1,
        (1, "before", 1, "insert", 10, 1),
        (2, "same commit, before", 1, "insert", 11, 1),
        (None, None, None, "truncate", 11, 2, None, 0),
        (3, "same commit, after", 1, "insert", 11, 3),
        (4, "after", 1, "insert", 12, 1),
        (None, None, None, "truncate", 8, 9, None, 0),
    )
    left = [(3, "same commit, after", 1), (4, "after", 1)]
    only_inserts = ChangeFacts(only_inserts=True, truncates=True, unchanged=False, preimages=False)
    for facts, key in ((UNSURE, (1,)), (UNSURE, ()), (only_inserts, (1,))):
        assert rows_of(contents(changes, shape_of(T1, key), facts)) == left


def test_a_key_may_be_infinity_told_by_its_text_alone(interpreted: SparkSession) -> None:
    ddl = "at timestamp, `at~text` string, v int"
    shape = Shape((ShownColumn("at", 1, fallback=True), ShownColumn("v", 2)), (1,))
    changes = table(
        interpreted,
        ddl,
        (None, "infinity", 1, "insert", 10, 1),
        (None, "-infinity", 2, "insert", 10, 2),
        (datetime(2026, 1, 1), None, 3, "insert", 10, 3),
        (None, "infinity", 4, "update_postimage", 11, 1),
        (None, "-infinity", None, "delete", 11, 2),
    )
    assert rows_of(contents(changes, shape, UNSURE)) == [(None, "infinity", 4), (datetime(2026, 1, 1), None, 3)]


def test_a_zero_key_keeps_its_sign_and_is_one_key_with_the_other_zero(interpreted: SparkSession) -> None:
    ddl = "k double, big string"
    changes = table(
        interpreted,
        ddl,
        (0.0, "kept", "insert", 10, 1),
        (0.0, None, "update_preimage", 11, 1),
        (-0.0, None, "update_postimage", 11, 1, ",2,"),
    )
    assert repr(rows_of(contents(changes, shape_of(ddl, (1,)), UNSURE))) == "[(-0.0, 'kept')]"


def test_a_multiset_tells_zeros_apart_also_in_arrays_and_takes_nans_for_one(interpreted: SparkSession) -> None:
    ddl = "d double, f float, a array<double>"
    nan = float("nan")
    values = [(0.0, 1.0, [0.0]), (-0.0, 1.0, [0.0]), (0.0, -0.0, [0.0]), (0.0, 1.0, [-0.0, None]), (nan, nan, [nan])]
    added = [(*value, "insert", 10, n) for n, value in enumerate(values * 2)]
    removed = [(*value, "delete", 11, n) for n, value in enumerate([values[1], values[3], values[3], values[4]])]
    found = rows_of(contents(table(interpreted, ddl, *added, *removed), shape_of(ddl, ()), UNSURE))
    assert Counter(map(repr, found)) == Counter(
        map(repr, [values[0]] * 2 + [values[1]] + [values[2]] * 2 + [values[4]])
    )


def test_a_content_of_a_multiset_is_there_as_often_as_it_was_added(interpreted: SparkSession) -> None:
    ours = ("'insert' _change_type", "10L _commit_version", "id _ordinal", "null _unchanged", "null _truncate")
    many = interpreted.range(25_000).selectExpr("1 k", "'x' big", "2 small", *ours)
    rows = contents(many, shape_of(T1, ()), PLAIN)
    assert rows.groupBy(*rows.columns).count().collect() == [(1, "x", 2, 25_000)]


def test_a_content_removed_more_often_than_added_fails_the_query(interpreted: SparkSession) -> None:
    changes = table(interpreted, T1, (1, "a", 1, "insert", 10, 1), (1, "a", 2, "delete", 11, 1))
    rows = contents(changes, shape_of(T1, ()), PLAIN)
    for ask in (rows.collect, rows.count, rows.filter("k = 1").select("k").collect):
        with pytest.raises(PySparkException, match="deleted more often than it was inserted"):
            ask()


ODD = ["a.b", "tick`ed", 'quo"ted', "with space", "", "Case", "case", "commit", "v1", "ünï~text"]


@pytest.mark.parametrize("key", quick_only(((1,), ()), ()), ids=["keyed", "multiset"])
def test_names_may_hold_anything_and_differ_in_case_alone(interpreted: SparkSession, key: tuple[int, ...]) -> None:
    shape = Shape(tuple(ShownColumn(name, n + 1, fallback=n == 1) for n, name in enumerate(ODD)), key)
    types = ", ".join(f"c{n} string" for n in range(len(ODD) + 1))
    row = [f"value {n}" for n in range(len(ODD) + 1)]
    changes = table(interpreted, types, (*row, "insert", 10, 1)).toDF(
        *shape.names, *(part.split()[0] for part in META.split(", "))
    )
    found = contents(changes, shape, UNSURE)
    assert found.columns == [*ODD[:2], "tick`ed~text", *ODD[2:]]
    assert rows_of(found) == [tuple(row)]


def test_every_type_passes_as_it_is(interpreted: SparkSession) -> None:
    one = interpreted.sql(
        "select 1 k, true b, 1S s, 1L l, 1.5f f, 1.5d d, 1.50bd n, 'é' t, X'00ff' y, date'0001-01-01' a,"
        " timestamp'9999-12-31 23:59:59.999999' z, timestamp_ntz'1900-01-01 00:00:00.000001' w,"
        " array(X'00', null) ya, array(array(1.0d), null) da, array(timestamp_ntz'2026-01-01') wa"
    )
    names = one.columns
    changes = one.selectExpr("*", "'insert' _change_type", "10L _commit_version", "1L _ordinal",
                             "cast(null as string) _unchanged", "cast(null as int) _truncate")  # fmt: skip
    columns = tuple(ShownColumn(name, n + 1) for n, name in enumerate(names))
    frames = []
    for key in ((1,), tuple(range(1, len(names) + 1)), ()):
        found = contents(changes, Shape(columns, key), UNSURE)
        assert found.dtypes == one.dtypes
        frames.append(found)
    everything = reduce(DataFrame.unionAll, frames).collect()
    assert everything == one.collect() * 3


def test_changes_that_do_not_fit_the_shape_are_refused(interpreted: SparkSession) -> None:
    changes = table(interpreted, T1, (1, "a", 1, "insert", 10, 1))
    with pytest.raises(InvalidValue, match="gone"):
        contents(changes, Shape((ShownColumn("gone", 1),), ()), UNSURE)
    with pytest.raises(InvalidValue, match="7"):
        contents(changes, Shape(T1_SHAPE.columns, (7,)), UNSURE)


def test_columns_that_are_not_shown_are_not_read(few: SparkSession, tmp_path: Path) -> None:
    shown = Shape(T1_SHAPE.columns[:1], (1,))
    rows = contents(stored(few, tmp_path).withColumn("_xid", F.lit(1)), shown, PLAIN)
    assert rows.columns == ["k"]
    assert "big:string" not in plan_of(rows)
