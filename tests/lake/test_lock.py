"""Locks of a lake: one writer, which a check for a writer does not keep from starting."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from tidemark.errors import LakeInUse
from tidemark.lake.lock import WRITING, LakeLock, has_writer

pytestmark = pytest.mark.quick


def test_a_lock_has_one_owner_who_is_named_and_is_free_when_it_is_closed(tmp_path: Path) -> None:
    assert not has_writer(tmp_path)
    with LakeLock(tmp_path, WRITING):
        assert has_writer(tmp_path)
        with pytest.raises(LakeInUse, match="in use by another writer: "):
            LakeLock(tmp_path, WRITING)
    assert not has_writer(tmp_path)
    LakeLock(tmp_path, WRITING).close()


def test_a_check_for_a_writer_keeps_no_writer_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check locks the file for a moment; here it ends when the writer pauses before its next attempt."""
    LakeLock(tmp_path, WRITING).close()
    checked = os.open(tmp_path / WRITING, os.O_RDONLY)
    fcntl.flock(checked, fcntl.LOCK_SH | fcntl.LOCK_NB)
    monkeypatch.setattr("tidemark.storage.local.time.sleep", lambda _: os.close(checked))
    LakeLock(tmp_path, WRITING).close()
