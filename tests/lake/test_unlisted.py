"""Files on disk that a table does not list: removed by a commit or never committed, and since when."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from tidemark.clock import Lsn
from tidemark.lake.columns import StoredColumn
from tidemark.lake.commits import LOG_S, old_commits, remove_files
from tidemark.lake.files import FileWriter
from tidemark.lake.unlisted import SeenUnlisted, UnlistedFile, delete, removed_files, unlisted_files
from tidemark.lake.versions import VersionTable, version_schema
from tidemark.pipeline.expire.expiry import _deletable

pytestmark = pytest.mark.quick

COLUMNS = [StoredColumn("a", 1, pa.int32())]


def table_of(folder: Path, count: int) -> list[str]:
    """Create a table and return the names of its files."""
    table, names = VersionTable.create(folder, COLUMNS), []
    for number in range(count):
        writer = FileWriter(folder, "live-00000-of-00001")
        writer.write(pa.table([[number], [number], [None]], schema=version_schema(COLUMNS)))
        file = writer.close()
        table.replace([file], [], Lsn(number + 1), Lsn(1))
        names.append(file.path)
    return names


def made_older(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def last_commit(folder: Path) -> Path:
    return max((folder / "_delta_log").glob("*.json"))


def test_what_was_removed_is_known_with_its_age(tmp_path: Path) -> None:
    first, second, third = table_of(tmp_path, 3)
    stray = "live-00000-of-00001-00.parquet"
    (tmp_path / stray).write_bytes(b"left")
    made_older(tmp_path / stray, 50)
    assert [(file.name, file.size_bytes) for file in unlisted_files(tmp_path)] == [(stray, 4)]
    assert time.time() - unlisted_files(tmp_path)[0].modified_at >= 50
    remove_files(tmp_path, [first])
    made_older(last_commit(tmp_path), 600)
    remove_files(tmp_path, [second])
    assert {file.name for file in unlisted_files(tmp_path)} == {first, second, stray}
    assert removed_files(tmp_path, 0) == ({first, second}, {first, second})
    assert removed_files(tmp_path, 300) == ({first, second}, {first})
    assert removed_files(tmp_path, 900) == ({first, second}, set())
    assert removed_files(tmp_path, LOG_S) == ({first, second}, set()), "Delta's own record tells whole hours"
    delete(tmp_path, [first, second, "live-00000-of-00001-01.parquet"])
    assert {file.name for file in unlisted_files(tmp_path)} == {stray}
    assert {path.name for path in tmp_path.glob("*.parquet")} == {third, stray}


def test_the_first_time_that_a_file_was_found_is_kept_until_it_is_gone(tmp_path: Path) -> None:
    seen = SeenUnlisted(tmp_path, dry_run=False)
    first = seen.since("tables/1/changes", ["a", "b"])
    seen.record()
    later = SeenUnlisted(tmp_path, dry_run=False)
    assert later.since("tables/1/changes", ["b", "c"])["b"] == first["b"]
    later.since("tables/2/changes", ["b"])
    later.record()
    SeenUnlisted(tmp_path, dry_run=True).record()
    last = SeenUnlisted(tmp_path, dry_run=False)
    assert last.since("tables/1/changes", ["a", "b"])["b"] == first["b"]
    assert last.since("tables/1/changes", ["a"])["a"] > first["a"], "it was gone in between"


def test_files_whose_removal_is_not_recorded_stay_for_old_leases_until_they_were_seen_for_long(tmp_path: Path) -> None:
    (first,) = table_of(tmp_path, 1)
    assert first not in {file.name for file in unlisted_files(tmp_path)}
    found = {name: UnlistedFile(name, 1, 0.0) for name in ("old", "new")}
    since = {"old": time.time() - 4 * 3600, "new": time.time() - 60}
    three_hours = _deletable(tmp_path, found, since, 3 * 3600.0, 86400.0)
    assert three_hours == {"expired earlier": set(), "never committed": {"old"}}
    assert _deletable(tmp_path, found, since, 3600.0, 86400.0)["never committed"] == {"old", "new"}


def test_commits_that_the_log_need_not_keep_are_counted(tmp_path: Path) -> None:
    table_of(tmp_path, 3)
    assert old_commits(tmp_path) == 0
    for path in sorted((tmp_path / "_delta_log").glob("*.json"))[:2]:
        made_older(path, LOG_S + 1)
    assert old_commits(tmp_path) == 2
