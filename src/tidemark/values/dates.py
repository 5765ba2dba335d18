"""date, timestamp and timestamptz.

    binary  date: int32 days since 2000-01-01; the others int64 microseconds since then. Lowest and highest are infinite
    text    2020-01-02, 2020-01-02 03:04:05.678901, the same with +00; years of more than four digits, BC, infinity

Spark supports the years 1 to 9999. Values outside this range and the infinities are stored in the text fallback. A
timestamptz is decoded from text in UTC only, and encoded to text in any time zone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.clock.epoch import EPOCH_DAYS, EPOCH_MICROS
from tidemark.errors import InvalidValue
from tidemark.values.cells import Cells, DecodedColumn, fixed, present, same_width, strings_of, values_of, written
from tidemark.values.failure import require_good
from tidemark.values.integers import big_endian
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
    put_two,
)
from tidemark.values.text import as_strings
from tidemark.values.zones import UTC, Zone

FIRST_DAY, LAST_DAY = -719162, 2932896  # 0001-01-01 and 9999-12-31, counted from 1970
FIRST_MICRO, LAST_MICRO = FIRST_DAY * 86_400_000_000, (LAST_DAY + 1) * 86_400_000_000 - 1
MICROS_PER_DAY = 86_400_000_000
# PostgreSQL's limits (datatype/timestamp.h), counted from 2000: 4714-11-24 BC to 5874897-12-31, and to 294276-12-31.
_JULIAN_2000 = 2451545
_FIRST_DATE, _LAST_DATE = -_JULIAN_2000, 2147483494 - _JULIAN_2000 - 1
_FIRST_TIMESTAMP, _LAST_TIMESTAMP = -211_813_488_000_000_000, 9_223_371_331_200_000_000 - 1
_INFINITE_DATE, _INFINITE_TIMESTAMP = 2**31 - 1, 2**63 - 1
_DATE_BYTES, _TIMESTAMP_BYTES = 16, 41  # 5874897-12-31, 294276-12-31 00:00:00.000001+00:00:01; years BC are shorter


def date(cells: Cells, binary: bool) -> DecodedColumn:
    """Date to date32."""
    out = np.zeros(len(cells), np.int32)
    strange = np.zeros(len(cells), np.bool_)
    run = _days if binary else _dates
    require_good("date", cells, run(cells.buffer, cells.offsets, cells.lengths, out, strange))
    array = fixed(pa.date32(), out, cells.lengths, strange)
    return DecodedColumn(array, _fallback("date", cells, strange, binary))


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
    return DecodedColumn(array, _fallback(name, cells, strange, binary))


def _fallback(name: str, cells: Cells, strange: Flags, binary: bool) -> pa.StringArray | None:
    """Return PostgreSQL's text of the values that Spark cannot represent, null elsewhere."""
    if not strange.any():
        return None
    if not binary:
        return as_strings(name, cells.where(strange))
    chosen = cells.where(strange)
    counts: Any = np.zeros(len(cells), np.int32 if name == "date" else np.int64)
    require_good(name, cells, big_endian(chosen, counts))
    if name == "date":
        texts, bad = _date_texts(counts, strange)
    else:
        texts, bad = _timestamp_texts(counts, strange, UTC if name == "timestamptz" else None)
    require_good(name, cells, bad)
    return strings_of(texts)


def date_text(array: pa.Array) -> Cells:
    """date32 to text."""
    texts, bad = _date_texts(values_of(array, np.int32).astype(np.int64) - EPOCH_DAYS, present(array))
    _require_in_range(array, bad)
    return texts


def timestamp_text(array: pa.Array, zone: Zone = UTC) -> Cells:
    """timestamp[us] to text; with a time zone, in `zone`."""
    counts = values_of(array, np.int64) - EPOCH_MICROS
    texts, bad = _timestamp_texts(counts, present(array), None if array.type.tz is None else zone)
    _require_in_range(array, bad)
    return texts


def _require_in_range(array: pa.Array, bad: int) -> None:
    """Raise an error for a value that PostgreSQL's type does not have; only a computed value can be one."""
    if bad != OK:
        number = array.view(pa.int32() if pa.types.is_date32(array.type) else pa.int64())[bad]
        raise InvalidValue(
            f"{array.type} out of range: {number}",
            "PostgreSQL has dates from 4713 BC to 5874897 AD, and timestamps to 294276 AD.",
        )


