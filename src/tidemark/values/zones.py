"""Time zones, for the text of timestamptz: the distance from UTC at any time, computed as PostgreSQL does.

A zone is read from the bytes of a compiled zone file (TZif, RFC 9636). After the last transition of the file its rule
applies. Rules repeat after 400 years, so a time after the transitions of one cycle has the distance of the same time
in that cycle.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

import numpy as np

from tidemark.clock.epoch import EPOCH_S
from tidemark.errors import InvalidValue
from tidemark.values.kernels import Flags, Ints, Longs

_CYCLE_S = 146_097 * 86_400  # 400 years
_CYCLE_YEARS = 400
_HINT = "Use a file of the IANA time zone database, version 2 or later."
_RULE = re.compile(
    rb"(?:<[^>]+>|[A-Za-z]+)([-+]?[0-9:]+)"
    rb"(?:(?:<[^>]+>|[A-Za-z]+)([-+]?[0-9:]+)?,([^,]+),([^,]+))?"
)


@dataclass(frozen=True, slots=True)
class Zone:
    """Transitions, in seconds since 1970, and seconds east of UTC: before the first transition, and from each on."""

    transitions: Longs
    east: Ints
    repeats: bool = False

    def seconds_east(self, micros: Longs, valid: Flags) -> Longs:
        """Return the distance from UTC at times in microseconds since 2000; 0 where there is no time."""
        if not len(self.transitions):
            return np.where(valid, np.int64(self.east[0]), 0)
        seconds = micros // 1_000_000 + EPOCH_S
        if self.repeats:
            late = np.maximum(seconds - self.transitions[-1], 0)
            seconds = seconds - -(-late // _CYCLE_S) * _CYCLE_S
        found = self.east[np.searchsorted(self.transitions, seconds, side="right")].astype(np.int64)
        return np.where(valid, found, 0)


UTC = Zone(np.empty(0, np.int64), np.zeros(1, np.int32))


def fixed_zone(east: int) -> Zone:
    """Return a zone without transitions, by its distance from UTC in seconds east."""
    return Zone(np.empty(0, np.int64), np.array([east], np.int32))


def zone_of(compiled: bytes) -> Zone:
    """Return the zone of a compiled zone file."""
    try:
        transitions, east, rule = _parsed(compiled)
    except (struct.error, ValueError, IndexError) as error:
        raise InvalidValue("the data is not a compiled time zone", _HINT) from error
    if not rule:
        return Zone(transitions, east)
    matched = _RULE.fullmatch(rule)
    if matched is None:
        raise InvalidValue(f"the rule of the time zone is not supported: {rule!r}", _HINT)
    standard, summer, start, end = matched.groups()
    if start is None:
        return Zone(transitions, east)
    later = _repeated(_last_year(transitions), -_seconds(standard), summer, start, end)
    return _continued(transitions, east, later)


def _parsed(compiled: bytes) -> tuple[Longs, Ints, bytes]:
    """Return the 64-bit transitions, the distances from UTC, and the rule at the end of the file."""
    first = struct.unpack_from("!4sc15x6l", compiled)
    if first[0] != b"TZif" or first[1] < b"2":
        raise ValueError("not a TZif file of version 2 or later")
    at = 44 + _body_bytes(first[2:], 4)
    counts = struct.unpack_from("!4sc15x6l", compiled, at)
    times, types = counts[5:7]
    begin = at + 44
    transitions = np.frombuffer(compiled, ">i8", times, begin).astype(np.int64)
    kinds = np.frombuffer(compiled, np.uint8, times, begin + 8 * times)
    zones = [struct.unpack_from("!lBB", compiled, begin + 9 * times + 6 * k) for k in range(types)]
    end = begin + _body_bytes(counts[2:], 8)
    initial = 0  # what holds before the first transition
    east = np.array([zones[kind][0] for kind in (initial, *kinds)], np.int32)
    return transitions, east, compiled[end + 1 :].partition(b"\n")[0]


def _body_bytes(counts: tuple[int, ...], width: int) -> int:
    local, standard, leaps, times, types, chars = counts
    return times * (width + 1) + types * 6 + chars + leaps * (width + 4) + standard + local


def _last_year(transitions: Longs) -> int:
    return 1970 if not len(transitions) else int(transitions[-1] // 31_556_952) + 1970


def _repeated(first: int, east: int, summer: bytes | None, start: bytes, end: bytes) -> list[tuple[int, int]]:
    """Return the transitions of a rule, and the distance from UTC from each on, for one cycle and a year before it."""
    in_summer = east + 3600 if summer is None else -_seconds(summer)
    found = []
    for year in range(first - 1, first + _CYCLE_YEARS + 2):
        found += [(_day(year, start) - east, in_summer), (_day(year, end) - in_summer, east)]
    return sorted(found)


def _continued(transitions: Longs, east: Ints, later: list[tuple[int, int]]) -> Zone:
    last = int(transitions[-1]) if len(transitions) else -(2**62)
    added = [(at, zone) for at, zone in later if at > last]
    whole = np.concatenate([transitions, np.array([at for at, _ in added], np.int64)])
    return Zone(whole, np.concatenate([east, np.array([zone for _, zone in added], np.int32)]), repeats=True)


def _seconds(text: bytes) -> int:
    """Return [-]H[:M[:S]] in seconds."""
    sign = -1 if text.startswith(b"-") else 1
    parts = [int(part) for part in text.lstrip(b"+-").split(b":")]
    return sign * sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))


def _day(year: int, text: bytes) -> int:
    """Return the local time of a rule such as M3.2.0/2 in a year, in seconds since 1970."""
    day, _, clock = text.partition(b"/")
    seconds = _seconds(clock) if clock else 7200
    begin = _days(year, 1)
    leap = _days(year + 1, 1) - begin == 366
    if day.startswith(b"M"):
        month, week, weekday = (int(part) for part in day[1:].split(b"."))
        first = _days(year, month)
        length = (_days(year + month // 12, month % 12 + 1)) - first
        found = (weekday - (first + 4)) % 7 + 7 * (week - 1)  # 1970-01-01 was a Thursday
        return (first + (found if found < length else found - 7)) * 86_400 + seconds
    if day.startswith(b"J"):
        number = int(day[1:])
        return (begin + number - 1 + (leap and number > 59)) * 86_400 + seconds
    return (begin + int(day)) * 86_400 + seconds


def _days(year: int, month: int) -> int:
    """Return the days from 1970-01-01 to the first of a month."""
    of_year = year - (month <= 2)
    era = of_year // 400
    of_era = of_year - era * 400
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + (153 * ((month + 9) % 12) + 2) // 5 - 719_468
