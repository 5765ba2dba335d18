"""The ranges in which rows differ are found by their digests, and the deleted rows of a range by their hashes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.pipeline.poll.mirrored import Hashes, Kept, only_in
from tidemark.pipeline.poll.reconcile import DifferingRanges
from tidemark.reads.digests import BITS

pytestmark = pytest.mark.quick
FEW = st.lists(st.integers(0, 5), max_size=12)


def hashes(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(1 << 63), (1 << 63) - 1, count, np.int64)


def kept(values: np.ndarray) -> Kept:
    return Kept.of(Hashes(values, np.arange(len(values))))


def numbers(values: np.ndarray, bits: int) -> frozenset[int]:
    return frozenset((values >> np.int64(BITS - bits)).tolist())


@pytest.mark.parametrize(
    ("count", "lost", "new", "bits"),
    [(50_000, 100, 0, 10), (50_000, 4_000, 30, 10), (90, 90, 0, 1), (400, 0, 0, 3), (400, 0, 7, 3)],
)
def test_ranges_that_differ_are_those_of_deleted_and_added_rows(count: int, lost: int, new: int, bits: int) -> None:
    every, more = hashes(count), hashes(new, seed=2)
    ours, theirs = kept(every), kept(np.concatenate([every[lost:], more]))
    differing = DifferingRanges.between(bits, theirs.digests(bits, None), ours.digests(bits, None))
    touched = numbers(np.concatenate([every[:lost], more]), bits)
    assert differing.all == (bits, touched)
    assert differing.emptied == (bits, touched - numbers(theirs.has.hashes, bits))
    assert differing.source_whole == theirs.digest()
    assert max(len(ours.within(bits, touched).hashes), len(theirs.within(bits, touched).hashes)) <= differing.rows


def test_a_range_that_has_lost_one_row_and_got_another_differs() -> None:
    every = np.arange(1, 41, dtype=np.int64)
    ours, theirs = kept(every), kept(np.append(every[1:], 99))
    differing = DifferingRanges.between(1, theirs.digests(1, None), ours.digests(1, None))
    assert (differing.all, differing.emptied) == ((1, frozenset({0})), (1, frozenset()))


@given(FEW, FEW)
def test_of_rows_with_one_hash_as_many_are_deleted_as_the_source_lacks(ours: list[int], theirs: list[int]) -> None:
    has, wanted = kept(np.array(ours, np.int64)).has, np.array(sorted(theirs), np.int64)
    left = only_in(has, wanted).hashes.tolist()
    assert left == sorted(value for value in set(ours) for _ in range(ours.count(value) - theirs.count(value)))


def test_digests_of_ranges_are_those_of_all() -> None:
    edges = np.array([0, -1, 1 << 31, (1 << 31) - 1, -(1 << 63), (1 << 63) - 1, -(1 << 31)], np.int64)
    some = kept(np.concatenate([edges, hashes(1000)]))
    for bits in (1, 4, 16):
        assert some.digests(bits, None).whole() == some.digest()
    with_ranges = some.within(4, frozenset({0, -1}))
    assert np.array_equal(with_ranges.hashes, some.has.hashes[np.isin(some.has.hashes >> 60, [0, -1])])
