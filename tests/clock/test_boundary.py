"""Boundaries as values."""

import pickle

import pytest

from tidemark.clock import Boundary, Lsn, Version, contents
from tidemark.errors import InvalidValue

pytestmark = pytest.mark.quick


def test_prints_what_it_leaves_out() -> None:
    assert str(Boundary(Lsn(0x100))) == "0/100"
    assert str(Boundary(Lsn(0x100), frozenset({Lsn(0x20), Lsn(0x10)}))) == "0/100 without 0/10, 0/20"


def test_an_exclusion_beyond_the_position_is_refused() -> None:
    with pytest.raises(InvalidValue, match="excluded LSN 0/200 is above the boundary at 0/100"):
        Boundary(Lsn(0x100), frozenset({Lsn(0x200)}))


def test_a_row_removed_more_often_than_added_is_an_error_not_a_negative_count() -> None:
    with pytest.raises(InvalidValue, match="1 more deletes than inserts"):
        contents([Version("r", Lsn(50), Lsn(10))], Boundary(Lsn(20)))


def test_a_boundary_travels_to_executors() -> None:
    b = Boundary(Lsn(9), frozenset({Lsn(4)}))
    assert pickle.loads(pickle.dumps(b)) == b  # noqa: S301
