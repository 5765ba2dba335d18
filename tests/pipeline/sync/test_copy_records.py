"""The record of a copy keeps its files until every table of it is adopted or rejected."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.errors import LakeInUse
from tidemark.lake import copy_records
from tidemark.lake.copy_records import (
    CopyRecord,
    RecordedCopy,
    RecordedPart,
    left_records,
    recorded_files,
    recorded_floors,
    remove_abandoned,
)
from tidemark.pipeline.copy.continuing import ContinuedCopy, left_copies

pytestmark = pytest.mark.quick


def recorded(lake: Path) -> CopyRecord:
    """A record with one part."""
    record = CopyRecord(lake)
    record.write(RecordedCopy("name", Snapshot.parse("7:9:8"), Boundary(Lsn(7), frozenset({Lsn(5)})), {}))
    record.add(RecordedPart(1, 0, 5, [{"path": "live-0.parquet"}]))
    return record


def test_a_record_stays_until_every_table_of_it_is_settled(tmp_path: Path) -> None:
    with ContinuedCopy(recorded(tmp_path), None, ()) as copy:  # type: ignore[arg-type]
        copy.report(1)
        copy.report(2)
        copy.settle(2)
    assert recorded_files(tmp_path) == {"live-0.parquet"}
    copy.settle(1)
    assert not list((tmp_path / "_copies").iterdir())


def test_what_a_killed_process_left_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_records, "_WAIT_S", 0.0)
    record = recorded(tmp_path)
    with pytest.raises(LakeInUse, match="another process continues the copy"):
        left_records(tmp_path)
    before, parts = record.read(), record.parts()
    record.close()
    (left,) = left_copies(tmp_path)
    assert (left.copy, list(left.parts)) == (before, parts)
    left.record.remove()
    assert not left_copies(tmp_path)


def test_a_record_that_no_process_continues_keeps_changes_for_some_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = recorded(tmp_path)
    monkeypatch.setattr(copy_records, "ABANDONED_S", 0.0)
    remove_abandoned(tmp_path)
    assert recorded_floors(tmp_path) == (Lsn(4),), "its process runs"
    record.close()
    monkeypatch.setattr(copy_records, "ABANDONED_S", 3600.0)
    remove_abandoned(tmp_path)
    assert recorded_floors(tmp_path) == (Lsn(4),)
    monkeypatch.setattr(copy_records, "ABANDONED_S", 0.0)
    remove_abandoned(tmp_path)
    assert (recorded_floors(tmp_path), recorded_files(tmp_path)) == ((), set())
    assert not list((tmp_path / "_copies").iterdir())


def test_the_lock_of_a_process_that_was_killed_before_it_wrote_its_record_is_removed(tmp_path: Path) -> None:
    running = CopyRecord(tmp_path)
    CopyRecord(tmp_path).close()
    remove_abandoned(tmp_path)
    assert [path.name for path in (tmp_path / "_copies").iterdir()] == [f"{running.id}.lock"]
    running.close()


def test_a_record_of_another_version_is_removed_and_its_files_are_not_kept(tmp_path: Path) -> None:
    record = recorded(tmp_path)
    record.close()
    (tmp_path / "_copies" / f"{record.id}.json").write_text('{"format": 99}')
    (tmp_path / "_copies" / f"{record.id}-1-0.part").write_text("{}")
    assert recorded_files(tmp_path) == set()
    assert left_copies(tmp_path) == []
    assert not list((tmp_path / "_copies").iterdir())
