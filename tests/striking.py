"""Writers and polls that end early, by an exception at a fail point that nothing catches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tidemark.storage import fail_points
from tidemark.storage.fail_points import AnyFailPoint, FailPoint


class Struck(BaseException):
    """Nothing catches it."""


@contextmanager
def striking(point: FailPoint, times: int = 1) -> Iterator[None]:
    """Whatever runs ends at this point, the n-th time that it reaches it."""
    left = [times]

    def strike(reached: AnyFailPoint) -> None:
        left[0] -= reached is point
        if reached is point and left[0] == 0:
            raise Struck(point.value)

    fail_points.attach(strike)
    try:
        with pytest.raises(Struck):
            yield
    finally:
        fail_points.detach(strike)
