"""Sizes and durations: parsed in the units of PostgreSQL's settings, and formatted for people."""

from __future__ import annotations

import re

from tidemark.errors import InvalidValue

_SIZE = re.compile(r"([0-9]+)\s*(B|kB|MB|GB|TB)?")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|min|h|d)")
_SHIFTS = {"B": 0, "kB": 10, "MB": 20, "GB": 30, "TB": 40}
FOREVER = "forever"
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(text: str | int) -> int:
    """Return the bytes of a size such as `512MB`; a number without a unit is bytes."""
    match = _SIZE.fullmatch(str(text))
    if match is None:
        raise InvalidValue(f"invalid size: {text!r}", "Use a number with kB, MB, GB or TB, such as 512MB.")
    return int(match[1]) << _SHIFTS[match[2] or "B"]


def parse_duration(text: str | float) -> float:
    """Return the seconds of a duration such as `30min`; a number that is not text is seconds."""
    if isinstance(text, (int, float)):
        return float(text)
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidValue(f"invalid duration: {text!r}", "Use a number with ms, s, min, h or d, such as 30s.")
    return float(match[1]) * _SECONDS[match[2]]


def parse_keep(text: str | float) -> float | None:
    """Return the seconds of a retention period such as `7d`; None for `forever`."""
    try:
        return None if text == FOREVER else parse_duration(text)
    except InvalidValue as error:
        raise InvalidValue(error.message, f"Use a number with min, h or d, such as 7d, or `{FOREVER}`.") from error


def format_size(size_bytes: float) -> str:
    """Format a size for people, in the units of `parse_size`: `0 bytes`, `512 kB`, `1.2 GB`."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f} byte{'s' * (round(size_bytes) != 1)}"
    value, unit = float(size_bytes), "B"
    for unit in ("kB", "MB", "GB", "TB"):  # noqa: B007 - the last one is kept
        value /= 1024
        if value < 1023.5:
            break
    rounded = f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"
    return f"{rounded.removesuffix('.0')} {unit}"


def format_duration(seconds: float) -> str:
    """Format a duration for people: `0.8 s`, `42 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    for large, small, (name, part) in ((86400, 3600, ("d", "h")), (3600, 60, ("h", "min")), (60, 1, ("min", "s"))):
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large} {name} {rest} {part}" if rest else f"{whole // large} {name}"
    return f"{whole} s"
