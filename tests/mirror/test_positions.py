"""Positions as people write them: the forms, the zones, and what is refused. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue
from tidemark.mirror.positions import parse_position, seconds_of

pytestmark = pytest.mark.quick

NOW = datetime(2026, 3, 1, 23, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("latest", "latest"),
        (" Now ", "now"),
        ("16/b374d848", Lsn.parse("16/B374D848")),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31 09:00", datetime(2026, 1, 31, 9, tzinfo=UTC)),
        ("2026-01-31T09:00:01.5Z", datetime(2026, 1, 31, 9, 0, 1, 500000, tzinfo=UTC)),
        ("2026-01-31 09:00:00.000007+02", datetime(2026, 1, 31, 7, 0, 0, 7, tzinfo=UTC)),
        ("2026-01-31 09:00 -03:30", datetime(2026, 1, 31, 12, 30, tzinfo=UTC)),
        ("2026-07-31 09:00 Europe/Berlin", datetime(2026, 7, 31, 7, tzinfo=UTC)),
        ("-5m", NOW - timedelta(minutes=5)),
        ("-5min", NOW - timedelta(minutes=5)),
        ("-2h30m", NOW - timedelta(hours=2, minutes=30)),
        ("-1d", NOW - timedelta(days=1)),
        ("-1.5h", NOW - timedelta(minutes=90)),
        ("-2w 500ms", NOW - timedelta(days=14, milliseconds=500)),
        ("90 s ago", NOW - timedelta(seconds=90)),
        ("today", datetime(2026, 3, 1, tzinfo=UTC)),
        ("today 6:00", datetime(2026, 3, 1, 6, tzinfo=UTC)),
        ("Yesterday 09:00:30", datetime(2026, 2, 28, 9, 0, 30, tzinfo=UTC)),
        ("yesterday 09:00+02", datetime(2026, 3, 1, 7, tzinfo=UTC)),  # it is March 2 there
        ("today 00:15 Europe/Berlin", datetime(2026, 3, 1, 23, 15, tzinfo=UTC)),
    ],
)
def test_a_position_is_an_lsn_a_time_or_a_relative_time(text: str, position: object) -> None:
    assert parse_position(text, NOW) == position


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "5m",
        "-5",
        "-5x",
        "-m",
        "- ",
        "16/XYZ",
        "/",
        "today 25:00",
        "2026-02-30",
        "-99999999999w",
        "today 09",
    ],
)
def test_what_is_no_position_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(InvalidValue, match="invalid position") as refused:
        parse_position(text, NOW)
    for form in ("latest", "now", "16/B374D848", "-5m", "yesterday 09:00"):
        assert form in refused.value.hint


def test_a_zone_that_does_not_exist_is_refused() -> None:
    for text in ("today 09:00 Mars/Base", "2026-01-31 09:00 Nowhere", "today ../etc/passwd"):
        with pytest.raises(InvalidValue):
            parse_position(text, NOW)


def test_a_duration_is_a_number_a_timedelta_or_a_text() -> None:
    assert [seconds_of(each) for each in (5, 0.5, "10s", "1.5h", "7d", timedelta(minutes=2))] == [
        5,
        0.5,
        10,
        5400,
        604800,
        120,
    ]
    with pytest.raises(InvalidValue, match="invalid duration"):
        seconds_of("soon")
