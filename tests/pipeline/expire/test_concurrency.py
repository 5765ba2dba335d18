"""An expire job beside readers and other jobs, on a lake that needs no source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lake.test_fence import A, file, made_older
from tests.schema.test_history import OLD
from tidemark.clock import Lsn
from tidemark.lake.lake import Lake
from tidemark.lake.leases import Lease
from tidemark.lake.lock import FOLDING, LakeLock, has_writer
from tidemark.lake.paths import VERSIONS
from tidemark.lake.registers import Cycle, Cycles, Tables, read_retained
from tidemark.lake.unlisted import delete
from tidemark.lake.versions import VersionTable
from tidemark.pipeline.expire import expiry
from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake
from tidemark.schema.history import TableEvent, TableEventKind, table_path

pytestmark = pytest.mark.quick

TO_60 = ExpireOptions(keep_s=None, before=Lsn(60), grace_s=0.0)


def lake_of(path: Path) -> Path:
    """Create a lake at LSN 100 with one table, which was copied at 10 and again at 50; return the table's versions."""
    Lake(path, "m", 1, 5, "d", 180000, path.with_name("log")).create()
    oid, folder = OLD.oid, path / table_path(OLD.oid) / VERSIONS
    Tables(path).append([TableEvent(TableEventKind.COPIED, OLD, table_path(oid), Lsn(at), Lsn(at)) for at in (10, 50)])
    table = VersionTable.create(folder, [A])
    for at in (10, 50):
        table.rewrite([file(folder, at)], [A], Lsn(at), Lsn(at), anew=True)
    Cycles(path).record(Cycle(Lsn(100), Lsn(100)))
    made_older(folder)
    return folder


def test_a_lease_that_is_taken_while_expire_runs_keeps_an_earlier_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, leases, removing = tmp_path / "lake", list[Lease](), expiry._tables
    folder = lake_of(lake)
    files = sorted(folder.glob("*.parquet"))

    def opened_meanwhile(*arguments: Any) -> Iterator[expiry.Removal]:
        leases.append(Lease(lake, Lsn(20)))
        return removing(*arguments)

    monkeypatch.setattr(expiry, "_tables", opened_meanwhile)
    expire_lake(lake, TO_60)
    monkeypatch.undo()
    assert (read_retained(lake), sorted(folder.glob("*.parquet"))) == (Lsn(60), files)
    leases[0].close()
    expire_lake(lake, TO_60)
    assert len(list(folder.glob("*.parquet"))) == 1


def test_a_writer_can_start_while_expire_runs_beside_a_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, writers = tmp_path / "lake", list[bool]()
    lake_of(lake)

    def deleting_now(*arguments: Any) -> None:
        writers.append(has_writer(lake))
        delete(*arguments)

    monkeypatch.setattr(expiry, "delete", deleting_now)
    with LakeLock(lake, FOLDING):
        expire_lake(lake, TO_60)
    assert writers == [False]
