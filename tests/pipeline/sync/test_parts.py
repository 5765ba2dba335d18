"""A table in parts: every page in one of them, and none too small to be worth a task."""

from __future__ import annotations

import pytest

from tidemark.pipeline.copy.parts import LEAST_BYTES, PART_BYTES, Part, parts_of, together

pytestmark = pytest.mark.quick

PAGE = 8192


@pytest.mark.parametrize("pages", [0, 1, 2047, 2048, 2049, 50_000, 1_000_000, 100_000_000])
@pytest.mark.parametrize("tasks", [1, 2, 64])
def test_parts_are_all_pages_once_and_the_last_is_open(pages: int, tasks: int) -> None:
    parts = parts_of(7, pages, PAGE, tasks)
    assert parts[0].first == 0
    assert [part.end for part in parts] == [*(part.first for part in parts[1:]), None]
    assert sum(part.size_bytes for part in parts) == pages * PAGE
    assert all(LEAST_BYTES <= part.size_bytes <= PART_BYTES for part in parts[:-1])
    assert len(parts) <= max(2 * tasks, -(-pages * PAGE // PART_BYTES))


def test_small_tables_share_a_task_and_large_parts_have_their_own() -> None:
    small = [Part(oid, 0, None, 1 << 20) for oid in range(40)]
    large = [Part(100, 0, 9, PART_BYTES), Part(100, 9, None, PART_BYTES)]
    groups = together([*small, *large])
    assert sorted(part.oid for group in groups for part in group) == [*range(40), 100, 100]
    assert [len(group) for group in groups] == [1, 1, 16, 16, 8]
    assert [len(group) for group in together(Part(oid, 0, None, 8192) for oid in range(70))] == [32, 32, 6]
    assert together([]) == []
