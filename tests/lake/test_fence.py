"""A writer that finds another commit in its way: files let go are no reason to stop, anything else is."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tidemark.clock import Lsn
from tidemark.errors import LakeInUse
from tidemark.lake import commits
from tidemark.lake.columns import StoredColumn
from tidemark.lake.commits import remove_files
from tidemark.lake.files import DataFile, FileWriter
from tidemark.lake.versions import VersionTable, version_schema

pytestmark = pytest.mark.quick

A, AT = StoredColumn("a", 1, pa.int32()), StoredColumn("at", 2, pa.timestamp("us"))


def file(folder: Path, value: int) -> DataFile:
    writer = FileWriter(folder, "live-00000-of-00001")
    writer.write(pa.table([[value], [value], [None]], schema=version_schema([A])))
    return writer.close()


def made(folder: Path) -> VersionTable:
    table = VersionTable.create(folder, [A])
    table.replace([file(folder, 1), file(folder, 2)], [], Lsn(6), Lsn(1))
    return table


def test_files_let_go_meanwhile_do_not_stop_a_writer(tmp_path: Path) -> None:
    table = made(tmp_path)
    remove_files(tmp_path, [table.read().files[0].name])
    table.replace([file(tmp_path, 3)], [], Lsn(7), Lsn(1))
    assert (table.read().folded, len(table.read().files)) == (Lsn(7), 2)
    remove_files(tmp_path, ["live-00000-of-00001-00.parquet"])
    assert VersionTable(tmp_path).read() == table.read(), "what is gone already is not let go again"


def test_someone_elses_position_stops_a_writer_whenever_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = made(tmp_path), VersionTable(tmp_path)
    remove_files(tmp_path, [mine.read().files[0].name])
    settled = commits._settled

    def slowly(*what: object) -> bool:
        found = settled(*what)  # type: ignore[arg-type]
        monkeypatch.undo()
        VersionTable(tmp_path).replace([file(tmp_path, 3)], [], Lsn(7), Lsn(1))
        return found

    monkeypatch.setattr(commits, "_settled", slowly)
    with pytest.raises(LakeInUse, match="another process changed"):
        mine.replace([file(tmp_path, 4)], [], Lsn(8), Lsn(1))
    with pytest.raises(LakeInUse):
        other.replace([file(tmp_path, 5)], [], Lsn(8), Lsn(1))
    assert VersionTable(tmp_path).read().folded == Lsn(7)


def test_a_table_that_gets_its_first_timestamp_can_still_be_read(tmp_path: Path) -> None:
    table = made(tmp_path)
    table.rewrite([file(tmp_path, 3)], [A, AT], Lsn(7), Lsn(1))
    assert VersionTable(tmp_path).read().stored == (A, AT)
