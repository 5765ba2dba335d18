"""numeric: to DECIMAL(p, s) if 0 ≤ s ≤ p ≤ 38, otherwise to PostgreSQL's text.

    binary  uint16 digits, int16 weight, uint16 sign, uint16 scale, then that many base-10000 digits (uint16);
            the first digit counts 10000^weight. Sign: 0 plus, 0x4000 minus, 0xC000 NaN, 0xD000 and 0xF000 infinities
    text    -123.4500, NaN, Infinity, -Infinity

DECIMAL has no NaN: it is stored in the text fallback.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.values.cells import Cells, DecodedColumn, fixed, present, require_room, values_of, variable, written
from tidemark.values.failure import require_good
from tidemark.values.kernels import (
    OK,
    Bytes,
    Flags,
    Ints,
    Longs,
    be16,
    is_infinity,
    kernel,
    put16,
    put_infinity,
    put_number,
)
from tidemark.values.text import as_strings

_POWERS = (1, 10, 100, 1000, 10000)
_LONG_POWERS = np.array([10**n for n in range(19)], np.uint64)
_SHORT = 4  # base-10000 digits that always fit in 64 bits
NAN, PLUS_INFINITY, MINUS_INFINITY, MINUS = 0xC000, 0xD000, 0xF000, 0x4000
_INFINITE_SCALE = 0x20  # numeric_send reads the scale of an infinity from bits of its header
_DECIMAL_BYTES = 41  # 38 digits, a sign, a point, and a zero before it


def decimal(cells: Cells, binary: bool, precision: int, scale: int) -> DecodedColumn:
    """numeric(p, s) to decimal128(p, s)."""
    out = np.zeros(2 * len(cells), np.uint64)
    special = np.zeros(len(cells), np.bool_)
    limit = 10**precision
    high, low = np.uint64(limit >> 64), np.uint64(limit & (2**64 - 1))
    run = _from_binary if binary else _from_text
    bad = run(cells.buffer, cells.offsets, cells.lengths, scale, high, low, out, special)
    require_good(f"numeric({precision},{scale})", cells, bad)
    array = fixed(pa.decimal128(precision, scale), out, cells.lengths, special)
    if not special.any():
        return DecodedColumn(array)
    return DecodedColumn(array, numeric_text(cells.where(special), binary).array)


def numeric_text(cells: Cells, binary: bool) -> DecodedColumn:
    """Numeric of any size to its exact text, with all the digits that PostgreSQL stores."""
    if not binary:
        require_good("numeric", cells, _texts_are_good(cells.buffer, cells.offsets, cells.lengths))
        return DecodedColumn(as_strings("numeric", cells))
    offsets = np.zeros(len(cells) + 1, np.int64)
    require_good("numeric", cells, _text_sizes(cells.buffer, cells.offsets, cells.lengths, offsets))
    require_room(cells, int(offsets[-1]))
    out = np.empty(int(offsets[-1]), np.uint8)
    _write_texts(cells.buffer, cells.offsets, cells.lengths, offsets, out)
    return DecodedColumn(variable(pa.string(), offsets.astype(np.int32), out, cells.lengths))


def decimal_text(array: pa.Array) -> Cells:
    """decimal128(p, s) to text, with all digits of the scale."""
    halves = values_of(array, "u8,u8")
    low, high = halves["f0"].copy(), halves["f1"].copy()
    cells, _ = written(_decimal_texts, present(array), _DECIMAL_BYTES * len(array), low, high, array.type.scale)
    return cells


def decimal_binary(array: pa.Array) -> Cells:
    """decimal128(p, s) to the binary format of numeric, by its text."""
    return parsed_numeric(decimal_text(array))


def parsed_numeric(cells: Cells) -> Cells:
    """Convert the text of numeric to binary."""
    require_good("numeric", cells, _texts_are_good(cells.buffer, cells.offsets, cells.lengths))
    room = int((8 + 2 * (np.maximum(cells.lengths, 0).astype(np.int64) // 4 + 2)).sum())
    found, _ = written(_parsed_numerics, cells.lengths >= 0, room, cells.buffer, cells.offsets, cells.lengths)
    return found


@kernel
def _u16(buffer: Bytes, at: int) -> Any:
    return np.int64(be16(buffer, at))


@kernel
def _i16(buffer: Bytes, at: int) -> Any:
    return np.int64(np.int16(be16(buffer, at)))


@kernel
def _times_plus(high: Any, low: Any, factor: Any, addend: Any) -> Any:
    """Compute (high, low) · factor + addend in 128 bits, for a factor and an addend below 2^32."""
    mask = np.uint64(0xFFFFFFFF)
    a = (low & mask) * factor + addend
    b = (low >> np.uint64(32)) * factor + (a >> np.uint64(32))
    c = (high & mask) * factor + (b >> np.uint64(32))
    d = (high >> np.uint64(32)) * factor + (c >> np.uint64(32))
    overflow = d >> np.uint64(32) != np.uint64(0)
    return (d & mask) << np.uint64(32) | c & mask, (b & mask) << np.uint64(32) | a & mask, overflow


@kernel
def _store(out: Any, i: int, high: Any, low: Any, negative: bool) -> None:
    if negative:
        low = ~low + np.uint64(1)
        high = ~high + (np.uint64(1) if low == np.uint64(0) else np.uint64(0))
    out[2 * i] = low
    out[2 * i + 1] = high


@kernel
def _header_is_good(buffer: Bytes, at: int, length: int) -> Any:
    if length < 8:
        return False
    digits, sign = _u16(buffer, at), _u16(buffer, at + 4)
    if length != 8 + 2 * digits or _u16(buffer, at + 6) > 0x3FFF:
        return False
    if sign != 0 and sign != MINUS:
        return sign == NAN or sign == PLUS_INFINITY or sign == MINUS_INFINITY
    for k in range(digits):
        if _u16(buffer, at + 8 + 2 * k) >= 10000:
            return False
    return True


@kernel
def _groups(buffer: Bytes, at: int, digits: int) -> Any:
    value = np.uint64(0)
    for k in range(digits):
        value = value * np.uint64(10000) + np.uint64(_u16(buffer, at + 8 + 2 * k))
    return value


@kernel
def _from_binary(
    buffer: Bytes, offsets: Longs, lengths: Ints, scale: int, limit_high: Any, limit_low: Any, out: Any, special: Flags
) -> Any:
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        at = offsets[i]
        if not _header_is_good(buffer, at, lengths[i]):
            return i
        digits, weight, sign = _u16(buffer, at), _i16(buffer, at + 2), _u16(buffer, at + 4)
        if sign != 0 and sign != MINUS:
            special[i] = True
            continue
        shift = 4 * (weight - digits + 1) + scale
        if digits <= _SHORT and -16 <= shift <= 18:
            groups = _groups(buffer, at, digits)
            power = _LONG_POWERS[abs(shift)]
            value = groups // power if shift < 0 else groups * power
            if shift < 0 and value * power != groups:
                return i
            if shift <= 0 or groups < _LONG_POWERS[18 - shift]:
                if limit_high == np.uint64(0) and value >= limit_low:
                    return i
                _store(out, i, np.uint64(0), value, sign == MINUS)
                continue
        if digits > 0 and weight > 9:  # 10000^10 is beyond any DECIMAL
            return i
        high, low, over = np.uint64(0), np.uint64(0), False
        # Groups count 10000^weight, …, 10000^0, then 10000^-1, … down to the group that contains the last digit of the
        # scale.
        last = -((scale + 3) // 4)
        for group in range(max(weight, 0), last - 1, -1):
            k = weight - group
            digit = _u16(buffer, at + 8 + 2 * k) if 0 <= k < digits else 0
            take = 4 if group >= 0 else min(4, scale - 4 * (-group - 1))
            cut = np.uint64(_POWERS[4 - take])
            if np.uint64(digit) % cut != np.uint64(0):
                return i
            high, low, overflow = _times_plus(high, low, np.uint64(_POWERS[take]), np.uint64(digit) // cut)
            over |= overflow
        for k in range(max(weight - last + 1, 0), digits):
            if _u16(buffer, at + 8 + 2 * k) != 0:
                return i
        if over or high > limit_high or (high == limit_high and low >= limit_low):
            return i
        _store(out, i, high, low, sign == MINUS)
    return OK


@kernel
def _is_word(buffer: Bytes, at: int, length: int) -> Any:
    """Whether this is NaN, Infinity or -Infinity; no other value shares the first letter."""
    if length == 3:
        return buffer[at] == 78 and buffer[at + 1] == 97 and buffer[at + 2] == 78
    return is_infinity(buffer, at, length, 73)


@kernel
def _from_text(
    buffer: Bytes, offsets: Longs, lengths: Ints, scale: int, limit_high: Any, limit_low: Any, out: Any, special: Flags
) -> Any:
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        at, end = offsets[i], offsets[i] + lengths[i]
        negative = at < end and buffer[at] == 45
        start = at + 1 if negative else at
        if start >= end or buffer[start] < 48 or buffer[start] > 57:
            if not _is_word(buffer, at, lengths[i]):
                return i
            special[i] = True
            continue
        high, low, over, fraction = np.uint64(0), np.uint64(0), False, -1
        for p in range(start, end):
            if buffer[p] == 46 and fraction < 0 and p + 1 < end:
                fraction = 0
                continue
            digit = np.int64(buffer[p]) - 48
            if digit < 0 or digit > 9:
                return i
            fraction += fraction >= 0
            high, low, overflow = _times_plus(high, low, np.uint64(10), np.uint64(digit))
            over |= overflow
        missing = scale - max(fraction, 0)
        if missing < 0:
            return i
        for _ in range(missing):
            high, low, overflow = _times_plus(high, low, np.uint64(10), np.uint64(0))
            over |= overflow
        if over or high > limit_high or (high == limit_high and low >= limit_low):
            return i
        _store(out, i, high, low, negative)
    return OK


@kernel
def _texts_are_good(buffer: Bytes, offsets: Longs, lengths: Ints) -> Any:
    """Check for an optional minus sign, digits, and an optional point and digits; or one of the words."""
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        at, end = offsets[i], offsets[i] + lengths[i]
        if _is_word(buffer, at, lengths[i]):
            continue
        if at < end and buffer[at] == 45:
            at += 1
        point = False
        if at == end or buffer[end - 1] == 46 or buffer[at] == 46:
            return i
        for p in range(at, end):
            if buffer[p] == 46 and not point:
                point = True
            elif buffer[p] < 48 or buffer[p] > 57:
                return i
    return OK


@kernel
def _digit_count(value: int) -> Any:
    return 1 if value < 10 else 2 if value < 100 else 3 if value < 1000 else 4


@kernel
def _text_sizes(buffer: Bytes, offsets: Longs, lengths: Ints, starts: Longs) -> Any:
    total = np.int64(0)
    for i in range(len(offsets)):
        starts[i] = total
        if lengths[i] < 0:
            continue
        at = offsets[i]
        if not _header_is_good(buffer, at, lengths[i]):
            return i
        digits, weight = _u16(buffer, at), _i16(buffer, at + 2)
        sign, scale = _u16(buffer, at + 4), _u16(buffer, at + 6)
        if sign == NAN:
            total += 3
        elif sign == PLUS_INFINITY:
            total += 8
        elif sign == MINUS_INFINITY:
            total += 9
        else:
            first = _u16(buffer, at + 8) if digits > 0 else 0
            whole = 1 if weight < 0 else 4 * weight + _digit_count(first)
            total += whole + (1 if sign == MINUS else 0) + (scale + 1 if scale else 0)
    starts[len(offsets)] = total
    return OK


@kernel
def _write_word(out: Bytes, at: int, sign: int) -> None:
    if sign == NAN:
        out[at], out[at + 1], out[at + 2] = 78, 97, 78
    else:
        put_infinity(out, at, sign == MINUS_INFINITY, 73)


@kernel
def _write_group(out: Bytes, at: int, value: int, width: int) -> None:
    """Write the last `width` decimal digits of `value`."""
    for k in range(width):
        out[at + width - 1 - k] = 48 + value % 10
        value //= 10


@kernel
def _write_texts(buffer: Bytes, offsets: Longs, lengths: Ints, starts: Longs, out: Bytes) -> None:
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        at, to = offsets[i], np.int64(starts[i])
        digits, weight = _u16(buffer, at), _i16(buffer, at + 2)
        sign, scale = _u16(buffer, at + 4), _u16(buffer, at + 6)
        if sign != 0 and sign != MINUS:
            _write_word(out, to, sign)
            continue
        if sign == MINUS:
            out[to] = 45
            to += 1
        if weight < 0:
            out[to] = 48
            to += 1
        for k in range(weight + 1):
            group = _u16(buffer, at + 8 + 2 * k) if k < digits else 0
            width = _digit_count(group) if k == 0 else 4
            _write_group(out, to, group, width)
            to += width
        if scale:
            out[to] = 46
            to += 1
        for position in range(0, scale, 4):
            k = weight + 1 + position // 4
            group = _u16(buffer, at + 8 + 2 * k) if 0 <= k < digits else 0
            width = min(4, scale - position)
            _write_group(out, to, group // _POWERS[4 - width], width)
            to += width


@kernel
def _divided(high: Any, low: Any) -> Any:
    """Divide 128 bits by 10^9; return the two halves of the quotient and the remainder."""
    half, mask, billion = np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64(1_000_000_000)
    a = high >> half
    b = (a % billion) << half | high & mask
    c = (b % billion) << half | low >> half
    d = (c % billion) << half | low & mask
    return (a // billion) << half | b // billion, (c // billion) << half | d // billion, d % billion


@kernel
def _put_whole(out: Bytes, at: Any, high: Any, low: Any) -> Any:
    """Write the digits of 128 bits."""
    if high == np.uint64(0):
        return put_number(out, at, low, 1)
    high, low, last = _divided(high, low)
    high, low, middle = _divided(high, low)
    if high == np.uint64(0):
        at = put_number(out, at, low, 1)
    else:  # at most 39 digits: 12 before two groups of nine are 21
        high, low, first = _divided(high, low)
        at = put_number(out, put_number(out, at, low, 1), first, 9)
    return put_number(out, put_number(out, at, middle, 9), last, 9)


@kernel
def _decimal_texts(lows: Any, highs: Any, scale: int, offsets: Longs, lengths: Ints, out: Bytes) -> Any:
    at = 0
    for i in range(len(lows)):
        offsets[i] = at
        if lengths[i] < 0:
            continue
        low, high = lows[i], highs[i]
        if np.int64(high) < 0:
            low = ~low + np.uint64(1)
            high = ~high + (np.uint64(1) if low == np.uint64(0) else np.uint64(0))
            out[at] = 45
            at += 1
        end = _put_whole(out, at, high, low)
        missing = scale + 1 - (end - at)
        if missing > 0:  # zeros before the first digit
            for k in range(end - 1, at - 1, -1):
                out[k + missing] = out[k]
            for k in range(at, at + missing):
                out[k] = 48
            end += missing
        if scale > 0:
            for k in range(end, end - scale, -1):
                out[k] = out[k - 1]
            out[end - scale] = 46
            end += 1
        at = end
        lengths[i] = at - offsets[i]
    return OK


@kernel
def _put_header(out: Bytes, at: Any, digits: Any, weight: Any, sign: Any, scale: Any) -> Any:
    return put16(out, put16(out, put16(out, put16(out, at, digits), weight), sign), scale)


@kernel
def _group_of(buffer: Bytes, begin: Any, point: Any, end: Any, group: Any) -> Any:
    """Return the base-10000 digit that counts 10000^group, of digits with a decimal point at `point`."""
    first = point - 4 * (group + 1) if group >= 0 else point + 1 + 4 * (-group - 1)
    value = np.int64(0)
    for k in range(first, first + 4):
        digit = np.int64(buffer[k]) - 48 if begin <= k < end else np.int64(0)
        value = value * 10 + digit
    return value


@kernel
def _parsed_numerics(buffer: Bytes, starts: Longs, sizes: Ints, offsets: Longs, lengths: Ints, out: Bytes) -> Any:
    """Convert texts that `_texts_are_good` has accepted. Groups of zeros at either end are not sent."""
    at = 0
    for i in range(len(starts)):
        offsets[i] = at
        if lengths[i] < 0:
            continue
        begin, end = starts[i], starts[i] + sizes[i]
        if _is_word(buffer, begin, sizes[i]):
            if sizes[i] == 3:
                at = _put_header(out, at, 0, 0, NAN, 0)
            else:
                sign = MINUS_INFINITY if buffer[begin] == 45 else PLUS_INFINITY
                at = _put_header(out, at, 0, 0, sign, _INFINITE_SCALE)
            lengths[i] = at - offsets[i]
            continue
        sign = MINUS if buffer[begin] == 45 else 0
        begin += sign == MINUS
        point = begin
        while point < end and buffer[point] != 46:
            point += 1
        scale = max(end - point - 1, 0)
        high, low = (point - begin + 3) // 4 - 1, -((scale + 3) // 4)
        while high >= low and _group_of(buffer, begin, point, end, high) == 0:
            high -= 1
        while low <= high and _group_of(buffer, begin, point, end, low) == 0:
            low += 1
        if high < low:
            at = _put_header(out, at, 0, 0, 0, scale)
        else:
            at = _put_header(out, at, high - low + 1, high, sign, scale)
            for group in range(high, low - 1, -1):
                at = put16(out, at, _group_of(buffer, begin, point, end, group))
        lengths[i] = at - offsets[i]
    return OK
