"""date, timestamp and timestamptz.

    binary  date: int32 days since 2000-01-01; the others int64 microseconds since then. Lowest and highest are infinite
    text    2020-01-02, 2020-01-02 03:04:05.678901, the same with +00; years of more than four digits, BC, infinity

Spark supports the years 1 to 9999. Values outside this range and the infinities are stored in the text fallback.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.values.cells import Cells, DecodedColumn, fixed
from tidemark.values.exact import date_text, timestamp_text
from tidemark.values.failure import require_good, text_or_bad
from tidemark.values.kernels import OK, Bytes, Flags, Ints, Longs, be64, int32_at, kernel
from tidemark.values.text import as_strings

DAYS_TO_2000 = 10957
MICROS_TO_2000 = DAYS_TO_2000 * 86_400_000_000
FIRST_DAY, LAST_DAY = -719162, 2932896  # 0001-01-01 and 9999-12-31, counted from 1970
FIRST_MICRO, LAST_MICRO = FIRST_DAY * 86_400_000_000, (LAST_DAY + 1) * 86_400_000_000 - 1


def date(cells: Cells, binary: bool) -> DecodedColumn:
    """Date to date32."""
    out = np.zeros(len(cells), np.int32)
    strange = np.zeros(len(cells), np.bool_)
    run = _days if binary else _dates
    require_good("date", cells, run(cells.buffer, cells.offsets, cells.lengths, out, strange))
    array = fixed(pa.date32(), out, cells.lengths, strange)
    return DecodedColumn(array, _exact("date", cells, strange, binary, date_text))


def timestamp(cells: Cells, binary: bool) -> DecodedColumn:
    """Timestamp to timestamp[us] without a time zone."""
    return _timestamp("timestamp", cells, binary, pa.timestamp("us"))


def timestamptz(cells: Cells, binary: bool) -> DecodedColumn:
    """Timestamptz to timestamp[us, UTC]; the text format is in UTC, because sessions set TimeZone to UTC."""
    return _timestamp("timestamptz", cells, binary, pa.timestamp("us", "UTC"))


def _timestamp(name: str, cells: Cells, binary: bool, kind: pa.DataType) -> DecodedColumn:
    out = np.zeros(len(cells), np.int64)
    strange = np.zeros(len(cells), np.bool_)
    zoned = name == "timestamptz"
    if binary:
        require_good(name, cells, _micros(cells.buffer, cells.offsets, cells.lengths, out, strange))
    else:
        require_good(name, cells, _timestamps(cells.buffer, cells.offsets, cells.lengths, zoned, out, strange))
    array = fixed(kind, out, cells.lengths, strange)
    return DecodedColumn(array, _exact(name, cells, strange, binary, lambda raw: timestamp_text(raw, zoned)))


def _exact(name: str, cells: Cells, strange: Flags, binary: bool, text_of: Any) -> pa.StringArray | None:
    """Return PostgreSQL's text of the values that Spark cannot represent, null elsewhere."""
    if not strange.any():
        return None
    if not binary:
        return as_strings(name, cells.where(strange))
    places = range(len(cells))
    texts = [text_or_bad(name, cells, at, cells.raw(at), text_of) if strange[at] else None for at in places]
    return pa.array(texts, pa.string())


@kernel
def _days(buffer: Bytes, offsets: Longs, lengths: Ints, out: Ints, strange: Flags) -> Any:
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        if lengths[i] != 4:
            return i
        value = int32_at(buffer, offsets[i]) + DAYS_TO_2000
        strange[i] = value < FIRST_DAY or value > LAST_DAY
        out[i] = 0 if strange[i] else np.int32(value)
    return OK


@kernel
def _micros(buffer: Bytes, offsets: Longs, lengths: Ints, out: Longs, strange: Flags) -> Any:
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        if lengths[i] != 8:
            return i
        value = np.int64(be64(buffer, offsets[i]))
        strange[i] = value < FIRST_MICRO - MICROS_TO_2000 or value > LAST_MICRO - MICROS_TO_2000
        out[i] = 0 if strange[i] else value + MICROS_TO_2000
    return OK


@kernel
def _two_digits(buffer: Bytes, at: int) -> Any:
    high, low = np.int64(buffer[at]) - 48, np.int64(buffer[at + 1]) - 48
    return high * 10 + low if 0 <= high <= 9 and 0 <= low <= 9 else np.int64(-1)


@kernel
def _days_from_civil(year: int, month: int, day: int) -> Any:
    """Return the days since 1970-01-01 in the proleptic Gregorian calendar, for years from 1."""
    y = year - (1 if month <= 2 else 0)
    era = y // 400
    of_era = y - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@kernel