def timestamptz_text(cells: Cells, zone: Zone) -> Cells:
    """Convert the text of timestamptz in UTC, as in the text fallback, to the text in another zone."""
    counts = _counted("timestamptz", cells, _parsed_timestamps)
    texts, _ = _timestamp_texts(counts, cells.lengths >= 0, zone)
    return texts


def date_binary(array: pa.Array) -> Cells:
    """date32 to days."""
    return same_width((values_of(array, np.int32) - np.int32(EPOCH_DAYS)).astype(">i4"), present(array))


def timestamp_binary(array: pa.Array) -> Cells:
    """timestamp[us] to microseconds, for timestamp and timestamptz."""
    return same_width((values_of(array, np.int64) - EPOCH_MICROS).astype(">i8"), present(array))


def parsed_date(cells: Cells) -> Cells:
    """Convert text, as in the text fallback, to days."""
    return same_width(_counted("date", cells, _parsed_dates).astype(">i4"), cells.lengths >= 0)


def parsed_timestamp(cells: Cells) -> Cells:
    """Convert text, as in the text fallback, to microseconds, for timestamp and for timestamptz in UTC."""
    return same_width(_counted("timestamp", cells, _parsed_timestamps).astype(">i8"), cells.lengths >= 0)


def _counted(name: str, cells: Cells, parse: Any) -> Longs:
    counts = np.zeros(len(cells), np.int64)
    require_good(name, cells, parse(cells.buffer, cells.offsets, cells.lengths, counts))
    return counts


def _date_texts(days: Any, valid: Flags) -> tuple[Cells, int]:
    return written(_write_dates, valid, _DATE_BYTES * len(valid), days.astype(np.int64, copy=False))


def _timestamp_texts(micros: Longs, valid: Flags, zone: Zone | None) -> tuple[Cells, int]:
    """Write timestamps; without a zone, those of type timestamp."""
    east = np.zeros(0, np.int64) if zone is None else zone.seconds_east(micros, valid)
    return written(_write_timestamps, valid, _TIMESTAMP_BYTES * len(valid), micros, zone is not None, east)


