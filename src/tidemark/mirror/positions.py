"""The text forms of positions and durations, the same in Python and on the command line. Pure.

    latest                       the last position at which every commit and every table definition is known
    now                          what a session on the source sees at this moment
    16/B374D848                  an LSN, as PostgreSQL prints it
    2026-01-31 09:00             a time; also with seconds, and with a zone: 2026-01-31 09:00+02, … Europe/Berlin
    -5m  -2h30m  -1d  5m ago     a time before the present: w, d, h, m or min, s, ms
    today 06:00  yesterday       a time of day, or midnight; also with a zone

A time without a zone is in UTC, and `today` is the day in UTC, or in the zone that is given. Relative times are taken
from the clock of this machine.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidemark.clock import Boundary, Lsn
from tidemark.errors import InvalidValue
from tidemark.units import parse_duration

LATEST, NOW = "latest", "now"
Position = str | int | Lsn | datetime | Boundary
Duration = str | float | timedelta
FORMS = (
    "Write `latest`, `now`, an LSN such as `16/B374D848`, a time such as `2026-01-31 09:00` or "
    "`2026-01-31 09:00+02`, or a relative time such as `-5m`, `-2h30m`, `-1d`, `today 06:00` or `yesterday 09:00`."
)

_SECONDS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(w|d|h|min|ms|m|s)")
_AMOUNTS = r"(?:[0-9]+(?:\.[0-9]+)?\s*(?:w|d|h|min|ms|m|s)\s*)+"
RELATIVE = re.compile(rf"-\s*{_AMOUNTS}")
_AGO = re.compile(rf"{_AMOUNTS}ago")
_ZONE = r"(?P<zone>Z|[+-][0-9]{2}(?::?[0-9]{2})?|[A-Za-z][A-Za-z0-9_+/-]*)"
_CLOCK = r"(?P<clock>[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)"
_DAY = re.compile(rf"(?P<day>today|yesterday)(?:\s+{_CLOCK})?(?:\s*{_ZONE})?", re.IGNORECASE)
_ZONED = re.compile(rf"(?P<local>.*[0-9])\s+{_ZONE}")
_LSN = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")


def parse_position(text: str, now: datetime) -> str | Lsn | datetime:
    """Parse a text into an LSN, a time with its zone, `latest` or `now`."""
    text = text.strip()
    if text.lower() in (LATEST, NOW):
        return text.lower()
    if _LSN.fullmatch(text):
        return Lsn.parse(text)
    try:
        return _relative(text, now) or _day(text, now) or _absolute(text)
    except InvalidValue:
        raise
    except (ValueError, OverflowError) as error:
        raise InvalidValue(f"invalid position: {text!r}", FORMS) from error


def zoned(moment: datetime) -> datetime:
    """Return a time with its zone, which is UTC if it has none."""
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def seconds_of(duration: Duration) -> float:
    """Return the seconds of a duration: a number of seconds, a timedelta, or a text such as `30s`, `10min` or `7d`."""
    return duration.total_seconds() if isinstance(duration, timedelta) else parse_duration(duration)


def _relative(text: str, now: datetime) -> datetime | None:
    if not RELATIVE.fullmatch(text) and not _AGO.fullmatch(text):
        return None
    return now - timedelta(seconds=sum(float(number) * _SECONDS[unit] for number, unit in _AMOUNT.findall(text)))


def _day(text: str, now: datetime) -> datetime | None:
    match = _DAY.fullmatch(text)
    if match is None:
        return None
    zone = _zone(match["zone"])
    day = now.astimezone(zone).date() - timedelta(days=match["day"].lower() == "yesterday")
    clock = match["clock"] or "00:00"
    clock = clock if clock[2] == ":" else f"0{clock}"  # Python's parser needs two digits
    return datetime.combine(day, time.fromisoformat(clock), zone)


def _absolute(text: str) -> datetime:
    try:
        return zoned(datetime.fromisoformat(text))
    except ValueError:
        match = _ZONED.fullmatch(text)
        if match is None:
            raise
        local = datetime.fromisoformat(match["local"])
        if local.tzinfo is not None:
            raise
        return local.replace(tzinfo=_zone(match["zone"]))


def _zone(text: str | None) -> tzinfo:
    if text is None or text.upper() in ("Z", "UTC"):
        return UTC
    if text[0] in "+-":
        hours, minutes = int(text[1:3]), int(text[3:].lstrip(":") or 0)
        return timezone((-1 if text[0] == "-" else 1) * timedelta(hours=hours, minutes=minutes))
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise InvalidValue(
            f"unknown time zone: {text!r}", "Write an offset such as `+02:00`, or a name such as `Europe/Berlin`."
        ) from error
