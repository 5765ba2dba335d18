"""The quotient of a numeric and a count is the one that PostgreSQL computes, with the same digits."""

from __future__ import annotations

import random
from decimal import Decimal

import pyarrow as pa
import pytest

from harness.postgres import Server
from tests.conftest import NEWEST
from tidemark.engines.quotients import TooManyDigits, quotient_scales, quotients

pytestmark = pytest.mark.quick

SCALES = (0, 1, 2, 3, 4, 5, 8, 9, 15, 16)


def pairs(scale: int) -> list[tuple[Decimal, int]]:
    """Totals and counts of all magnitudes, and those at the limits of groups of four digits."""
    chance = random.Random(scale)  # noqa: S311 - repeatable
    digits = [10**n + d for n in range(18) for d in (-1, 0, 1)]
    digits += [chance.randrange(10 ** chance.randint(1, 18)) for _ in range(150)]
    counts = [1, 2, 3, 7, 9, 10, 9_999, 10_000, 10_001, 99_999_999, 100_000_000]
    counts += [chance.randint(1, 10**6) for _ in range(30)]
    totals = [Decimal(sign * number).scaleb(-scale) for number in digits for sign in (1, -1)]
    return [(total, count) for total in totals for count in chance.sample(counts, 6)]


@NEWEST
@pytest.mark.parametrize("scale", SCALES)
def test_a_quotient_has_the_digits_of_postgresqls(server: Server, scale: int) -> None:
    given = pairs(scale)
    texts = "{" + ",".join(format(total, "f") for total, _ in given) + "}"
    counts = "{" + ",".join(str(count) for _, count in given) + "}"
    query = (
        f"select (t / n)::text, scale(t / n) from unnest('{texts}'::numeric(38,{scale})[], '{counts}'::int8[]) x (t, n)"
    )
    with server.connect() as session:
        expected = session.execute(query.encode()).fetchall()
    wanted = [row for row in zip(given, expected, strict=True) if row[1][1] <= 20]
    assert len(wanted) > 100
    totals = pa.array([total for (total, _), _ in wanted], pa.decimal128(38, scale))
    numbers = pa.array([count for (_, count), _ in wanted], pa.int64())
    values, found_scales = quotients(totals, numbers).to_pylist(), quotient_scales(totals, numbers).to_pylist()
    for ((total, count), (text, digits)), value, found in zip(wanted, values, found_scales, strict=True):
        assert (found, format(round(value, digits), "f")) == (digits, text), (total, count)
    for (total, count), (_, digits) in zip(given, expected, strict=True):
        if digits > 20:
            with pytest.raises(TooManyDigits):
                quotients(pa.array([total], pa.decimal128(38, scale)), pa.array([count], pa.int64()))


def test_a_null_has_no_quotient() -> None:
    totals, counts = pa.array([None, Decimal(3)], pa.decimal128(38, 0)), pa.array([0, 2], pa.int64())
    assert quotients(totals, counts).to_pylist() == [None, Decimal("1.5")]
    assert quotient_scales(totals, counts).to_pylist() == [None, 16]


@pytest.mark.parametrize("count", [0, 3])
def test_columns_without_values_have_quotients_without_values(count: int) -> None:
    totals, counts = pa.nulls(count, pa.decimal128(38, 2)), pa.nulls(count, pa.int64())
    assert quotients(totals, counts).to_pylist() == quotient_scales(totals, counts).to_pylist() == [None] * count
    pieces = pa.chunked_array([totals]), pa.chunked_array([counts])  # as DuckDB passes them
    assert quotients(*pieces).to_pylist() == [None] * count


def test_a_quotient_that_is_too_large_is_refused() -> None:
    total = Decimal("9" * 38)
    with pytest.raises(ArithmeticError):
        quotients(pa.array([total], pa.decimal128(38, 0)), pa.array([1], pa.int64()))
