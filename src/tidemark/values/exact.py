"""PostgreSQL's text of single binary values that Arrow cannot represent.

Such values are rare, so this module favors clarity over speed. `tests/values` compares the results with the server's
output.
"""

from __future__ import annotations

import struct
from fractions import Fraction

INFINITE_DATES = {-(2**31): "-infinity", 2**31 - 1: "infinity"}
INFINITE_TIMESTAMPS = {-(2**63): "-infinity", 2**63 - 1: "infinity"}
MICROS_PER_DAY = 86_400_000_000
JULIAN_2000 = 2451545  # the Julian day of 2000-01-01
# PostgreSQL's limits (datatype/timestamp.h): from 4714-11-24 BC to 5874897-12-31, and to 294276-12-31.
FIRST_DATE, LAST_DATE = -JULIAN_2000, 2147483494 - JULIAN_2000 - 1
FIRST_TIMESTAMP, LAST_TIMESTAMP = -211_813_488_000_000_000, 9_223_371_331_200_000_000 - 1


def date_text(raw: bytes) -> str:
    """Format a date like date_out in the ISO style."""
    (days,) = struct.unpack("!i", raw)
    if days in INFINITE_DATES:
        return INFINITE_DATES[days]
    if not FIRST_DATE <= days <= LAST_DATE:
        raise ValueError(f"no date: {days}")
    return _with_era(days, "")


def timestamp_text(raw: bytes, zoned: bool) -> str:
    """Format a timestamp like timestamp_out in the ISO style; a timestamptz is printed in UTC."""
    (micros,) = struct.unpack("!q", raw)
    if micros in INFINITE_TIMESTAMPS:
        return INFINITE_TIMESTAMPS[micros]
    if not FIRST_TIMESTAMP <= micros <= LAST_TIMESTAMP:
        raise ValueError(f"no timestamp: {micros}")
    days, rest = divmod(micros, MICROS_PER_DAY)
    return _with_era(days, " " + clock_text(rest) + ("+00" if zoned else ""))


def clock_text(micros: int) -> str:
    """Format a time of day as HH:MM:SS, with the fraction's trailing zeros removed."""
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return text + (f".{fraction:06}".rstrip("0") if fraction else "")


def _with_era(days: int, rest: str) -> str:
    year, month, day = _civil(days)
    era = "" if year > 0 else " BC"
    return f"{year if year > 0 else 1 - year:04}-{month:02}-{day:02}{rest}{era}"


def _civil(days: int) -> tuple[int, int, int]:
    """Return year (0 is 1 BC), month and day of a day count since 2000-01-01, in the proleptic Gregorian calendar."""
    shifted = days + JULIAN_2000 - 1721120  # days since 0000-03-01
    era, of_era = divmod(shifted, 146097)
    year_of_era = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    day_of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    return year_of_era + era * 400 + (month <= 2), month, day_of_year - (153 * shifted_month + 2) // 5 + 1


def float_text(raw: bytes) -> str:
    """Format a float like float8out and float4out: shortest digits, an exponent outside 1e-4 to 1e15 or 1e6."""
    code, limit = ("!d", 15) if len(raw) == 8 else ("!f", 6)
    (value,) = struct.unpack(code, raw)
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    sign = "-" if struct.unpack("!B", raw[:1])[0] >> 7 else ""
    if value == 0:
        return f"{sign}0"
    digits, exponent = _shortest(abs(value), code)
    if -5 < exponent < limit:
        return sign + _plain(digits, exponent)
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02}"


def _shortest(value: float, code: str) -> tuple[str, int]:
    """Return the fewest decimal digits that parse to the same float, and the exponent of the first digit.

    As in PostgreSQL (common/d2s.c), a decimal exactly halfway to a neighboring float is not accepted.
    """
    low, high = _halfway(value, code)
    exact, exponent = Fraction(value), int(f"{value:e}".partition("e")[2])
    for digits in range(1, 18):
        unit = Fraction(10) ** (exponent - digits + 1)
        below = exact // unit
        good = [n for n in (below, below + 1) if low < n * unit < high]
        if good:
            nearest = min(good, key=lambda n: (abs(n * unit - exact), n % 2))
            text = str(nearest)
            return text.rstrip("0"), exponent + len(text) - digits
    raise ValueError(f"no digits for {value!r}")


def _halfway(value: float, code: str) -> tuple[Fraction, Fraction]:
    """Return the midpoints to the adjacent floats; above the largest float the distance below it is used."""
    raw = struct.pack(code, value)
    bits = int.from_bytes(raw)
    below, above = (struct.unpack(code, near.to_bytes(len(raw)))[0] for near in (bits - 1, bits + 1))
    exact = Fraction(value)
    low = (Fraction(below) + exact) / 2
    return low, exact + (exact - low) if above == float("inf") else (exact + Fraction(above)) / 2


def _plain(digits: str, exponent: int) -> str:
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole, fraction = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return whole + (f".{fraction}" if fraction else "")
