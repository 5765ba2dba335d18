"""The history of a mirror that has run for months, written below the LSNs of a new one with the writers' own formats.

It is what such a mirror holds after compaction and expiry: the commit index of the retention period, changes in the
files that compaction would have left, closed versions, the cycles that are kept, and Delta logs with the commits of
their retention. Only the times of the first rows are real: the rest is computed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from tidemark.clock import Lsn
from tidemark.clock.epoch import EPOCH
from tidemark.lake.changes import ChangeFile, change_writer
from tidemark.lake.columns import COMMIT_TIMESTAMP, COMMIT_VERSION, OURS, StoredColumn
from tidemark.lake.commits import LOG, LOG_S, ChangeTable, Commit, applied, clean_log, commit, opened
from tidemark.lake.files import DataFile, FileWriter
from tidemark.lake.lake import Lake
from tidemark.lake.paths import CHANGES, VERSIONS
from tidemark.lake.registers import _CYCLES_SCHEMA, Cycles, ExpiryRegister, kept_cycles
from tidemark.lake.versions import prefix, read_versions, version_schema
from tidemark.log.blocks import BlockKind, BlockStamp, packed
from tidemark.log.index import IndexPart
from tidemark.log.segment import index_path
from tidemark.log.summaries import NAME as SUMMARIES_NAME
from tidemark.log.summaries import packed_summaries, summary_of
from tidemark.pgoutput.rows import COMMITS, EXTENTS, Assembled
from tidemark.pipeline.fold.change_files import small_files

STEP = 512  # bytes of WAL per transaction
INDEX_COMMITS, BLOCK_COMMITS = 400_000, 100  # an index per 67 minutes, a block per second
CYCLE_S, ROUND_S = 2, 60  # a cycle of apply, and the pause between two compactions
RECENT_S = 3600  # for so long, every cycle is kept
LOGGED_CYCLES = int(LOG_S) // CYCLE_S
CLOSED_FILES = 12  # of a bucket: five of 8 MB and those that are not merged yet
_CHANGE_BYTES, _FILE_BYTES = 14, 4500  # measured: of one more change, and of a file with ten


@dataclass(frozen=True)
class Age:
    """A history of `days` at a rate of transactions, each of which changes one of the tables, up to an LSN and XID."""

    days: float
    per_s: int
    tables: int
    end: Lsn
    xid: int

    @property
    def commits(self) -> int:
        """The number of transactions."""
        return int(self.days * 86400 * self.per_s)

    @property
    def changes(self) -> int:
        """The number of changes of each table."""
        return self.commits // self.tables

    @property
    def start(self) -> Lsn:
        """The LSN before the first transaction."""
        return Lsn(self.end.value - (self.commits + 1) * STEP)

    def lsn(self, change: int) -> Lsn:
        """The LSN of a change of a table, by its number."""
        return Lsn(self.start.value + (change + 1) * STEP * self.tables)

    @cached_property
    def layout(self) -> list[tuple[int, int]]:
        """The files that compaction leaves: the numbers of their first and last change; single cycles of the last."""
        cycle = CYCLE_S * self.per_s // self.tables
        files: list[ChangeFile] = []
        for first in range(0, self.changes - cycle + 1, cycle):
            files.append(_file(first, first + cycle - 1))
            if (first // cycle) % (ROUND_S // CYCLE_S) == 0:
                for group in small_files(files, frozenset()):
                    gone = {file.path for file in group}
                    merged = _file(group[0].least.value - 1, group[-1].greatest.value - 1)
                    files = sorted([*(f for f in files if f.path not in gone), merged], key=lambda f: f.least)
        return [(file.least.value - 1, file.greatest.value - 1) for file in files]


def _file(first: int, last: int) -> ChangeFile:
    """A file of the changes with these numbers, with what compaction needs."""
    rows = last - first + 1
    size = _FILE_BYTES + _CHANGE_BYTES * rows
    name = f"{first}-{last}"
    return ChangeFile(name, frozenset(), Lsn(first + 1), Lsn(last + 1), False, False, False, False, rows, size)


def age_log(folder: Path, age: Age, first_segment: int) -> None:
    """Write the commit indexes of removed segments, with numbers below that of the first segment."""
    begin = int((datetime.now(UTC) - EPOCH).total_seconds() * 1e6) - int(age.days * 86400e6)
    count = -(-age.commits // INDEX_COMMITS)
    summaries = []
    for turn in range(count):
        number, at = first_segment - count + turn, turn * INDEX_COMMITS
        size = min(INDEX_COMMITS, age.commits - at)
        commits, extents = np.zeros(size, COMMITS), np.zeros(size, EXTENTS)
        commits["lsn"] = age.start.value + (np.arange(at, at + size, dtype=np.uint64) + 1) * STEP
        commits["xid"] = age.xid - age.commits + np.arange(at, at + size)
        commits["micros"] = begin + (np.arange(at, at + size) * 1_000_000) // age.per_s
        commits["extents"] = 1
        extents["place"], extents["start"] = number, np.arange(size) * STEP
        extents["end"] = extents["start"] + STEP - 100
        data = b"".join(_blocks(number, commits, extents, age.xid))
        index_path(folder, number).write_bytes(data)
        summaries.append(summary_of(number, int(commits["lsn"][-1]), len(data), [commits]))
    with (folder / SUMMARIES_NAME).open("ab") as file:
        file.write(packed_summaries(np.concatenate(summaries)))


def _blocks(number: int, commits: np.ndarray, extents: np.ndarray, xid: int) -> Iterator[bytes]:
    at = 0
    for first in range(0, len(commits), BLOCK_COMMITS):
        rows = Assembled(commits=commits[first : first + BLOCK_COMMITS], extents=extents[first : first + BLOCK_COMMITS])
        end = int(rows.extents["end"][-1])
        payload = IndexPart(rows, end).packed()
        header = packed(BlockKind.INDEX, number, at, BlockStamp(end, int(rows.commits["lsn"][-1]), xid), payload)
        at += len(header) + len(payload)
        yield header + payload


def age_tables(lake: Lake, columns: Sequence[StoredColumn], age: Age) -> None:
    """Write changes and closed versions of every table, and the commits that the log of its changes keeps."""
    recent = sum(1 for first, last in age.layout if last - first + 1 == CYCLE_S * age.per_s // age.tables)
    for number, history in enumerate(lake.tables().values()):
        folder = lake.path / history.path / CHANGES
        table = ChangeTable.create(folder, columns)
        files = [(_changes(folder, columns, age, first, last), age.lsn(last)) for first, last in age.layout]
        old, new = files[: len(files) - recent], files[len(files) - recent :]
        table.append([file for file, _ in old], old[-1][1])
        _repeat_commits(table, LOGGED_CYCLES - len(new))
        table = ChangeTable(folder)
        for file, lsn in new:
            table.append([file], lsn)
        _close(lake.path / history.path / VERSIONS, lake, history.path, age)
        print(f"  table {number + 1}: {len(files)} change files", flush=True)


def _repeat_commits(table: ChangeTable, count: int) -> None:
    """Add commits without files to the log of a table, as cycles leave them whose files were merged since."""
    commit(table._table, table.folder, Commit(Lsn(table.applied.value + 1), ()))
    first, log = table._table.version(), table.folder / LOG
    lsn, text = table.applied.value + 1, (log / f"{first:020}.json").read_text()
    for turn in range(1, count):
        (log / f"{first + turn:020}.json").write_text(text.replace(f'"version":{lsn}', f'"version":{lsn + turn}'))
    opened(table.folder).create_checkpoint()


def _changes(folder: Path, columns: Sequence[StoredColumn], age: Age, first: int, last: int) -> DataFile:
    """Write a file of updates."""
    schema = pa.schema([*(column.field() for column in columns), *OURS])
    writer, count = change_writer(folder, schema), last - first + 1
    lsns = age.start.value + (np.arange(first, last + 1) + 1) * STEP * age.tables
    times = int(time.time() * 1e6) + (np.arange(first, last + 1) - age.changes) * 1_000_000 * age.tables // age.per_s
    ours = {
        COMMIT_VERSION: pa.array(lsns, pa.int64()),
        COMMIT_TIMESTAMP: pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC")),
        "_change_type": pa.array(np.full(count, "update_postimage")),
        "_ordinal": pa.array(np.zeros(count, np.int64)),
        "_xid": pa.array(lsns // STEP % (1 << 32), pa.int64()),
    }
    values = [_values(field, count, ours) for field in schema]
    writer.write(pa.table(values, schema=schema))
    return writer.close()


def _values(field: pa.Field, count: int, known: dict[str, pa.Array]) -> pa.Array:
    if field.name in known:
        return known[field.name].cast(field.type)
    if pa.types.is_integer(field.type) and field.name not in OURS.names:
        return pa.array(np.arange(count) * 7919 % 20_011, field.type)
    return pa.nulls(count, field.type)


def _close(folder: Path, lake: Lake, path: str, age: Age) -> None:
    """Add files of closed versions."""
    versions = read_versions(lake.path, path)
    assert versions is not None  # noqa: S101
    schema, count = version_schema(versions.stored), age.changes // CLOSED_FILES
    files = []
    for number in range(CLOSED_FILES):
        begin = age.start.value + (np.arange(number * count, (number + 1) * count) + 1) * STEP * age.tables
        known = {"_begin_lsn": pa.array(begin), "_end_lsn": pa.array(begin + STEP)}
        writer = FileWriter(folder, prefix(0, versions.buckets, live=False))
        writer.write(pa.table([_values(field, count, known) for field in schema], schema=schema))
        files.append(writer.close())
    table = opened(folder)
    commit(table, folder, Commit(applied(table), files, anew=True))


def age_registers(lake: Lake, age: Age) -> None:
    """Record the cycles of the retention period, and the retained LSN."""
    now = datetime.now(UTC)
    seconds = int(age.days * 86400)
    ago = np.arange(seconds, RECENT_S, -CYCLE_S)
    rows = [_cycle(age, now - timedelta(seconds=int(each))) for each in ago[:: 60 // CYCLE_S]]
    cycles = Cycles(lake.path)
    if rows:
        cycles._commit(kept_cycles(pa.Table.from_pylist(rows, _CYCLES_SCHEMA), age.start, now), (), ())
    for each in range(min(seconds, RECENT_S), 0, -CYCLE_S):
        cycles.add([_cycle(age, now - timedelta(seconds=each))])
    _let_commits_expire(cycles.folder, LOGGED_CYCLES)
    ExpiryRegister(lake.path).record(age.start)


def _let_commits_expire(folder: Path, kept: int) -> None:
    """Clean up the log of a table as if all commits but the last were older than its retention."""
    opened(folder).create_checkpoint()
    for path in sorted((folder / LOG).glob("*.json"))[:-kept]:
        os.utime(path, (time.time() - 2 * LOG_S,) * 2)
    clean_log(folder)


def _cycle(age: Age, at: datetime) -> dict[str, object]:
    lsn = age.end.value - int((datetime.now(UTC) - at).total_seconds()) * age.per_s * STEP
    common = {"written_at": at, "applied_lsn": lsn, "schema_lsn": lsn, "behind": [], "source_time": at}
    return {**common, "changes": CYCLE_S * age.per_s, "tables": age.tables}
