"""LSNs: PostgreSQL's text, order and distance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue

pytestmark = pytest.mark.quick

positions = st.integers(0, 2**64 - 1)


@given(positions)
def test_text_and_back(value: int) -> None:
    assert Lsn.parse(str(Lsn(value))) == Lsn(value)


@given(positions, positions)
def test_order_and_distance_are_those_of_the_positions(a: int, b: int) -> None:
    assert (Lsn(a) < Lsn(b)) == (a < b)
    assert Lsn(a) - Lsn(b) == a - b


def test_prints_as_pg_lsn_does() -> None:
    assert str(Lsn(0x16_B374D848)) == "16/B374D848"
    assert str(Lsn(0x1_0000_00A0)) == "1/A0"
    assert str(Lsn.ZERO) == "0/0"
    assert str(Lsn(2**64 - 1)) == "FFFFFFFF/FFFFFFFF"


def test_reads_zero_padded_text() -> None:
    assert Lsn.parse("0/016B3748") == Lsn(0x16B3748)


@pytest.mark.parametrize(
    "text",
    ["", "/", "0", "0/", "/0", " 0/0", "0/0\n", "0x0/0", "-1/0", "+1/0", "0/123456789", "g/0", "0/0/0", "١/0", "0_1/0"],
)
def test_what_is_not_an_lsn_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidValue, match="invalid LSN"):
        Lsn.parse(text)


@pytest.mark.parametrize("value", [-1, 2**64, 1.0, True, "0/0", None])
def test_only_64_bits_are_a_position(value: object) -> None:
    with pytest.raises(InvalidValue, match="invalid LSN"):
        Lsn(value)  # type: ignore[arg-type]


def test_an_lsn_is_not_comparable_with_a_number() -> None:
    with pytest.raises(TypeError):
        _ = Lsn(1) < 2  # type: ignore[operator]
    with pytest.raises(TypeError):
        _ = Lsn(1) - 1  # type: ignore[operator]
    assert Lsn(1) != object()
