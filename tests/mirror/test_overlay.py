"""A few changes laid over folded rows: the rows whose keys are touched are gone, whatever the keys are like."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.conftest import quick_only
from tests.mirror.conftest import set_in
from tidemark.reads import overlay
from tidemark.reads.few import Few, merged_here
from tidemark.reads.overlay import overlaid
from tidemark.reads.shape import Shape, ShownColumn

pytestmark = [pytest.mark.quick, pytest.mark.spark]

KINDS = {"short": pa.int16(), "int": pa.int32(), "long": pa.int64(), "string": pa.string()}
KEYS: dict[str, tuple[str, Sequence[Any]]] = {
    "close integers": ("int", range(-500, 500)),
    "all there are": ("short", range(-(2**15), 2**15, 13)),
    "the extremes": ("long", [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 1]),
    "far apart": ("long", range(-(2**60), 2**60, 2**52)),
    "at a word's border": ("int", range(2**31 - 200, 2**31)),
    "texts": ("string", [f"key {n}" for n in range(300)]),
}
SHAPE = Shape((ShownColumn("k", 1), ShownColumn("v", 2)), (1,))


@pytest.mark.parametrize("which", KEYS)
def test_rows_with_touched_keys_are_gone_and_others_stay(spark: SparkSession, which: str, short: bool) -> None:
    kind, keys = KEYS[which]
    chance = random.Random(which)  # noqa: S311 - the same every time
    rows = spark.createDataFrame([(key, "old") for key in keys], f"v1 {kind}, v2 string")
    for share in (0.5,) if short else (0.01, 0.5, 1.0):
        touched = sorted(chance.sample(list(keys), max(1, int(len(keys) * share))))
        new = touched[::2]
        arrow = {"v1": pa.array(new, KINDS[kind]), "v2": pa.array(["new"] * len(new), pa.string())}
        few = Few(pa.table(arrow), pa.table({"v1": pa.array(touched, KINDS[kind])}), truncated=False)
        found = sorted((row[0], row[1]) for row in overlaid(rows, few, SHAPE).collect())
        left = [(key, "old") for key in keys if key not in set(touched)]
        assert found == sorted([*left, *((key, "new") for key in new)])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("key", quick_only((-(2**63), -(2**63) + 66, 2**63 - 1, 66, 67, 70, 131), -(2**63), 67))
def test_a_filter_on_a_key_far_from_the_touched_ones_finds_its_row(
    spark: SparkSession, key: int, *, compiled: bool
) -> None:
    rows = spark.createDataFrame([(each, "old") for each in (-(2**63), 66, 67, 70, 2**63 - 1)], "v1 long, v2 string")
    touched = pa.table({"v1": pa.array([67, 131], pa.int64())})
    few = Few(pa.table({"v1": pa.array([], pa.int64()), "v2": pa.array([], pa.string())}), touched, truncated=False)
    wanted = [(key, "old")] if key in (-(2**63), 66, 70, 2**63 - 1) else []
    with set_in(spark, {"spark.sql.codegen.wholeStage": str(compiled).lower()}):
        for condition in (f"v1 = {key}", f"v1 in ({key})", f"{key} <= v1 and v1 <= {key}"):
            found = overlaid(rows, few, SHAPE).where(condition)
            assert [tuple(row) for row in found.collect()] == wanted


def test_integers_that_lie_close_become_a_bitmap_and_others_do_not() -> None:
    for which, bitmap in {"close integers": True, "all there are": True, "far apart": False, "texts": False}.items():
        kind, keys = KEYS[which]
        assert (overlay._bits(pa.table({"v1": pa.array(list(keys), KINDS[kind])})) is not None) is bitmap


COLUMNS = ("k", "v", "_change_type", "_commit_version", "_ordinal", "_unchanged", "_truncate")
TYPES = (pa.int32(), pa.string(), pa.string(), pa.int64(), pa.int64(), pa.string(), pa.int32())


def changes(*said: tuple[Any, ...]) -> pa.Table:
    """Rows as (k, v, kind, commit, ordinal[, marks[, truncate]])."""
    rows = [(*each, *[None] * (len(COLUMNS) - len(each))) for each in said]
    arrays = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), TYPES, strict=True)]
    return pa.table(arrays, names=list(COLUMNS))


def test_a_truncate_leaves_only_what_came_after_it(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1, "old"), (2, "old")], "v1 int, v2 string")
    said = changes(
        (1, "before", "update_postimage", 10, 1),
        (None, None, "truncate", 10, 2, None, 1),
        (3, "same commit", "insert", 10, 3),
        (3, "later", "update_postimage", 11, 1),
        (4, "gone", "insert", 11, 2),
        (4, None, "delete", 12, 1),
    )
    few = merged_here(said, SHAPE)
    assert few is not None
    assert few.truncated
    assert [tuple(row) for row in overlaid(rows, few, SHAPE).collect()] == [(3, "later")]


MOVES = (
    (2, None, "update_postimage", 10, 1, ",2,"),
    (3, None, "update_preimage", 11, 1),
    (30, None, "update_postimage", 11, 1, ",2,"),
    (30, None, "update_preimage", 12, 1),
    (31, None, "update_postimage", 12, 1, ",2,"),
    (4, "sent", "update_postimage", 12, 2),
    (4, None, "update_preimage", 12, 3),
    (40, None, "update_postimage", 12, 3, ",2,"),
    (3, "another", "insert", 13, 1),
    (5, None, "delete", 13, 2),
)


def test_a_value_that_was_not_sent_is_found_in_an_earlier_change_or_under_the_key_that_the_row_had(
    spark: SparkSession,
) -> None:
    rows = spark.createDataFrame([(n, f"folded {n}") for n in range(1, 6)], "v1 int, v2 string")
    few = merged_here(changes(*MOVES), SHAPE)
    assert few is not None
    found = {tuple(row) for row in overlaid(rows, few, SHAPE).collect()}
    assert found == {(1, "folded 1"), (2, "folded 2"), (31, "folded 3"), (40, "sent"), (3, "another")}


def test_whoever_looks_up_one_key_borrows_for_no_other() -> None:
    few = merged_here(changes(*MOVES), SHAPE)
    assert few is not None
    incomplete = few.for_key(SHAPE, [31]).incomplete
    assert incomplete is not None
    assert incomplete["its_v1"].to_pylist() == [3]
    assert few.for_key(SHAPE, [40]).incomplete is None


def test_a_value_that_nobody_has_is_an_error_and_a_key_that_was_not_sent_is_left_to_spark(spark: SparkSession) -> None:
    few = merged_here(changes((7, None, "update_postimage", 10, 1, ",2,")), SHAPE)
    assert few is not None
    with pytest.raises(Exception, match="column v: the value of an unchanged TOAST column is missing"):
        overlaid(spark.createDataFrame([(1, "old")], "v1 int, v2 string"), few, SHAPE).collect()
    assert merged_here(changes((7, "new", "update_postimage", 10, 1, ",1,")), SHAPE) is None
    gone = changes((7, None, "delete", 10, 1), (7, None, "update_postimage", 11, 1, ",2,"))
    assert merged_here(gone, SHAPE) is None
