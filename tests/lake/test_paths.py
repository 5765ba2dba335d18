"""Paths: a table lies where nothing that its owner names can lead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import InvalidValue
from tidemark.lake.paths import require_plain, table_path

pytestmark = pytest.mark.quick


@given(st.integers(1, 2**32 - 1))
def test_a_table_lies_where_every_engine_takes_the_path_as_it_is(oid: int) -> None:
    assert re.fullmatch(r"tables/[0-9]+", table_path(oid))
    assert table_path(oid) != table_path(oid % (2**32 - 1) + 1)


@pytest.mark.parametrize("name", ["a%2F", "[a]", "a*", "what?", "a{b}", "a\\b"])
def test_a_lake_lies_only_where_every_engine_takes_the_path_as_it_is(name: str) -> None:
    with pytest.raises(InvalidValue, match="invalid path for a lake"):
        require_plain(Path("/lakes") / name)
