"""What is kept of a Delta table is what the table has now, however it came to be."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tidemark.lake import cached as cache
from tidemark.lake.cached import cached
from tidemark.lake.commits import LOG_S

pytestmark = pytest.mark.quick


def add(folder: Path, value: int) -> None:
    write_deltalake(folder, pa.table({"value": [value]}), mode="append")


class Reader:
    """Reads the rows of a table, and counts how often."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def values(self) -> list[int] | None:
        return cached(self.folder, "values", self._read)

    def _read(self, table: DeltaTable) -> list[int]:
        self.count += 1
        return sorted(table.to_pyarrow_table()["value"].to_pylist())


def test_it_is_read_again_only_after_a_commit(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "t")
    assert reader.values() is None
    for count in range(1, 4):
        add(reader.folder, count)
        for _ in range(3):
            assert reader.values() == list(range(1, count + 1))
        assert reader.count == count
    assert cached(reader.folder, "version", DeltaTable.version) == 2
    assert reader.count == 3


def test_it_follows_checkpoints_and_logs_that_are_cleaned_up(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "t")
    for count in range(30):
        add(reader.folder, count)
        if count % 7 == 0:
            assert reader.values() == list(range(count + 1))
    DeltaTable(reader.folder).create_checkpoint()
    for old in sorted((reader.folder / "_delta_log").glob("*.json"))[:-1]:
        old.unlink()
    assert reader.values() == list(range(30))
    add(reader.folder, 30)
    assert reader.values() == list(range(31))


def test_a_log_that_is_being_cleaned_up_in_another_order_hides_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(tmp_path / "t")
    for count in range(3):
        add(reader.folder, count)
    log, hour_ago = reader.folder / "_delta_log", time.time() - 3600
    os.utime(log / f"{2:020}.json", (hour_ago, hour_ago))
    assert reader.values() == [0, 1, 2]
    for count in range(3, 6):
        add(reader.folder, count)
    DeltaTable(reader.folder).create_checkpoint()
    (log / f"{3:020}.json").unlink()
    later = time.time() + LOG_S
    monkeypatch.setattr("tidemark.lake.cached.time.time", lambda: later)
    assert reader.values() == list(range(6))


def test_a_table_without_new_commits_is_not_read_again_after_an_idle_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_RECENT_S", 0.0)
    reader = Reader(tmp_path / "t")
    add(reader.folder, 1)
    assert [reader.values() for _ in range(3)] == [[1]] * 3
    assert reader.count == 1


@pytest.mark.parametrize("commits", [1, 3, 9])
def test_a_table_that_was_removed_and_created_again_is_another_one(tmp_path: Path, commits: int) -> None:
    reader = Reader(tmp_path / "t")
    for count in range(3):
        add(reader.folder, count)
    assert reader.values() == [0, 1, 2]
    shutil.rmtree(reader.folder)
    for count in range(commits):
        add(reader.folder, 100 + count)
    assert reader.values() == list(range(100, 100 + commits))
    shutil.rmtree(reader.folder)
    assert reader.values() is None


def test_threads_never_miss_a_commit_that_came_before(tmp_path: Path) -> None:
    reader, done, missed = Reader(tmp_path / "t"), [0], list[str]()
    add(reader.folder, 0)

    def look() -> None:
        while done[0] < 40:
            before = done[0]
            found = reader.values()
            if found is None or len(found) < before + 1:
                missed.append(f"{found} after {before} commits")

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for count in range(1, 41):
        add(reader.folder, count)
        done[0] = count
    for thread in threads:
        thread.join()
    assert not missed


def test_tables_of_a_directory_that_was_removed_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_tables", {})
    monkeypatch.setattr(cache, "_folders", [])
    readers = [Reader(tmp_path / name) for name in ("1/changes", "1/versions", "11/changes")]
    for reader in readers:
        add(reader.folder, 7)
        assert reader.values() == [7]
    cache.forget(tmp_path / "1")
    assert list(cache._tables) == cache._folders == [tmp_path / "11/changes"]
    assert [reader.values() for reader in readers] == [[7], [7], [7]]
    assert [reader.count for reader in readers] == [2, 2, 1]


def test_passes_over_more_tables_than_are_kept_find_most_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_MOST", 20)
    monkeypatch.setattr(cache, "_tables", {})
    monkeypatch.setattr(cache, "_folders", [])
    add(tmp_path / "0", 7)
    for number in range(1, 24):
        shutil.copytree(tmp_path / "0", tmp_path / str(number))
    readers = [Reader(tmp_path / str(number)) for number in range(24)]
    for _ in range(20):
        assert all(reader.values() == [7] for reader in readers)
        assert len(cache._tables) == 20
    assert sum(reader.count for reader in readers) < 0.6 * 20 * 24, "about 0.35; those used last would be none of them"
