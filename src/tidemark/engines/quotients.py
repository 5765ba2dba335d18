"""PostgreSQL's quotient of a numeric and a count, for engines whose own division rounds in another way: pure.

PostgreSQL estimates the number of digits before the point from the first groups of four digits of both operands, and
rounds half away from zero to 16 significant digits at least (`select_div_scale` and `div_var` in its numeric.c).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.engines.arrays import in_one
from tidemark.split import ir
from tidemark.split.quotients import MOST_SCALE

RESULT = ir.decimal(ir.MOST_DIGITS, MOST_SCALE)
_SIGNIFICANT, _GROUP = 16, 10_000
_WIDTH = 16  # bytes of a decimal
_POWERS = [10**n for n in range(ir.MOST_DIGITS + 1)]


class TooManyDigits(ArithmeticError):
    """A quotient that needs more digits after the point than its type has."""


def quotients(totals: pa.Array, counts: pa.Array) -> pa.Array:
    """Return each total divided by its count, rounded half away from zero as PostgreSQL does."""
    totals, counts = in_one(totals), in_one(counts)
    scale, found = totals.type.scale, bytearray()
    for pair in _pairs(totals, counts):
        value = 0
        if pair is not None:
            total, count = pair
            wanted = _scale(total, count, scale)
            whole = (2 * abs(total) * _POWERS[wanted - scale] + count) // (2 * count) * _POWERS[MOST_SCALE - wanted]
            value = -whole if total < 0 else whole
        found += value.to_bytes(_WIDTH, "little", signed=True)
    type_ = pa.decimal128(RESULT.precision, RESULT.scale)
    values = pa.Array.from_buffers(type_, len(totals), [None, pa.py_buffer(bytes(found))])
    if any(abs(value) >= _POWERS[RESULT.precision] for value in _integers(values)):
        raise TooManyDigits("a quotient of more than 38 digits")
    return pc.if_else(pc.and_(pc.is_valid(totals), pc.is_valid(counts)), values, pa.scalar(None, type_))


def quotient_scales(totals: pa.Array, counts: pa.Array) -> pa.Array:
    """Return the number of digits after the point of each quotient."""
    totals, counts = in_one(totals), in_one(counts)
    scale = totals.type.scale
    return pa.array([None if pair is None else _scale(*pair, scale) for pair in _pairs(totals, counts)], pa.int32())


def _pairs(totals: pa.Array, counts: pa.Array) -> Iterator[tuple[int, int] | None]:
    """Yield the digits of each total as an integer, with its count; None if a value is NULL."""
    are_known = pc.and_(pc.is_valid(totals), pc.is_valid(counts)).to_pylist()
    for is_known, total, count in zip(are_known, _integers(totals), counts.to_pylist(), strict=True):
        yield (total, count) if is_known else None


def _integers(values: pa.Array) -> Iterator[int]:
    """Yield the digits of decimals as integers; any number for NULL."""
    if not len(values):  # there may be no buffer
        return
    data, first = memoryview(values.buffers()[1]), values.offset * _WIDTH
    for place in range(first, first + len(values) * _WIDTH, _WIDTH):
        yield int.from_bytes(data[place : place + _WIDTH], "little", signed=True)


def _scale(total: int, count: int, scale: int) -> int:
    weight, first = _leading(abs(total), scale)
    weight_of_count, first_of_count = _leading(count, 0)
    weight -= weight_of_count
    if first <= first_of_count:
        weight -= 1
    found = max(_SIGNIFICANT - 4 * weight, scale, 0)
    if found > MOST_SCALE:
        raise TooManyDigits(f"{found} digits after the point")
    return found


def _leading(digits: int, scale: int) -> tuple[int, int]:
    """Return the position of the first group of four digits that is not zero, counted from the point, and the group."""
    if digits == 0:
        return 0, 0
    padding = -scale % 4
    groups, weight = digits * 10**padding, -((scale + padding) // 4)
    while groups >= _GROUP:
        groups //= _GROUP
        weight += 1
    return weight, groups
