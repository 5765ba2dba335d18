"""Which route a statement takes, from the times that were measured."""

from __future__ import annotations

import pytest

from tidemark.serve.learning import AGAIN_S, LONGEST, PAUSE_S, REMEASURED, RETRIED, Destination, Memory, Record

pytestmark = pytest.mark.quick
COST = 1000.0


def record(source_s: float | None = None, mirror_s: float | None = None, cost: float = 5000.0) -> Record:
    return Record(cost=cost, source_s=source_s, mirror_s=mirror_s)


@pytest.mark.parametrize(
    ("given", "threshold", "offloads", "choice"),
    [
        (record(cost=10.0), COST, False, Destination.SOURCE),
        (record(cost=10.0), COST, True, Destination.SOURCE),
        (record(cost=10.0), 0.0, False, Destination.MIRROR),
        (record(), COST, True, Destination.MIRROR),
        (record(), COST, False, Destination.SOURCE),
        (record(source_s=1.0), COST, False, Destination.MEASURE),
        (Record(cost=5000.0, source_s=1.0, needs_session=True), COST, False, Destination.MIRROR),
        (record(source_s=1.0, mirror_s=0.5), COST, False, Destination.MIRROR),
        (record(source_s=1.0, mirror_s=0.95), COST, False, Destination.SOURCE),
        (record(source_s=1.0, mirror_s=2.0), COST, False, Destination.SOURCE),
    ],
)
def test_the_faster_route_is_taken(given: Record, threshold: float, offloads: bool, choice: Destination) -> None:
    assert given.choice(threshold, 0.0, offloads=offloads) is choice


def test_the_slower_route_is_timed_again_now_and_then() -> None:
    slow, fast = record(source_s=1.0, mirror_s=2.0), record(source_s=1.0, mirror_s=0.1)
    choices = [slow.choice(COST, 0.0, offloads=False) for _ in range(REMEASURED * 2)]
    assert choices.count(Destination.MEASURE) == 2
    assert Destination.MIRROR not in choices
    choices = [fast.choice(COST, 0.0, offloads=False) for _ in range(RETRIED)]
    assert choices.count(Destination.SOURCE) == 1


def test_after_a_failure_the_source_answers_for_a_while_and_longer_after_each() -> None:
    fast = record(source_s=1.0, mirror_s=0.1)
    pauses = []
    now = 1000.0
    for _ in range(12):
        fast.add_failure(now)
        pauses.append(fast.paused_until - now)
        assert fast.choice(COST, fast.paused_until - 0.1, offloads=True) is Destination.SOURCE
        assert fast.choice(0.0, now, offloads=False) is Destination.MIRROR
        now = fast.paused_until
        assert fast.choice(COST, now, offloads=True) is Destination.MIRROR
    assert pauses[:3] == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S]
    assert max(pauses) == AGAIN_S
    fast.add_mirror(0.1)
    fast.add_failure(now)
    assert fast.paused_until == now + PAUSE_S


def test_the_mirror_may_be_late_by_a_multiple_of_the_time_of_the_source() -> None:
    assert record(source_s=0.01).late_s(COST, offloads=False) == 1.0
    assert record(source_s=10.0).late_s(COST, offloads=False) == 30.0
    patient = [record().late_s(COST, offloads=False), record(source_s=1.0).late_s(COST, offloads=True)]
    assert {*patient, record(source_s=1.0).late_s(0.0, offloads=False)} == {60.0}
    assert [record(source_s=seconds).wait_s for seconds in (0.01, 1.0, 100.0)] == [0.1, 0.2, 1.0]


def test_a_verdict_is_checked_again_after_a_while() -> None:
    cheap, unproven = Record(cost=10.0, checked_at=100.0), Record(unproven="a reason", checked_at=100.0)
    for each in (cheap, unproven):
        assert each.is_settled(COST, 100.0 + AGAIN_S)
        assert not each.is_settled(COST, 101.0 + AGAIN_S)
    assert not Record(cost=5000.0, checked_at=100.0).is_settled(COST, 100.0)
    assert not Record().is_settled(COST, 100.0)


def test_times_are_averaged_and_the_last_ones_weigh_more() -> None:
    measured = Record()
    for seconds in (1.0, 1.0, 3.0):
        measured.add_source(seconds)
        measured.add_mirror(seconds)
    assert measured.source_s == measured.mirror_s
    assert 1.0 < (measured.source_s or 0) < 3.0


def test_statements_with_other_constants_share_their_record() -> None:
    def fingerprint(text: str) -> str:
        if "?" in text:
            raise ValueError(text)
        return text.rstrip("0123456789")

    memory = Memory(fingerprint)
    assert memory.of("select 1") is memory.of("select 22")
    assert memory.of("select 1") is not memory.of("table t")
    assert memory.of("?") is not memory.of("?")


def test_long_texts_are_not_kept() -> None:
    memory = Memory(lambda text: text[:8])
    assert memory.of("select 1") is memory.of("select 1, " + "1, " * LONGEST)
    assert list(memory._texts) == ["select 1"]
