"""The pauses of a mirror that polls while its source does not answer."""

from __future__ import annotations

import pytest

from tidemark.errors import SourceUnreachable
from tidemark.pipeline.poll import polling
from tidemark.pipeline.poll.polling import Polling
from tidemark.restarts import next_pause_s

pytestmark = pytest.mark.quick

OUTAGE = 1100  # failures: with pauses of up to five minutes, several days


def test_a_pause_doubles_up_to_its_limit() -> None:
    pauses = [0.0]
    while pauses[-1] < 60.0:
        pauses.append(next_pause_s(pauses[-1], 1.0, 60.0))
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]
    assert next_pause_s(pauses[-1], 1.0, 60.0) == 60.0


def test_polling_goes_on_after_more_failures_than_a_power_of_two_can_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(polling, "MOST_PAUSE_S", 0.0)
    attempts = 0

    def step() -> int:
        nonlocal attempts
        attempts += 1
        if attempts <= OUTAGE:
            raise SourceUnreachable("the source does not answer")
        return attempts

    done: list[int] = []
    Polling(step, None, 0.0, lambda: False).run(lambda number, _: done.append(number), once=True)
    assert done == [OUTAGE + 1]
