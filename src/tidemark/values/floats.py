"""float4 and float8.

binary  IEEE 754, big-endian
text    the shortest decimal that parses to the same number; NaN, Infinity, -Infinity. With an exponent if that is
        below -4, or from 6 (float4) or 15 (float8) on

Digits are computed by Raffaello Giulietti's Schubfach ("The Schubfach way to render doubles", 2021), here without the
bounds of the rounding interval: PostgreSQL (common/d2s.c) prints no decimal exactly halfway to a neighboring float.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.values.cells import Cells, DecodedColumn, fixed, present, same_width, values_of, written
from tidemark.values.failure import bad_value, require_good
from tidemark.values.integers import big_endian
from tidemark.values.kernels import OK, Bytes, Ints, Longs, kernel, put_infinity, put_number
from tidemark.values.text import as_strings

WORDS = pa.array(["NaN", "Infinity", "-Infinity"])
_MOST_BYTES = 25  # -1.7976931348623157e+308, and one digit that trailing zeros are removed from
_FIRST_POWER, _LAST_POWER = -324, 292


def _powers() -> npt.NDArray[np.uint64]:
    """Return 10^-k, rounded up to 126 bits, as two halves of 63 bits, for each k from the first to the last power."""
    halves = []
    for k in range(_FIRST_POWER, _LAST_POWER + 1):
        power = Fraction(10) ** -k
        shift = 125 - (-k * 913_124_641_741 >> 38)  # 125 - floor(log2(10^-k))
        whole = int(power * 2**shift if shift >= 0 else power / 2**-shift) + 1
        halves += [whole >> 63, whole & (2**63 - 1)]
    return np.array(halves, np.uint64)


_POWERS = _powers()


def float4(cells: Cells, binary: bool) -> DecodedColumn:
    """float4 to float32."""
    return _float("float4", cells, binary, np.int32, pa.float32())


def float8(cells: Cells, binary: bool) -> DecodedColumn:
    """float8 to float64."""
    return _float("float8", cells, binary, np.int64, pa.float64())


def float_text(array: pa.Array) -> Cells:
    """Floats of either width as float4out and float8out print them."""
    width = array.type.bit_width // 8
    bits = values_of(array, f"u{width}").astype(np.uint64)
    stored, limit = (52, 15) if width == 8 else (23, 6)
    cells, _ = written(_texts, present(array), _MOST_BYTES * len(array), bits, stored, limit)
    return cells


def float_binary(array: pa.Array) -> Cells:
    """Floats of either width to big-endian IEEE 754; every NaN keeps its bits."""
    width = array.type.bit_width // 8
    return same_width(values_of(array, f"u{width}").astype(f">u{width}"), present(array))


def _float(name: str, cells: Cells, binary: bool, bits: Any, kind: pa.DataType) -> DecodedColumn:
    if binary:
        out = np.zeros(len(cells), bits)
        require_good(name, cells, big_endian(cells, out))
        return DecodedColumn(fixed(kind, out, cells.lengths))
    strings = as_strings(name, cells)
    try:
        values = pc.cast(strings, kind)
    except pa.ArrowInvalid:
        bad_value(name, cells, _first_not_a_float(strings))
    special = pc.invert(pc.is_finite(values))
    wrong = pc.and_(special, pc.invert(pc.is_in(strings, WORDS)))  # overflow, or spelled differently
    if pc.any(wrong).as_py():
        bad_value(name, cells, pc.index(wrong, True).as_py())
    return DecodedColumn(values)


def _first_not_a_float(strings: pa.StringArray) -> int:
    for at, value in enumerate(strings.to_pylist()):
        try:
            pc.cast(pa.array([value], pa.string()), pa.float64())
        except pa.ArrowInvalid:
            return at
    return 0


@kernel
def _high(a: Any, b: Any) -> Any:
    """Return the upper 64 bits of a product."""
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    low, high = b & mask, b >> half
    carry = (a >> half) * low + ((a & mask) * low >> half)
    return (a >> half) * high + (carry >> half) + ((a & mask) * high + (carry & mask) >> half)


@kernel
def _scaled(power: int, c: Any) -> Any:
    """Return c · 10^-k · 2^-127, rounded to odd: the last bit is set if any bit behind it is."""
    mask = np.uint64(0x7FFFFFFFFFFFFFFF)
    one = np.uint64(1)
    upper, lower = _POWERS[2 * power], _POWERS[2 * power + 1]
    rest = (upper * c >> one) + _high(lower, c)
    return _high(upper, c) + (rest >> np.uint64(63)) | (rest & mask) + mask >> np.uint64(63)


@kernel
def _shortest(mantissa: Any, exponent: int, irregular: bool) -> Any:
    """Return the fewest decimal digits that parse to mantissa · 2^exponent, and their exponent.

    `irregular` means that the next float below is nearer than the next above.
    """
    one, two, ten = np.uint64(1), np.uint64(2), np.uint64(10)
    k = exponent * 661_971_961_083 - (274_743_187_321 if irregular else 0) >> 41  # floor(log10(…))
    shift = np.uint64(exponent + (-k * 913_124_641_741 >> 38) + 2)
    power = k - _FIRST_POWER
    four = mantissa << two
    value = _scaled(power, four << shift)
    low = _scaled(power, four - (one if irregular else two) << shift)
    high = _scaled(power, four + two << shift)
    below = value >> two
    if below >= ten:
        tens = below // ten * ten
        under, over = low < tens << two, tens + ten << two < high
        if under != over:
            return tens if under else tens + ten, k
    under, over = low < below << two, below + one << two < high
    if under != over:
        return below if under else below + one, k
    middle = (below << two) + two
    return below if value < middle or (value == middle and below & one == np.uint64(0)) else below + one, k


@kernel
def _put_digits(out: Bytes, at: int, digits: Any, exponent: int, limit: int) -> Any:
    """Write digits · 10^exponent, with an exponent if that of the first digit is below -4 or from `limit` on."""
    ten = np.uint64(10)
    while digits // ten * ten == digits:
        digits //= ten
        exponent += 1
    width = put_number(out, at, digits, 1) - at
    first = exponent + width - 1
    if first < -4 or first >= limit:
        if width > 1:
            for k in range(at + width, at + 1, -1):
                out[k] = out[k - 1]
            out[at + 1] = 46
        at += width + (width > 1)
        out[at] = 101
        out[at + 1] = 45 if first < 0 else 43
        return put_number(out, at + 2, abs(first), 2)
    if first < 0:
        out[at], out[at + 1] = 48, 46
        return put_number(out, at + 2, digits, width - first - 1)
    for k in range(at + width, at + first + 1):
        out[k] = 48
    if width <= first + 1:
        return at + first + 1
    for k in range(at + width, at + first + 1, -1):
        out[k] = out[k - 1]
    out[at + first + 1] = 46
    return at + width + 1


@kernel
def _texts(bits: Any, stored: int, limit: int, offsets: Longs, lengths: Ints, out: Bytes) -> Any:
    """Write floats with `stored` bits of the mantissa."""
    hidden = np.uint64(1) << np.uint64(stored)
    most = 2047 if stored == 52 else 255
    at = 0
    for i in range(len(bits)):
        offsets[i] = at
        if lengths[i] < 0:
            continue
        mantissa = bits[i] & (hidden - np.uint64(1))
        biased = np.int64(bits[i] >> np.uint64(stored)) & most
        negative = np.int64(bits[i] >> np.uint64(stored)) > most
        if biased == most:
            if mantissa != np.uint64(0):
                out[at], out[at + 1], out[at + 2] = 78, 97, 78
                at += 3
            else:
                at = put_infinity(out, at, negative, 73)
        else:
            if negative:
                out[at] = 45
                at += 1
            exponent = (biased if biased > 0 else 1) - most // 2 - stored
            irregular = mantissa == np.uint64(0) and biased > 1
            mantissa |= hidden if biased > 0 else np.uint64(0)
            if mantissa == np.uint64(0):
                out[at] = 48
                at += 1
            else:
                digits, exponent = _shortest(mantissa, exponent, irregular)
                at = _put_digits(out, at, digits, exponent, limit)
        lengths[i] = at - offsets[i]
    return OK
