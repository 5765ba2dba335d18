"""The Delta tables of a lake: their logs stay short, and other engines read them as they are."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tidemark.clock import Lsn
from tidemark.errors import LakeInUse
from tidemark.lake import registers
from tidemark.lake.changes import change_writer, read_changes
from tidemark.lake.columns import OURS, StoredColumn
from tidemark.lake.commits import CONFIGURATION, ChangeTable, remove_files
from tidemark.lake.files import DataFile
from tidemark.lake.registers import Cycle, Cycles, Tables, read_cycle, read_events, read_times
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableEvent, TableEventKind
from tidemark.schema.table import Persistence

pytestmark = pytest.mark.quick

ID = StoredColumn("id", 1, pa.int32())
NOW = datetime(2024, 2, 29, 12, 0, tzinfo=UTC)
TABLE = Fingerprint(16384, "public", "t", 16384, Persistence.PERMANENT, (1,), (), None, None, (), ())
BITING = (
    "a b",
    "a,b;{}()\n\t=",
    "ü€😀",
    "100%",
    "a.b",
    "`quoted`",
    '"double"',
    "[x]",
    "_t",
    "~5F",
    "A",
    "a~2",
    "select",
)


def rows_of(columns: dict[StoredColumn, list[object]], lsn: int) -> pa.Table:
    """Inserts of one transaction."""
    count = len(next(iter(columns.values())))
    ours = {
        "_change_type": ["insert"] * count,
        "_commit_version": [lsn] * count,
        "_commit_timestamp": [NOW] * count,
        "_ordinal": list(range(count)),
        "_xid": [700] * count,
        "_unchanged": [None] * count,
        "_truncate": [None] * count,
    }
    arrays = [pa.array(values, column.type) for column, values in columns.items()]
    schema = pa.schema([*(column.field() for column in columns), *OURS])
    return pa.table([*arrays, *(pa.array(ours[field.name], field.type) for field in OURS)], schema=schema)


def file_of(folder: Path, rows: pa.Table) -> DataFile:
    writer = change_writer(folder, rows.schema)
    writer.write(rows)
    return writer.close()


def appended(table: ChangeTable, lsn: int) -> None:
    table.append([file_of(table.folder, rows_of({ID: [lsn]}, lsn))], Lsn(lsn))


def versions(folder: Path) -> list[Path]:
    return sorted((folder / "_delta_log").glob("*.json"))


def test_after_many_commits_there_is_a_checkpoint_and_opening_reads_no_more_than_what_came_after(
    tmp_path: Path,
) -> None:
    table = ChangeTable.create(tmp_path / "changes", [ID])
    for lsn in range(1, 121):
        appended(table, lsn)
    checkpoints = sorted((table.folder / "_delta_log").glob("*.checkpoint*.parquet"))
    assert checkpoints
    last = int(checkpoints[-1].name.split(".")[0])
    assert last >= 120 - int(CONFIGURATION["delta.checkpointInterval"])
    for version in versions(table.folder):
        if int(version.stem) < last:
            version.unlink()  # whoever needed it would fail now
    again = ChangeTable(table.folder)
    assert again.applied == Lsn(120)
    assert again.columns == (ID,)
    assert sorted(DeltaTable(table.folder).to_pyarrow_table()["id"].to_pylist()) == list(range(1, 121))


def test_versions_older_than_an_hour_are_removed_behind_a_checkpoint(tmp_path: Path) -> None:
    table = ChangeTable.create(tmp_path / "changes", [ID])
    for lsn in range(1, 61):
        appended(table, lsn)
    made_older(table.folder, timedelta(hours=2))
    for lsn in range(61, 121):
        appended(ChangeTable(table.folder), lsn)
    assert len(versions(table.folder)) < 75
    again = ChangeTable(table.folder)
    assert again.applied == Lsn(120)
    assert len(DeltaTable(table.folder).to_pyarrow_table()) == 120


def test_a_checkpoint_is_on_disk_before_the_commits_that_it_replaces_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ChangeTable.create(tmp_path / "changes", [ID])
    for lsn in range(1, 49):
        appended(table, lsn)
    made_older(table.folder, timedelta(hours=2))
    before, synced, actual = versions(table.folder), [], os.fsync

    def recording(file: int) -> None:
        assert versions(table.folder)[: len(before)] == before, "nothing is deleted before everything is synced"
        synced.append(Path(f"/proc/self/fd/{file}").readlink().name)
        actual(file)

    monkeypatch.setattr(os, "fsync", recording)
    appended(table, 49)
    assert synced[-3:] == [f"{49:020}.checkpoint.parquet", "_last_checkpoint", "_delta_log"]
    assert not set(versions(table.folder)) & set(before)


def test_the_creation_and_every_alteration_of_a_table_are_on_disk_when_its_next_commit_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, actual = set[str](), os.fsync

    def recording(file: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{file}").readlink()))
        actual(file)

    monkeypatch.setattr(os, "fsync", recording)
    table = ChangeTable.create(tmp_path / "changes", [ID])
    appended(table, 1)
    table.require_columns([StoredColumn("added", 2, pa.int32())])
    appended(table, 2)
    Cycles(tmp_path).record(Cycle(Lsn(2), Lsn(2)))
    commits = [*versions(table.folder), *versions(tmp_path / registers.CYCLES)]
    assert len(commits) == 6
    assert {str(commit) for commit in commits} <= synced


def test_a_writer_whose_commit_was_removed_from_the_log_continues(tmp_path: Path) -> None:
    table, other = ChangeTable.create(tmp_path / "changes", [ID]), ChangeTable(tmp_path / "changes")
    for lsn in range(1, 49):
        appended(table, lsn)
    made_older(table.folder, timedelta(hours=2))
    names = [Path(file.path).name for file in read_changes(tmp_path, "", Lsn.ZERO).files]
    remove_files(table.folder, names[:1])  # the commit has a checkpoint, and the old ones are deleted
    assert not (table.folder / "_delta_log" / f"{48:020}.json").exists()
    appended(table, 49)
    assert (table.applied, ChangeTable(table.folder).applied) == (Lsn(49), Lsn(49))
    with pytest.raises(LakeInUse):
        appended(other, 50)


def made_older(folder: Path, by: timedelta) -> None:
    """Have all versions of a table written so long ago, as far as their files tell."""
    then = time.time() - by.total_seconds()
    for file in (folder / "_delta_log").iterdir():
        if file.is_file():
            os.utime(file, (then, then))


@pytest.mark.full
def test_how_far_it_has_come_stays_in_few_files(tmp_path: Path) -> None:
    cycles, count = Cycles(tmp_path), 230
    for lsn in range(1, count + 1):
        cycles.record(Cycle(Lsn(lsn * 10), Lsn(lsn * 10 - 5), NOW, 1, 1))
    assert read_cycle(tmp_path) == Cycle(Lsn(count * 10), Lsn(count * 10 - 5))
    assert len(read_times(tmp_path)) == count
    assert len(cycles.table.file_uris()) <= registers._COMPACT_EVERY
    assert list((cycles.folder / "_delta_log").glob("*.checkpoint*.parquet"))


@pytest.mark.full
def test_what_became_of_tables_stays_in_few_files_and_in_order(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    told = [
        TableEvent(TableEventKind.SEEN, TABLE, "public/t", Lsn(n), Lsn(n), frozenset({Lsn(0)}), f"{n}")
        for n in range(1, 131)
    ]
    for event in told:
        tables.append([event])
    assert read_events(tmp_path) == tuple(told)
    assert len(tables.table.file_uris()) <= registers._COMPACT_EVERY
    before = tables.table.version()
    Tables(tmp_path).append(told[:50])
    assert read_events(tmp_path) == (*told, *told[:50])
    assert Tables(tmp_path).table.version() == before + 1


@pytest.fixture
def biting(tmp_path: Path) -> Path:
    """A table with columns whose names bite, and values and nulls in them."""
    columns = [StoredColumn(name, attnum, pa.string()) for attnum, name in enumerate(BITING, 1)]
    table = ChangeTable.create(tmp_path / "changes", columns[:2])
    table.require_columns(columns)
    table.require_columns(columns)
    assert table.columns == tuple(columns)
    rows = rows_of({column: [f"value of {column.name}", None] for column in columns}, 7)
    table.append([file_of(table.folder, rows)], Lsn(7))
    assert ChangeTable(table.folder).columns == tuple(columns)
    return table.folder


def expected() -> list[dict[str, object]]:
    ours = {"_change_type": "insert", "_commit_version": 7, "_commit_timestamp": NOW}
    first = {name: f"value of {name}" for name in BITING}
    return [{**first, **ours}, {**dict.fromkeys(BITING), **ours}]


def test_names_that_bite_are_read_back_by_deltalake(biting: Path) -> None:
    rows = pa.table(DeltaTable(biting).to_pyarrow_table()).sort_by("_ordinal")
    assert rows.select([*BITING, *OURS.names[:3]]).to_pylist() == expected()


def test_names_that_bite_are_read_by_polars(biting: Path) -> None:
    rows = pl.read_delta(str(biting)).sort("_ordinal")
    assert rows.select([*BITING, *OURS.names[:3]]).to_dicts() == expected()
    latest = pl.scan_delta(str(biting)).filter(pl.col("_change_type") == "insert", pl.col("_commit_version") > 6)
    assert latest.collect().height == 2


def test_names_that_bite_are_read_by_duckdb(biting: Path) -> None:
    changes = DeltaTable(biting).to_pyarrow_dataset()
    quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in (*BITING, *OURS.names[:3]))
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        relation = connection.from_arrow(changes).query(
            "changes", f"select {quoted} from changes where _commit_version = 7 order by _ordinal"
        )
        assert relation is not None
        assert relation.to_arrow_table().to_pylist() == expected()


def test_a_table_that_was_begun_and_never_committed_is_not_there_and_can_be_made(tmp_path: Path) -> None:
    folder = tmp_path / "public" / "t" / "changes"
    (folder / "_delta_log").mkdir(parents=True)
    assert read_changes(tmp_path, "public/t", Lsn(7)).applied == Lsn(7)
    made = ChangeTable.create(folder, [ID])
    appended(made, 9)
    assert read_changes(tmp_path, "public/t", Lsn(7)).applied == Lsn(9)
