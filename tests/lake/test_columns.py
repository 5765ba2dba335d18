"""Stored columns: one attnum and one type for ever, under names that no engine confuses."""

from __future__ import annotations

from itertools import permutations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.lake.columns import OURS, StoredColumn, WantedColumn, arranged, free_name, stored_columns, wanted_columns
from tidemark.schema.table import Column, Generated, PgType
from tidemark.values.types import Types

pytestmark = pytest.mark.quick

INT, TEXT = pa.int32(), pa.string()


def wanted(*columns: tuple[int, str, pa.DataType]) -> list[WantedColumn]:
    return [WantedColumn(*column) for column in columns]


def names(stored: list[StoredColumn], *columns: tuple[int, str, pa.DataType]) -> list[str]:
    return [column.name for column in arranged(stored, wanted(*columns)).values()]


def test_a_column_keeps_its_name() -> None:
    assert names([], (1, "id", INT), (2, "Größe (cm)", TEXT)) == ["id", "Größe (cm)"]


def test_a_column_that_is_stored_is_found_again_under_whatever_name_it_has_now() -> None:
    stored = [StoredColumn("id", 1, INT), StoredColumn("a", 2, TEXT)]
    assert arranged(stored, wanted((1, "key", INT), (2, "b", TEXT))) == {1: stored[0], 2: stored[1]}


def test_names_that_differ_by_case_only_are_kept_apart() -> None:
    assert names([], (1, "id", INT), (2, "ID", INT), (3, "Id", INT)) == ["id", "ID~2", "Id~3"]


def test_a_column_dropped_and_added_again_is_another_column() -> None:
    stored = [StoredColumn("id", 1, INT), StoredColumn("a", 2, INT)]
    assert names(stored, (1, "id", INT), (3, "a", INT)) == ["id", "a~3"]


def test_a_widened_column_is_kept_beside_what_it_was() -> None:
    stored = [StoredColumn("n", 1, pa.decimal128(6, 2))]
    wide = arranged(stored, wanted((1, "n", pa.decimal128(12, 2))))
    assert wide == {1: StoredColumn("n~1", 1, pa.decimal128(12, 2))}
    again = arranged([*stored, *wide.values()], wanted((1, "n", TEXT)))
    assert again == {1: StoredColumn("n~1.1", 1, TEXT)}
    assert arranged([*stored, *wide.values(), *again.values()], wanted((1, "n", pa.decimal128(6, 2)))) == {1: stored[0]}


@pytest.mark.parametrize("name", OURS.names)
def test_our_own_names_are_not_given_away(name: str) -> None:
    assert names([], (1, name, INT), (2, name.upper(), INT)) == [f"{name}~1", f"{name.upper()}~2"]


def test_a_column_named_as_another_ones_text_is_kept_apart() -> None:
    assert names([], (1, "a", INT), (2, "a~text", TEXT)) == ["a", "a~text~2"]


def test_a_column_is_kept_apart_from_one_named_as_its_text_would_be() -> None:
    kept = arranged([], wanted((1, "a~text", TEXT), (2, "a", INT)))
    assert kept[2].fallback_column().name.lower() != kept[1].name.lower()
    later = arranged([kept[1]], wanted((1, "a~text", TEXT), (2, "A", INT)))
    assert later[2].fallback_column().name.lower() != later[1].name.lower()


def test_a_column_is_kept_apart_from_the_text_of_one_that_is_gone() -> None:
    stored = [StoredColumn("a", 1, INT), StoredColumn("a~text", 1, TEXT, text=True)]
    assert names(stored, (2, "a~text", TEXT)) == ["a~text~2"]


def test_text_beside_a_column_is_never_taken_for_a_column() -> None:
    """An attnum with a text column beside it, become text itself."""
    stored = [StoredColumn("a", 1, INT), StoredColumn("a~text", 1, TEXT, text=True)]
    assert arranged(stored, wanted((1, "a", TEXT))) == {1: StoredColumn("a~1", 1, TEXT)}


def test_a_free_name_is_found_however_many_are_taken() -> None:
    assert free_name("a", 3, set()) == "a"
    assert free_name("A", 3, {"a"}) == "A~3"
    assert free_name("a", 3, {"a", "a~3"}) == "a~3.1"
    assert free_name("a", 3, {"a", "a~3", "a~3.1"}) == "a~3.2"


def test_what_is_computed_when_it_is_read_is_not_stored() -> None:
    int4 = PgType(23, "pg_catalog.int4", "b")
    columns = [
        Column(1, "id", int4, -1, True, Generated.NO, None, None, 1),
        Column(2, "stored", int4, -1, False, Generated.STORED, "x", None, 1),
        Column(3, "virtual", int4, -1, False, Generated.VIRTUAL, "x", None, 1),
    ]
    assert wanted_columns(columns, Types()) == (WantedColumn(1, "id", INT), WantedColumn(2, "stored", INT))


def test_columns_come_back_from_a_schema() -> None:
    stored = (
        StoredColumn("a", 1, pa.timestamp("us", "UTC")),
        StoredColumn("a", 1, pa.timestamp("us", "UTC")).fallback_column(),
    )
    schema = pa.schema([*(column.field() for column in stored), *OURS])
    assert stored_columns(schema) == stored


tables = st.lists(
    st.tuples(
        st.sampled_from(["a", "A", "a~text", "A~TEXT", "a~1", "a~2", "a~2.1", "_xid", "_XID~text", "b", "ß", "ẞ"]),
        st.sampled_from([INT, TEXT]),
    ),
    min_size=1,
    max_size=6,
)


@given(st.lists(tables, min_size=1, max_size=4))
def test_whatever_becomes_of_a_table_every_stored_column_has_a_name_of_its_own(
    lives: list[list[tuple[str, pa.DataType]]],
) -> None:
    stored: list[StoredColumn] = []
    for life in lives:
        now = wanted(*((attnum, *column) for attnum, column in enumerate(life, 1)))
        kept = arranged(stored, now)
        assert [(each.attnum, each.type) for each in kept.values()] == [(each.attnum, each.type) for each in now]
        stored = list(dict.fromkeys([*stored, *kept.values()]))
        taken = [column.name.lower() for column in stored]
        assert len(set(taken)) == len(taken)
        assert not set(taken) & set(OURS.names)


ORDERS = list(permutations(["a", "A", "a~text"]))


@pytest.mark.parametrize("order", ORDERS)
def test_in_whatever_order_columns_come_none_is_named_as_the_text_of_another(order: tuple[str, ...]) -> None:
    kept = arranged([], wanted(*((attnum, name, INT) for attnum, name in enumerate(order, 1)))).values()
    taken = [name.lower() for column in kept for name in (column.name, column.fallback_column().name)]
    assert len(set(taken)) == len(taken)
