"""Compaction of `changes`: consecutive small files of a table become one, in one commit that changes no row.

Every cycle adds files to the tables that changed, and the cost of a commit and of a read increases with the number of
files. Only folded changes are compacted: a read of the present needs only the others. A file is rewritten only into one
that is at least four times as large, so each change is rewritten a limited number of times. A reader that listed the
files before still finds them on disk.

A file has the text fallback of a column only if it contains such a value, so files with and without it are merged: all
its values are null in the others. A file without a column itself has rows that are older than the column, which do not
read as null, and stays apart.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tidemark.errors import LakeDamaged
from tidemark.lake.changes import ChangeFile, ChangeFiles, change_writer
from tidemark.lake.columns import OURS, StoredColumn
from tidemark.lake.commits import exchange_files
from tidemark.lake.files import DataFile
from tidemark.lake.shared import SharedFolder
from tidemark.spark.tasks import in_a_task
from tidemark.storage.fail_points import FailPoint, fail_point

MANY = 16  # files that are worth a job
GROWTH = 4  # a file is rewritten into one that is so many times as large
LIMITS_BYTES = (256 << 10, 4 << 20, 64 << 20)  # files below a limit are small; those above the last one stay
MOST_FILES = 2048  # in one job


@dataclass(frozen=True, slots=True)
class SmallChanges:
    """A table, its change files, and the groups of them that are to be replaced by one file each."""

    name: str
    changes: ChangeFiles
    groups: tuple[tuple[ChangeFile, ...], ...]


@dataclass(frozen=True, slots=True)
class CompactedChanges:
    """The number of files that were replaced, and of those that replaced them."""

    before: int
    after: int


def small_files(files: Iterable[ChangeFile], fallbacks: Set[str]) -> list[tuple[ChangeFile, ...]]:
    """The groups of files to be replaced by one each: consecutive in LSN order, with the same columns.

    They need not have the same ones of the text fallbacks.
    """
    ordered = sorted(files, key=lambda file: (file.least, file.greatest, file.path))
    columns = [file.columns - fallbacks for file in ordered]
    found: list[tuple[ChangeFile, ...]] = []
    taken: set[str] = set()
    for limit in LIMITS_BYTES:
        small = [file.size_bytes < limit and file.path not in taken for file in ordered]
        for (is_small, _), run in groupby(zip(small, columns, ordered, strict=True), key=itemgetter(0, 1)):
            for group in _cut([file for *_, file in run]) if is_small else ():
                found.append(group)
                taken.update(file.path for file in group)
    return found


def _cut(run: Sequence[ChangeFile]) -> Iterator[tuple[ChangeFile, ...]]:
    """Divide consecutive small files into groups that are worth a job. Too few at the end go with those before."""
    groups: list[list[ChangeFile]] = [[]]
    for file in run:
        groups[-1].append(file)
        if len(groups[-1]) == MOST_FILES or sum(each.size_bytes for each in groups[-1]) >= LIMITS_BYTES[-1]:
            groups.append([])
    if len(groups) > 1 and not _is_worth(groups[-1]):
        groups[-2:] = [groups[-2] + groups[-1]]
    return (tuple(group) for group in groups if _is_worth(group))


def _is_worth(group: Sequence[ChangeFile]) -> bool:
    sizes = [file.size_bytes for file in group]
    return len(group) >= MANY and sum(sizes) >= GROWTH * max(sizes)


def compact_changes(spark: SparkSession, lake: SharedFolder, table: SmallChanges) -> CompactedChanges:
    """Replace each group by one file. A group of which expire has removed a file in the meantime stays as it is."""
    before = after = 0
    changes = table.changes
    for group in table.groups:
        names = frozenset[str]().union(*(file.columns for file in group))
        stored = tuple(column for column in changes.stored if column.name in names)
        work = _Work(lake, changes.folder, tuple(Path(file.path).name for file in group), stored)
        (result,) = in_a_task(spark, partial(_run, work))
        file: DataFile = pickle.loads(result)  # noqa: S301 - from our own task
        if file.rows != (rows := sum(each.rows for each in group)):
            raise LakeDamaged(
                f"{changes.folder}: {len(group)} files have {file.rows:,} rows, and {rows:,} by their statistics",
                "Restore the lake from a backup, or run `tidemark resync LAKE TABLE`.",
            )
        fail_point(FailPoint.CHANGES_REWRITTEN)
        if exchange_files(changes.folder, work.names, [file]):
            before, after = before + len(group), after + 1
        fail_point(FailPoint.CHANGES_COMPACTED)
    return CompactedChanges(before, after)


@dataclass(frozen=True, slots=True)
class _Work:
    lake: SharedFolder
    folder: Path
    names: tuple[str, ...]
    stored: tuple[StoredColumn, ...]


def _run(work: _Work) -> Iterator[bytes]:
    """Write the rows of all files to a new one, a row group at a time."""
    work.lake.verified()
    schema = pa.schema([*(column.field() for column in work.stored), *OURS])
    fallbacks = {column.name for column in work.stored if column.text}
    writer = change_writer(work.folder, schema)
    try:
        for name in work.names:
            file = pq.ParquetFile(work.folder / name)
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group, columns=schema.names)
                for fallback in fallbacks.difference(rows.column_names):
                    rows = rows.append_column(fallback, pa.nulls(len(rows), pa.string()))
                writer.write(rows.select(schema.names).cast(schema))
        done = writer.close()
    except BaseException:
        writer.discard()
        raise
    fail_point(FailPoint.FILE_WRITTEN)
    yield pickle.dumps(done)
