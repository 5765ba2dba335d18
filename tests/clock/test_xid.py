"""Transaction ids: 32 bits widened to 64, across wraparound in both directions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.clock import Xid8
from tidemark.errors import InvalidValue

pytestmark = pytest.mark.quick

full_ids = st.integers(3, 2**64 - 1).filter(lambda v: v % 2**32 >= 3)


@given(full_ids, st.integers(-(2**31) + 1, 2**31 - 1))
def test_widening_finds_every_id_less_than_half_a_wrap_away(value: int, distance: int) -> None:
    near = value + distance
    if not (0 <= near < 2**64) or near % 2**32 < 3:
        return
    assert Xid8(value).widen(Xid8(near).xid) == Xid8(near)


def test_an_id_from_before_the_wrap_is_widened_backwards() -> None:
    assert Xid8(7 << 32 | 10).widen(2**32 - 5) == Xid8((6 << 32) + 2**32 - 5)


def test_an_id_from_after_the_wrap_is_widened_forwards() -> None:
    assert Xid8((6 << 32) + 2**32 - 5).widen(10) == Xid8(7 << 32 | 10)


def test_the_guess_of_2_to_the_26_and_30_would_have_dropped_this_change() -> None:
    """Seed 000 takes xid 3·2^30 for 'after' xmax = 2^26 + 1, since neither of its thresholds fires."""
    xmax = Xid8(9 << 32 | (2**26 + 1))
    assert xmax.widen(3 * 2**30) < xmax


def test_exactly_half_a_wrap_away_is_refused() -> None:
    with pytest.raises(InvalidValue, match="ambiguous transaction ID"):
        Xid8(5 << 32 | 100).widen(2**31 + 100)


def test_before_the_first_epoch_there_is_nothing() -> None:
    with pytest.raises(InvalidValue, match="transaction ID out of range"):
        Xid8(100).widen(2**32 - 5)


@pytest.mark.parametrize("xid", [0, 1, 2, -1, 2**32, True, 3.0])
def test_reserved_and_oversized_ids_name_no_transaction(xid: int) -> None:
    with pytest.raises(InvalidValue, match="32-bit transaction ID"):
        Xid8(100).widen(xid)


def test_epoch_and_low_bits() -> None:
    xid = Xid8.parse("4294967299")
    assert (xid.epoch, xid.xid, str(xid)) == (1, 3, "4294967299")


@pytest.mark.parametrize("text", ["", "-1", "1.0", "0x1", "18446744073709551616", " 1", "1\n", "²"])
def test_what_is_not_an_xid_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="invalid transaction ID"):
        Xid8.parse(text)
