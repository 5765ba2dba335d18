"""time, timetz and interval: types without an equivalent in Delta, stored as PostgreSQL's text.

    binary  time: int64 microseconds of the day, 24:00 included; timetz: that and int32 seconds west of Greenwich;
            interval: int64 microseconds, int32 days, int32 months; all lowest or all highest is infinite
    text    04:05:06.789, 04:05:06.789+05:30, 1 year 2 mons -3 days +04:05:06.789

As text, times sort correctly, 24:00:00 is preserved, and an interval keeps its months, days and microseconds separate.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.values.cells import Cells, DecodedColumn, same_width, variable
from tidemark.values.failure import require_good
from tidemark.values.kernels import (
    OK,
    Bytes,
    Flags,
    Ints,
    Longs,
    be64,
    int32_at,
    is_infinity,
    kernel,
    put_clock,
    put_infinity,
    put_number,
    put_offset,
    put_seconds,
    put_two,
)
from tidemark.values.text import as_strings

DAY = 86_400_000_000
# Every character that occurs in these texts: digits, signs, year, mon, day, infinity, and the plural s.
LETTERS = np.isin(np.arange(256), np.frombuffer(b"0123456789+-:. yearsmondayinfinity", np.uint8))

_TIMETZ = np.dtype([("micros", ">i8"), ("west", ">i4")])
_INTERVAL = np.dtype([("micros", ">i8"), ("days", ">i4"), ("months", ">i4")])


def time(cells: Cells, binary: bool) -> DecodedColumn:
    """Time to string."""
    if not binary:
        require_good("time", cells, _time_texts(cells.buffer, cells.offsets, cells.lengths, False))
    return _texts("time", cells, binary, _times, 15, False)


def timetz(cells: Cells, binary: bool) -> DecodedColumn:
    """Timetz to string."""
    if not binary:
        require_good("timetz", cells, _time_texts(cells.buffer, cells.offsets, cells.lengths, True))
    return _texts("timetz", cells, binary, _times, 24, True)


def interval(cells: Cells, binary: bool) -> DecodedColumn:
    """Interval to string."""
    return _texts("interval", cells, binary, _intervals, 96, True)


def finite_interval(cells: Cells, binary: bool) -> DecodedColumn:
    """Interval to string, for servers before 17, which have no infinite intervals: the extremes are ordinary values."""
    return _texts("interval", cells, binary, _intervals, 96, False)


def parsed_time(cells: Cells) -> Cells:
    """Convert the text of time to microseconds."""
    return same_width(_clocks("time", cells, False)[0].astype(">i8"), cells.lengths >= 0)


def parsed_timetz(cells: Cells) -> Cells:
    """Convert the text of timetz to microseconds and seconds west."""
    micros, west = _clocks("timetz", cells, True)
    values = np.empty(len(cells), _TIMETZ)
    values["micros"], values["west"] = micros, west
    return same_width(values, cells.lengths >= 0)


def parsed_interval(cells: Cells) -> Cells:
    """Convert the text of interval to microseconds, days and months."""
    parts = np.zeros((3, len(cells)), np.int64)
    require_good("interval", cells, _interval_parts(cells.buffer, cells.offsets, cells.lengths, parts))
    values = np.empty(len(cells), _INTERVAL)
    values["micros"], values["days"], values["months"] = parts
    return same_width(values, cells.lengths >= 0)


def _clocks(name: str, cells: Cells, zoned: bool) -> tuple[Longs, Longs]:
    micros, west = np.zeros(len(cells), np.int64), np.zeros(len(cells), np.int64)
    require_good(name, cells, _time_texts(cells.buffer, cells.offsets, cells.lengths, zoned))
    _parsed_times(cells.buffer, cells.offsets, cells.lengths, micros, west)
    return micros, west


def _texts(name: str, cells: Cells, binary: bool, write: Any, most: int, more: bool) -> DecodedColumn:
    """Decode to text; `more` enables the optional part of the type: a time zone for timetz, infinity for interval."""
    if not binary:
        require_good(name, cells, _made_of(cells.buffer, cells.offsets, cells.lengths, LETTERS))
        return DecodedColumn(as_strings(name, cells))
    out = np.empty(most * len(cells), np.uint8)
    offsets = np.zeros(len(cells) + 1, np.int32)
    require_good(name, cells, write(cells.buffer, cells.offsets, cells.lengths, more, offsets, out))
    return DecodedColumn(variable(pa.string(), offsets, out[: offsets[-1]], cells.lengths))


@kernel
def _made_of(buffer: Bytes, offsets: Longs, lengths: Ints, letters: Flags) -> Any:
    for i in range(len(offsets)):
        if lengths[i] == 0:
            return i
        for k in range(lengths[i]):
            if not letters[buffer[offsets[i] + k]]:
                return i
    return OK


@kernel
def _pair(buffer: Bytes, at: int, end: int, most: int) -> Any:
    """Whether two digits with a value of at most `most` are at this offset."""
    if end - at < 2 or not (48 <= buffer[at] <= 57 and 48 <= buffer[at + 1] <= 57):
        return False
    return (np.int64(buffer[at]) - 48) * 10 + np.int64(buffer[at + 1]) - 48 <= most


@kernel
def _time_texts(buffer: Bytes, offsets: Longs, lengths: Ints, zoned: bool) -> Any:
    """Check for HH:MM:SS, an optional fraction of up to six digits, and for timetz a signed HH, HH:MM or HH:MM:SS."""
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        at, end = offsets[i], offsets[i] + lengths[i]
        if not (end - at >= 8 and buffer[at + 2] == 58 and buffer[at + 5] == 58):
            return i
        if not (_pair(buffer, at, end, 24) and _pair(buffer, at + 3, end, 59) and _pair(buffer, at + 6, end, 59)):
            return i
        at += 8
        if at < end and buffer[at] == 46:
            first = at + 1
            at = first
            while at < end and 48 <= buffer[at] <= 57:
                at += 1
            if at == first or at - first > 6:
                return i
        if zoned:
            if at >= end or (buffer[at] != 43 and buffer[at] != 45) or not _pair(buffer, at + 1, end, 15):
                return i
            at += 3
            for _ in range(2):
                if at < end:
                    if buffer[at] != 58 or not _pair(buffer, at + 1, end, 59):
                        return i
                    at += 3
        if at != end:
            return i
    return OK


@kernel
def _times(buffer: Bytes, offsets: Longs, lengths: Ints, zoned: bool, starts: Ints, out: Bytes) -> Any:
    at = 0
    for i in range(len(offsets)):
        starts[i] = at
        if lengths[i] < 0:
            continue
        if lengths[i] != (12 if zoned else 8):
            return i
        micros = np.int64(be64(buffer, offsets[i]))
        if micros < 0 or micros > DAY:
            return i
        at = put_clock(out, at, micros)
        if zoned:
            west = int32_at(buffer, offsets[i] + 8)
            if west <= -16 * 3600 or west >= 16 * 3600:
                return i
            at = put_offset(out, at, -west)
    starts[len(offsets)] = at
    return OK


@kernel
def _part(out: Bytes, at: int, begin: int, value: int, before: bool, unit: int) -> Any:
    """Write a field such as `-3 days`: a blank unless first, a plus sign after a negative field, an s unless 1."""
    if at > begin:
        out[at] = 32
        at += 1
    if value < 0:
        out[at] = 45
        at += 1
    elif before:
        out[at] = 43
        at += 1
    at = put_number(out, at, abs(value), 1)
    out[at] = 32
    at += 1
    for char in _unit(unit):
        if char:
            out[at] = char
            at += 1
    if value != 1:
        out[at] = 115
        at += 1
    return at


@kernel
def _unit(unit: int) -> Any:
    if unit == 0:
        return (121, 101, 97, 114)
    if unit == 1:
        return (109, 111, 110, 0)
    return (100, 97, 121, 0)


@kernel
def _intervals(buffer: Bytes, offsets: Longs, lengths: Ints, infinite: bool, starts: Ints, out: Bytes) -> Any:
    at = 0
    for i in range(len(offsets)):
        starts[i] = at
        if lengths[i] < 0:
            continue
        if lengths[i] != 16:
            return i
        micros = np.int64(be64(buffer, offsets[i]))
        days, months = int32_at(buffer, offsets[i] + 8), int32_at(buffer, offsets[i] + 12)
        lowest = micros == -9223372036854775807 - 1 and days == -2147483648 and months == -2147483648
        highest = micros == 9223372036854775807 and days == 2147483647 and months == 2147483647
        if infinite and (lowest or highest):
            at = put_infinity(out, at, lowest, 105)
            continue
        begin, before = at, False
        sign = -1 if months < 0 else 1
        for unit, value in ((0, sign * (abs(months) // 12)), (1, sign * (abs(months) % 12)), (2, days)):
            if value != 0:
                at = _part(out, at, begin, value, before, unit)
                before = bool(value < 0)
        if micros != 0 or at == begin:
            if at > begin:
                out[at] = 32
                at += 1
            if micros < 0 or before:
                out[at] = 45 if micros < 0 else 43
                at += 1
            down = -micros if micros > 0 else micros  # negative, because the lowest int64 has no positive counterpart
            hours = _quotient(down, 3_600_000_000)
            rest = -(down + hours * 3_600_000_000)
            at = put_number(out, at, hours, 2)
            out[at] = 58
            at = put_two(out, at + 1, rest // 60_000_000)
            out[at] = 58
            at = put_seconds(out, at + 1, rest % 60_000_000)
    starts[len(offsets)] = at
    return OK


@kernel
def _quotient(negative: int, divisor: int) -> Any:
    """Return the absolute value of a number that is not positive, divided by `divisor` and rounded down."""
    count = -(negative // divisor)
    return count - 1 if negative + count * divisor > 0 else count


@kernel
def _whole(buffer: Bytes, at: Any, end: Any) -> Any:
    """Return the number whose digits begin at this offset, negated, and the offset after them."""
    value = np.int64(0)
    while at < end and 48 <= buffer[at] <= 57:
        value = value * 10 - (np.int64(buffer[at]) - 48)
        at += 1
    return value, at


@kernel
def _clock(buffer: Bytes, at: Any, end: Any, hours: Any) -> Any:
    """Return the microseconds of :MM:SS[.f…] after this many hours, and the offset after them; all negated.

    Negated, because the lowest int64 has no positive counterpart.
    """
    minutes, at = _whole(buffer, at + 1, end)
    seconds, at = _whole(buffer, at + 1, end)
    micros = hours * 3_600_000_000 + minutes * 60_000_000 + seconds * 1_000_000
    if at < end and buffer[at] == 46:
        first = at + 1
        fraction, at = _whole(buffer, first, end)
        for _ in range(6 - (at - first)):
            fraction *= 10
        micros += fraction
    return micros, at


@kernel
def _parsed_times(buffer: Bytes, offsets: Longs, lengths: Ints, micros: Longs, west: Longs) -> None:
    """Parse texts that `_time_texts` has accepted."""
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        end = offsets[i] + lengths[i]
        hours, at = _whole(buffer, offsets[i], end)
        value, at = _clock(buffer, at, end, hours)
        micros[i] = -value
        if at < end:
            sign = 1 if buffer[at] == 43 else -1
            unit = 3600
            while at < end:
                part, at = _whole(buffer, at + 1, end)
                west[i] += sign * part * unit
                unit //= 60


@kernel
def _interval_parts(buffer: Bytes, offsets: Longs, lengths: Ints, parts: Any) -> Any:
    """Parse fields such as `-3 days`, then a time; the letter of the unit decides, `y`, `m` or `d`."""
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        at, end = offsets[i], offsets[i] + lengths[i]
        if is_infinity(buffer, at, lengths[i], 105):
            low = buffer[at] == 45
            parts[0, i] = -9223372036854775807 - 1 if low else 9223372036854775807
            parts[1:, i] = -2147483648 if low else 2147483647
            continue
        if at == end:
            return i
        while at < end:
            negative = buffer[at] == 45
            at += 1 if negative or buffer[at] == 43 else 0
            first = at
            value, at = _whole(buffer, at, end)
            if at == first or at == end:
                return i
            if buffer[at] == 58:
                value, at = _clock(buffer, at, end, value)
                parts[0, i] = value if negative else -value
            elif buffer[at] == 32 and at + 1 < end:
                letter = buffer[at + 1]
                unit = 12 if letter == 121 else 1
                parts[1 if letter == 100 else 2, i] += (value if negative else -value) * unit
                at += 1
                while at < end and buffer[at] != 32:
                    at += 1
                at += 1
            else:
                return i
    return OK
