"""Locks of a lake: one writer, which a check for a writer does not keep from starting."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tidemark.errors import LakeInUse
from tidemark.lake.lock import WRITING, Lock, is_held

pytestmark = pytest.mark.quick


def test_a_lock_has_one_owner_who_is_named_and_is_free_when_it_is_closed(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    with Lock(tmp_path, WRITING):
        assert is_held(tmp_path)
        with pytest.raises(LakeInUse, match="in use by another writer: "):
            Lock(tmp_path, WRITING)
    assert not is_held(tmp_path)
    Lock(tmp_path, WRITING).close()


def test_checks_for_a_writer_keep_no_writer_from_starting(tmp_path: Path) -> None:
    Lock(tmp_path, WRITING).close()
    done = threading.Event()

    def check() -> None:
        while not done.is_set():
            is_held(tmp_path)

    checking = [threading.Thread(target=check) for _ in range(2)]
    for thread in checking:
        thread.start()
    try:
        for _ in range(300):
            Lock(tmp_path, WRITING).close()
    finally:
        done.set()
        for thread in checking:
            thread.join()
