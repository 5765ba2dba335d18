"""Paths: any name PostgreSQL allows becomes letters that every file system and engine takes as they are."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.errors import InvalidValue
from tidemark.lake.paths import CHANGES, escaped, table_path, unescaped

pytestmark = pytest.mark.quick

# A name is 1 to 63 bytes of UTF-8 without NUL.
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=63).filter(
    lambda name: len(name.encode()) <= 63
)
BITING = ("_t", "__", ".", "..", "a/b", "%2F", "~5Ft", "a b", "[x]", "ümläut", "T", "a\nb", "=", "changes", "😀")


@given(names)
@example("_t")
@example("~5Ft")
@example("..")
def test_a_name_comes_back_from_its_path(name: str) -> None:
    assert unescaped(escaped(name)) == name


@given(names)
def test_a_part_of_a_path_has_only_letters_that_nobody_interprets(name: str) -> None:
    part = escaped(name)
    assert re.fullmatch(r"[A-Za-z0-9~-][A-Za-z0-9_~-]*", part)
    assert len(part) <= 255


@given(names, names)
def test_no_two_names_have_the_same_path(one: str, other: str) -> None:
    assert (escaped(one) == escaped(other)) == (one == other)


def test_names_that_bite_stay_apart() -> None:
    assert len({escaped(name) for name in BITING}) == len(BITING)
    assert [unescaped(escaped(name)) for name in BITING] == list(BITING)


def test_an_ordinary_name_is_its_own_path() -> None:
    assert table_path("public", "order_items-2", 1, frozenset()) == "public/order_items-2"
    assert escaped("_t") == "~5Ft"
    assert escaped("a.b") == "a~2Eb"


@pytest.mark.parametrize("part", ["_t", "a.b", "~5f", "~", "~41", "a~", "~C3", "ü", "~~5", "a/b", "t~~16384"])
def test_what_no_name_is_written_as_is_refused(part: str) -> None:
    with pytest.raises(InvalidValue, match="not how a name is written"):
        unescaped(part)


@given(names, names, names, names, st.integers(1, 2**32 - 1), st.integers(1, 2**32 - 1))
def test_a_later_table_of_a_name_lies_where_no_table_does_by_its_name(
    schema: str, name: str, other_schema: str, other: str, oid: int, later: int
) -> None:
    first = table_path(schema, name, oid, frozenset())
    second = table_path(schema, name, later, frozenset({first}))
    assert second == f"{first}~~{later}"
    assert table_path(other_schema, other, oid, frozenset()) != second
    assert CHANGES not in second.split("/")[2:]