@kernel
def _put_date(out: Bytes, at: Any, days: Any) -> Any:
    """Write the day of a count since 2000-01-01 without BC; return the position after it, and whether it is BC."""
    shifted = days + _JULIAN_2000 - 1721120  # days since 0000-03-01
    era = shifted // 146097
    of_era = shifted - era * 146097
    year_of_era = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    day_of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    year = year_of_era + era * 400 + (month <= 2)
    at = put_number(out, at, year if year > 0 else 1 - year, 4)
    out[at] = 45
    at = put_two(out, at + 1, month)
    out[at] = 45
    return put_two(out, at + 1, day_of_year - (153 * shifted_month + 2) // 5 + 1), year <= 0


@kernel
def _put_era(out: Bytes, at: Any, before_christ: Any) -> Any:
    if before_christ:
        out[at], out[at + 1], out[at + 2] = 32, 66, 67
        at += 3
    return at


@kernel
def _write_dates(days: Longs, offsets: Longs, lengths: Ints, out: Bytes) -> Any:
    at = 0
    for i in range(len(days)):
        offsets[i] = at
        if lengths[i] < 0:
            continue
        if days[i] == _INFINITE_DATE or days[i] == -_INFINITE_DATE - 1:
            at = put_infinity(out, at, days[i] < 0, 105)
        elif days[i] < _FIRST_DATE or days[i] > _LAST_DATE:
            return i
        else:
            at, before_christ = _put_date(out, at, days[i])
            at = _put_era(out, at, before_christ)
        lengths[i] = at - offsets[i]
    return OK


@kernel
def _write_timestamps(micros: Longs, zoned: bool, east: Longs, offsets: Longs, lengths: Ints, out: Bytes) -> Any:
    at = 0
    for i in range(len(micros)):
        offsets[i] = at
        if lengths[i] < 0:
            continue
        if micros[i] == _INFINITE_TIMESTAMP or micros[i] == -_INFINITE_TIMESTAMP - 1:
            at = put_infinity(out, at, micros[i] < 0, 105)
        elif micros[i] < _FIRST_TIMESTAMP or micros[i] > _LAST_TIMESTAMP:
            return i
        else:
            local = micros[i] + (east[i] * 1_000_000 if zoned else 0)
            days = local // MICROS_PER_DAY
            at, before_christ = _put_date(out, at, days)
            out[at] = 32
            at = put_clock(out, at + 1, local - days * MICROS_PER_DAY)
            if zoned:
                at = put_offset(out, at, east[i])
            at = _put_era(out, at, before_christ)
        lengths[i] = at - offsets[i]
    return OK


@kernel
def _days(buffer: Bytes, offsets: Longs, lengths: Ints, out: Ints, strange: Flags) -> Any:
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        if lengths[i] != 4:
            return i
        value = int32_at(buffer, offsets[i]) + EPOCH_DAYS
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
        strange[i] = value < FIRST_MICRO - EPOCH_MICROS or value > LAST_MICRO - EPOCH_MICROS
        out[i] = 0 if strange[i] else value + EPOCH_MICROS
    return OK


@kernel
def _two_digits(buffer: Bytes, at: int) -> Any:
    high, low = np.int64(buffer[at]) - 48, np.int64(buffer[at + 1]) - 48
    return high * 10 + low if 0 <= high <= 9 and 0 <= low <= 9 else np.int64(-1)


@kernel
def _days_from_civil(year: int, month: int, day: int) -> Any:
    """Return the days since 1970-01-01 in the proleptic Gregorian calendar; the year 0 is 1 BC."""
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
        elif is_infinity(buffer, at, length, 105) or _is_far(buffer, at, at + length, False, False):
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
        elif is_infinity(buffer, at, length, 105) or _is_far(buffer, at, at + length, True, zoned):
            strange[i] = True
        else:
            return i
    return OK


@kernel
def _parsed_day(buffer: Bytes, at: Any, end: Any) -> Any:
    """Return the days since 2000 of a date at this offset, BC if the text ends with it, and the offset after the date.

    The text was accepted by a decoder, or is rejected: the offset is -1.
    """
    before_christ = end - at > 3 and buffer[end - 1] == 67
    year, p = np.int64(0), at
    while p < end and 48 <= buffer[p] <= 57 and p - at < 8:
        year = year * 10 + np.int64(buffer[p]) - 48
        p += 1
    if p == at or end - p < 6 or buffer[p] != 45 or buffer[p + 3] != 45:
        return np.int64(0), np.int64(-1)
    month, day = _two_digits(buffer, p + 1), _two_digits(buffer, p + 4)
    year = 1 - year if before_christ else year
    if month < 1 or month > 12 or day < 1 or day > _month_length(year, month):
        return np.int64(0), np.int64(-1)
    return _days_from_civil(year, month, day) - EPOCH_DAYS, np.int64(p + 6)


@kernel
def _parsed_dates(buffer: Bytes, offsets: Longs, lengths: Ints, out: Longs) -> Any:
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        at, end = offsets[i], offsets[i] + lengths[i]
        if is_infinity(buffer, at, lengths[i], 105):
            out[i] = -_INFINITE_DATE - 1 if buffer[at] == 45 else _INFINITE_DATE
            continue
        out[i], at = _parsed_day(buffer, at, end)
        if at < 0 or (at != end and at + 3 != end):
            return i
    return OK


@kernel
def _parsed_timestamps(buffer: Bytes, offsets: Longs, lengths: Ints, out: Longs) -> Any:
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        at, end = offsets[i], offsets[i] + lengths[i]
        if is_infinity(buffer, at, lengths[i], 105):
            out[i] = -_INFINITE_TIMESTAMP - 1 if buffer[at] == 45 else _INFINITE_TIMESTAMP
            continue
        day, at = _parsed_day(buffer, at, end)
        if at < 0:
            return i
        end -= 3 if buffer[end - 1] == 67 else 0  # BC
        end -= 3 if end - at > 3 and buffer[end - 3] == 43 else 0  # +00
        micros = _plain_time(buffer, at + 1, end)
        if micros < 0:
            return i
        out[i] = day * MICROS_PER_DAY + micros
    return OK
