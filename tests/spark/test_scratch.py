"""The temporary files of killed processes are removed, and those of living ones are not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tidemark.spark import scratch
from tidemark.storage.interface import StorageLock
from tidemark.storage.local import LocalStorage

pytestmark = pytest.mark.quick

PROGRAM = """
import sys
from tidemark.spark.scratch import scratch_directory
(scratch_directory() / "left").write_text("a spilled row")
print(scratch_directory(), flush=True)
sys.stdin.read()
"""


def started(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    environment = {**os.environ, "TMPDIR": str(temporary)}
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=pipe, stdout=pipe, text=True, env=environment)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_no_directory_has_its_name_before_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lock, other = LocalStorage.lock, list[tuple[subprocess.Popen[str], Path]]()

    def locked(storage: LocalStorage, key: str, wait_s: float = 0.0) -> StorageLock | None:
        if not other:
            Path(storage.root, key).touch()
            other.append(started(tmp_path))  # which removes what was left
        return lock(storage, key, wait_s)

    monkeypatch.setattr(LocalStorage, "lock", locked)
    folder = scratch.scratch_directory.__wrapped__()
    assert sorted(tmp_path.iterdir()) == sorted([folder, other[0][1]])
    other[0][0].communicate("")


def test_what_a_killed_process_has_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "tidemark-java-starting").mkdir()
    (living, of_living), (killed, of_killed) = started(tmp_path), started(tmp_path)
    killed.kill()
    killed.communicate()
    assert of_killed.exists()
    ending, of_ending = started(tmp_path)
    assert not of_killed.exists()
    assert (of_living / "left").exists()
    assert (tmp_path / "tidemark-java-starting").exists()
    ending.communicate("")
    assert not of_ending.exists()
    living.communicate("")
