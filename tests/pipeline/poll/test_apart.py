"""What is gone from ranges is told by their digests where only one choice explains them, and by nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from tidemark.pipeline.poll.apart import MOST_GONE, Apart
from tidemark.pipeline.poll.digests import BITS, RangeDigest, added
from tidemark.pipeline.poll.mirrored import Hashes, Kept

pytestmark = pytest.mark.quick


def hashes(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(1 << 63), (1 << 63) - 1, count, np.int64)


def kept(values: np.ndarray) -> Kept:
    return Kept.of(Hashes(values, np.arange(len(values))))


def apart(theirs: Kept, ours: Kept, bits: int) -> Apart:
    return Apart.between(bits, theirs.digests(bits, None), ours.digests(bits, None))


def numbers(values: np.ndarray, bits: int) -> set[int]:
    return set((values >> np.int64(BITS - bits)).tolist())


@pytest.mark.parametrize(("count", "lost", "bits"), [(50_000, 100, 10), (50_000, 4_000, 10), (90, 90, 1), (400, 0, 3)])
def test_what_is_named_is_gone_and_the_rest_lies_in_ranges_that_are_not_clear(count: int, lost: int, bits: int) -> None:
    every = hashes(count)
    gone = every[:lost]
    ours, theirs = kept(every), kept(every[lost:])
    differing = apart(theirs, ours, bits)
    assert set(differing.numbers.tolist()) == numbers(gone, bits)
    named, unclear = differing.gone(ours)
    assert named.keys is not None
    assert np.array_equal(every[named.keys], named.hashes)
    assert set(named.hashes.tolist()) <= set(gone.tolist())
    left = np.setdiff1d(gone, named.hashes)
    assert numbers(left, bits) == set(unclear.numbers.tolist())
    per_range = np.unique(left >> np.int64(BITS - bits), return_counts=True)[1]
    assert (per_range > MOST_GONE).all(), "few are always named"


def test_what_came_and_what_went_in_one_range_is_not_clear() -> None:
    every, new = hashes(40), hashes(1, seed=2)
    ours, theirs = kept(every), kept(np.concatenate([every[3:], new]))
    named, unclear = apart(theirs, ours, 1).gone(ours)
    assert not set(named.hashes.tolist()) - set(every[:3].tolist())
    assert set(unclear.numbers.tolist()) >= numbers(new, 1)


def test_hashes_that_are_there_twice_are_not_clear() -> None:
    one = np.array([5, 5, 7], np.int64)
    named, unclear = apart(kept(one[1:]), kept(one), 1).gone(kept(one))
    assert (len(named.hashes), unclear.numbers.tolist()) == (0, [0])


def test_two_choices_that_add_up_to_the_same_are_not_clear() -> None:
    one = np.array([1, 2, 3, 4, 100], np.int64)
    for lost in ((0, 3), (1, 2)):
        theirs = kept(np.delete(one, lost))
        named, unclear = apart(theirs, kept(one), 1).gone(kept(one))
        assert (len(named.hashes), unclear.numbers.tolist()) == (0, [0])


def test_digests_of_ranges_are_those_of_all() -> None:
    edges = np.array([0, -1, 1 << 31, (1 << 31) - 1, -(1 << 63), (1 << 63) - 1, -(1 << 31)], np.int64)
    some = kept(np.concatenate([edges, hashes(1000)]))
    for bits in (1, 4, 16):
        assert some.digests(bits, None).whole() == some.digest()
    halves = [(h >> 32, ((h & 0xFFFFFFFF) ^ (1 << 31)) - (1 << 31)) for h in edges.tolist()]
    assert RangeDigest.of(edges).total == sum((high << 32) + low for high, low in halves) % (1 << BITS)
    assert len(set(added(edges).tolist())) == len(edges)
    with_ranges = some.within(4, frozenset({0, -1}))
    assert np.array_equal(with_ranges.hashes, some.has.hashes[np.isin(some.has.hashes >> 60, [0, -1])])
