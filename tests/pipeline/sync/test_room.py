"""A disk that is full while tables are copied or applied: it is named, nothing is half done, and then it goes on.

The error is the kernel's own: what a task would write goes to /dev/full for as long as the disk is to be full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from harness.database import Database
from harness.syncing import syncing
from tests.conftest import NEWEST
from tests.pipeline.sync.test_faults import TABLE, wrapped
from tidemark.errors import TaskFailed
from tidemark.lake import files
from tidemark.lake.changes import change_prefix
from tidemark.lake.columns import OURS
from tidemark.lake.status import status_of
from tidemark.pipeline.apply import job as apply_job
from tidemark.pipeline.copy import copying
from tidemark.pipeline.copy import job as copy_job
from tidemark.pipeline.copy.planning import SnapshotCopy
from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake
from tidemark.schema.history import table_path

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]

NAMES = ("id", "v", *OURS.names)
Run = Callable[..., Iterator[pa.RecordBatch]]


def full_while(marker: Path, job: ModuleType, name: Callable[[str], Path]) -> Run:
    """A job's tasks, whose next file is one that nothing can be written to while the marker is there."""
    original: Run = job._run

    def run(*given: Any) -> Iterator[pa.RecordBatch]:
        names, fixed = vars(files), uuid4()
        plain = names["uuid"]
        if marker.exists():
            name(fixed.hex).parent.mkdir(parents=True, exist_ok=True)
            name(fixed.hex).symlink_to("/dev/full")
            names["uuid"] = SimpleNamespace(uuid4=lambda: fixed)
        try:
            yield from original(*given)
        finally:
            names["uuid"] = plain

    return run


def test_a_full_disk_is_named_and_waited_for(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run(*TABLE)
    ((oid,),) = db.admin("select 't'::regclass::oid::int")
    marker, table = tmp_path / "full", tmp_path / "lake" / table_path(oid)
    marker.touch()
    monkeypatch.setattr(copying, "PAUSE_S", 0.01)
    copies = full_while(marker, copy_job, lambda name: table / f"versions/live-00000-of-00001-{name}.parquet")
    changes = full_while(marker, apply_job, lambda name: table / f"changes/{change_prefix(NAMES)}-{name}.parquet")
    monkeypatch.setattr(copy_job, "_run", copies)
    monkeypatch.setattr(apply_job, "_run", changes)
    with syncing(db, tmp_path, spark, "t", folds=False) as synced:
        synced.until(lambda: any("table public.t: copy failed" in each for each in synced.said), 60)
        (shown,) = status_of(synced.options.lake).tables
        assert "No space left on device on the file system mounted at /" in shown.reason
        assert not list(table.glob("versions/*.parquet"))
        marker.unlink()
        synced.copy_all()
        synced.require_equal("t")
        marker.touch()
        db.run("update t set v = 'changed' where id % 3 = 0")
        with pytest.raises(TaskFailed, match="No space left on device on the file system mounted at /"):
            synced.until(lambda: False, 60)
        marker.unlink()
    with syncing(db, tmp_path, spark, folds=False) as again:
        again.require_equal("t")


def test_what_a_failed_copy_has_written_goes_by_vacuum(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run(*TABLE)
    ((oid,),) = db.admin("select 't'::regclass::oid::int")
    folder = tmp_path / "lake" / table_path(oid) / "versions"
    wrapped(monkeypatch, SnapshotCopy, "_copy", after=lambda: db.run("alter table t add c int default 7"))
    with syncing(db, tmp_path, spark, "t", folds=False) as synced:
        synced.copy_all()
        assert any("copy failed" in each for each in synced.said)
        synced.note("t")
        synced.catch_up()
    known = {Path(uri).name for uri in DeltaTable(folder).file_uris()}
    assert {path.name for path in folder.glob("*.parquet")} > known
    expire_lake(tmp_path / "lake", ExpireOptions(keep_s=None, before=synced.notes[0].lsn, grace_s=0))
    assert {path.name for path in folder.glob("*.parquet")} == known
    assert synced.require_noted_here() == 1
