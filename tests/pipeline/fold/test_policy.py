"""When it pays to fold."""

from __future__ import annotations

import pytest

from tidemark.pipeline.fold.layout import BUCKET_BYTES, CHANGED_BYTES, bucket_count
from tidemark.pipeline.fold.policy import MANY, REST, WAITED_S, Burden, Rhythm

pytestmark = pytest.mark.quick

MB = 1 << 20
LITTLE = Burden(changed_rows=1000, changed_bytes=50_000, live_bytes=320 * MB, buckets=10)
ENOUGH = Burden(changed_rows=100_000, changed_bytes=5 * MB, live_bytes=320 * MB, buckets=10)


def test_a_fold_pays_when_the_changes_are_worth_the_rewrite() -> None:
    assert not LITTLE.pays
    assert ENOUGH.pays
    assert Burden(MANY, 1, 320 * MB, 10).pays
    assert Burden(1, 100, 0, 0).pays, "nothing is there to be rewritten"
    assert Burden(1, 50_000, 320 * MB, 1000).pays, "one bucket of a thousand"


def test_scattered_changes_rewrite_every_bucket_and_one_only_one() -> None:
    assert LITTLE.rewritten_bytes > 0.99 * LITTLE.live_bytes
    assert round(Burden(1, 100, 320 * MB, 10).rewritten_bytes) == 32 * MB


def test_a_table_is_folded_when_it_pays_or_has_waited_and_then_rests() -> None:
    rhythm = Rhythm()
    assert not rhythm.due("t", LITTLE, 100)
    assert not rhythm.due("t", LITTLE, 100 + WAITED_S / 2)
    assert rhythm.due("t", LITTLE, 100 + WAITED_S)
    assert rhythm.due("t", ENOUGH, 500)
    rhythm.folded("t", 500, 510)
    assert not rhythm.due("t", ENOUGH, 511)
    assert not rhythm.due("t", ENOUGH, 509 + 10 * REST)
    assert rhythm.due("t", ENOUGH, 510 + 10 * REST)
    assert rhythm.due("u", ENOUGH, 511), "another table has not been folded"


def test_a_table_that_has_nothing_to_fold_any_more_does_not_wait() -> None:
    rhythm = Rhythm()
    for name in ("t", "dropped"):
        assert not rhythm.due(name, LITTLE, 100)
    rhythm.keep({"t"})
    assert rhythm.due("t", LITTLE, 100 + WAITED_S)
    assert not rhythm.due("dropped", LITTLE, 100 + WAITED_S), "another table with its name begins to wait"


def test_buckets_follow_the_size_and_stay_while_it_is_about_the_same() -> None:
    assert bucket_count(0, 10, 0) == 1
    assert bucket_count(0, 10 * BUCKET_BYTES, 0) == 10
    assert bucket_count(10 * BUCKET_BYTES, 0, 8) == 8
    assert bucket_count(17 * BUCKET_BYTES, 0, 8) == 17
    assert bucket_count(3 * BUCKET_BYTES, 0, 8) == 3
    assert bucket_count(BUCKET_BYTES, 20 * CHANGED_BYTES, 1) == 20, "what changed must fit into tasks too"
