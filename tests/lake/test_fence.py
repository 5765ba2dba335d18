"""A writer that finds another commit in its way: files let go are no reason to stop, anything else is."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from tidemark.clock import Lsn
from tidemark.errors import LakeInUse
from tidemark.lake import commits, versions
from tidemark.lake.columns import StoredColumn
from tidemark.lake.commits import LOG, LOG_S, clean_log, opened, remove_files
from tidemark.lake.files import DataFile, FileWriter
from tidemark.lake.paths import VERSIONS
from tidemark.lake.versions import VersionTable, end_versions, read_versions, version_schema
from tidemark.storage.disk import sync

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


def test_a_generation_that_begins_at_the_folded_position_stops_a_fold(tmp_path: Path) -> None:
    folder = tmp_path / VERSIONS
    fold, copy = made(folder), VersionTable(folder)
    copy.rewrite([file(folder, 6)], [A], Lsn(6), Lsn(6), anew=True)
    with pytest.raises(LakeInUse, match="another process changed"):
        fold.replace([file(folder, 7)], [], Lsn(8), Lsn(1))
    copied = read_versions(tmp_path, "", Lsn(6))
    assert copied is not None
    assert (copied.folded, len(copied.files)) == (Lsn(6), 1)


def test_a_fold_that_takes_longer_than_commits_are_kept_is_committed(tmp_path: Path) -> None:
    folder = tmp_path / VERSIONS
    fold, other = made(folder), VersionTable(folder)
    remove_files(folder, [fold.read().files[0].name])
    opened(folder).create_checkpoint()
    made_older(folder)
    clean_log(folder)
    assert not (folder / LOG / f"{1:020}.json").exists()
    fold.replace([file(folder, 3)], [], Lsn(7), Lsn(1))
    assert (VersionTable(folder).read().folded, len(VersionTable(folder).read().files)) == (Lsn(7), 2)
    with pytest.raises(LakeInUse, match="another process changed"):
        other.replace([file(folder, 4)], [], Lsn(8), Lsn(1))


def test_the_end_of_a_dropped_table_leaves_the_generation_with_which_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / VERSIONS
    made(folder)

    class Returning(VersionTable):
        def __init__(self, folder: Path) -> None:
            VersionTable(folder).rewrite([file(folder, 9)], [A], Lsn(9), Lsn(9), anew=True)
            super().__init__(folder)

    monkeypatch.setattr(versions, "VersionTable", Returning)
    end_versions(tmp_path, "", Lsn(8))
    returned = read_versions(tmp_path, "", Lsn(9))
    assert returned is not None
    assert len(returned.files) == 1


def test_a_generation_that_ends_while_the_log_is_cleaned_up_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / VERSIONS
    copy = made(folder)
    opened(folder).create_checkpoint()

    def replaced_meanwhile() -> list[int]:
        copy.rewrite([file(folder, 9)], [A], Lsn(9), Lsn(9), anew=True)
        opened(folder).create_checkpoint()
        made_older(folder)
        return []

    clean_log(folder, replaced_meanwhile)
    earlier = read_versions(tmp_path, "", Lsn(1))
    assert earlier is not None
    assert len(earlier.files) == 2


def test_what_a_killed_process_has_left_in_a_log_is_cleaned_up_with_it(tmp_path: Path) -> None:
    folder = tmp_path / VERSIONS
    made(folder).replace([], [], Lsn(7), Lsn(1))
    opened(folder).create_checkpoint()
    left = [folder / LOG / f"{version:020}.{kind}#1" for version in (1, 2) for kind in ("json", "checkpoint.parquet")]
    for path in left:
        path.touch()
    made_older(folder)
    clean_log(folder)
    assert [path.exists() for path in left] == [False, False, True, True], "those of the last version are cleaned later"
    assert opened(folder).version() == 2


def made_older(folder: Path) -> None:
    """Make the commits of a table older than its log needs."""
    past = time.time() - 2 * LOG_S
    for commit in (folder / LOG).glob("*"):
        os.utime(commit, (past, past))


def test_every_checkpoint_is_on_disk_when_its_commit_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, synced = tmp_path / VERSIONS, set[str]()

    def noted(path: Path) -> None:
        sync(path)
        synced.add(path.name)

    monkeypatch.setattr(commits, "sync", noted)
    table = made(folder)
    for lsn in range(7, 57):
        table.replace([], [], Lsn(lsn), Lsn(1))
    checkpoints = {path.name for path in (folder / LOG).glob("*.checkpoint.parquet")}
    assert checkpoints
    assert checkpoints | {"_last_checkpoint"} <= synced


def test_a_table_that_gets_its_first_timestamp_can_still_be_read(tmp_path: Path) -> None:
    table = made(tmp_path)
    table.rewrite([file(tmp_path, 3)], [A, AT], Lsn(7), Lsn(1))
    assert VersionTable(tmp_path).read().stored == (A, AT)
