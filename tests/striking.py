"""Polls that end before their end, by an exception at a named point that nobody catches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tidemark.lake import points
from tidemark.lake.points import Point


class Struck(BaseException):
    """Nobody catches it."""


@contextmanager
def striking(point: Point, times: int = 1) -> Iterator[None]:
    """The poll ends at this point, the n-th time that it comes there."""
    left = [times]

    def strike(reached: Point) -> None:
        left[0] -= reached is point
        if reached is point and left[0] == 0:
            raise Struck(point.value)

    points.attach(strike)
    try:
        with pytest.raises(Struck):
            yield
    finally:
        points._attached.remove(strike)