def _month_length(year: int, month: int) -> Any:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


@kernel
def _plain_day(buffer: Bytes, at: int) -> Any:
    """Return the day of YYYY-MM-DD at this offset, or a number below every valid day if the bytes are not a date."""
    high, low = _two_digits(buffer, at), _two_digits(buffer, at + 2)
    month, day = _two_digits(buffer, at + 5), _two_digits(buffer, at + 8)
    if high < 0 or low < 0 or buffer[at + 4] != 45 or buffer[at + 7] != 45:
        return np.int64(-(2**62))
    year = high * 100 + low
    if year < 1 or month < 1 or month > 12 or day < 1 or day > _month_length(year, month):
        return np.int64(-(2**62))
    return _days_from_civil(year, month, day)


@kernel
def _plain_time(buffer: Bytes, at: int, end: int) -> Any:
    """Return the microseconds of HH:MM:SS[.f…] that fills [at, end), or -1."""
    if end - at < 8 or buffer[at + 2] != 58 or buffer[at + 5] != 58:
        return np.int64(-1)
    hour, minute, second = _two_digits(buffer, at), _two_digits(buffer, at + 3), _two_digits(buffer, at + 6)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return np.int64(-1)
    micros = ((hour * 60 + minute) * 60 + second) * 1_000_000
    if end - at == 8:
        return micros
    if buffer[at + 8] != 46 or end - at < 10 or end - at > 15:
        return np.int64(-1)
    weight = 100_000
    for k in range(at + 9, end):
        digit = np.int64(buffer[k]) - 48
        if digit < 0 or digit > 9:
            return np.int64(-1)
        micros += digit * weight
        weight //= 10
    return micros


@kernel
def _is_infinite(buffer: Bytes, at: int, length: int) -> Any:
    skip = 1 if length == 9 and buffer[at] == 45 else 0
    if length - skip != 8:
        return False
    for k, char in enumerate((105, 110, 102, 105, 110, 105, 116, 121)):
        if buffer[at + skip + k] != char:
            return False
    return True


@kernel
def _is_far(buffer: Bytes, at: int, end: int, timed: bool, zoned: bool) -> Any:
    """Whether this is a date or timestamp with a year after 9999 or BC, by its digits and separators."""
    christian = not (end - at > 3 and buffer[end - 1] == 67 and buffer[end - 2] == 66 and buffer[end - 3] == 32)
    if not christian:
        end -= 3
    year = at
    while year < end and 48 <= buffer[year] <= 57:
        year += 1
    if (
        year - at < (5 if christian else 4)
        or year - at > 7
        or end - year < 6
        or buffer[year] != 45
        or buffer[year + 3] != 45
    ):
        return False
    month, day = _two_digits(buffer, year + 1), _two_digits(buffer, year + 4)
    if month < 1 or month > 12 or day < 1 or day > 31:
        return False
    rest = year + 6
    if not timed:
        return rest == end
    if zoned:
        if end - rest < 3 or buffer[end - 3] != 43 or buffer[end - 2] != 48 or buffer[end - 1] != 48:
            return False
        end -= 3
    return rest < end and buffer[rest] == 32 and _plain_time(buffer, rest + 1, end) >= 0


@kernel
def _dates(buffer: Bytes, offsets: Longs, lengths: Ints, out: Ints, strange: Flags) -> Any:
    for i in range(len(offsets)):
        length, at = lengths[i], offsets[i]
        if length < 0:
            continue
        day = _plain_day(buffer, at) if length == 10 else np.int64(-(2**62))
        if day >= FIRST_DAY:
            out[i] = day
        elif _is_infinite(buffer, at, length) or _is_far(buffer, at, at + length, False, False):
            strange[i] = True
        else:
            return i
    return OK


@kernel
def _timestamps(buffer: Bytes, offsets: Longs, lengths: Ints, zoned: bool, out: Longs, strange: Flags) -> Any:
    for i in range(len(offsets)):
        length, at = lengths[i], offsets[i]
        if length < 0:
            continue
        end = at + length
        if zoned and length > 3 and buffer[end - 3] == 43 and buffer[end - 2] == 48 and buffer[end - 1] == 48:
            end -= 3
        plain = end - at >= 19 and buffer[at + 10] == 32 and (end < at + length or not zoned)
        day = _plain_day(buffer, at) if plain else np.int64(-(2**62))
        micros = _plain_time(buffer, at + 11, end) if day >= FIRST_DAY else np.int64(-1)
        if micros >= 0:
            out[i] = day * 86_400_000_000 + micros
        elif _is_infinite(buffer, at, length) or _is_far(buffer, at, at + length, True, zoned):
            strange[i] = True
        else:
            return i
    return OK
