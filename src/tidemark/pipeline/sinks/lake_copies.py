"""Writes copied rows to files of `versions`: live since the floor of the copy's base, in the bucket of their key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.clock import Lsn
from tidemark.lake.columns import StoredColumn
from tidemark.lake.files import DataFile, FileWriter
from tidemark.lake.key_index import KeyIndexWriter, indexed_key
from tidemark.lake.paths import VERSIONS
from tidemark.lake.shared import SharedFolder
from tidemark.lake.versions import prefix, version_schema
from tidemark.storage.fail_points import FailPoint, fail_point
from tidemark.values.cells import DecodedColumn as Values
from tidemark.values.copy import CopyBatch
from tidemark.values.hashes import buckets_of
from tidemark.values.kernels import Ints, Longs, kernel

GATHERED_BYTES = 96 << 20  # rows that all buckets buffer before they are written as row groups


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A file that a task has written for a table. `texts` are the attnums of the columns with a text fallback in it."""

    oid: int
    file: DataFile
    texts: frozenset[int]
    truncated: None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.file.rows

    def plain(self) -> dict[str, Any]:
        """Convert to JSON."""
        return {**asdict(self.file), "texts": sorted(self.texts)}

    @classmethod
    def parse(cls, oid: int, plain: Mapping[str, Any]) -> CopiedFile:
        """Convert from JSON."""
        file = DataFile(plain["path"], plain["size_bytes"], plain["rows"], plain["stats"])
        return cls(oid, file, frozenset(plain["texts"]))


@dataclass(frozen=True, slots=True)
class LakeCopyTarget:
    """How a copy is stored: the stored columns, the attnums of the key, the number of buckets, and the begin LSN.

    If `indexed`, files get an index of the key.
    """

    lake: SharedFolder
    oid: int
    path: str
    columns: tuple[StoredColumn, ...]
    key: tuple[int, ...]
    buckets: int
    base: Lsn
    indexed: bool = True

    def columns_of(self, files: Iterable[CopiedFile]) -> list[StoredColumn]:
        """The stored columns of a copy, with the text fallbacks that some file has."""
        texts = frozenset[int]().union(*(each.texts for each in files))
        columns: list[StoredColumn] = []
        for column in self.columns:
            columns += [column, column.fallback_column()] if column.attnum in texts else [column]
        return columns

    def open(self) -> CopiedRowWriter:
        """Open a writer."""
        (self.lake.verified() / self.path / VERSIONS).mkdir(parents=True, exist_ok=True)
        return CopiedRowWriter(self)


@dataclass(slots=True)
class CopiedRowWriter:
    """The files that a task is writing: one for each bucket and set of columns with a text fallback."""

    target: LakeCopyTarget
    _open: dict[tuple[int, tuple[str, ...]], FileWriter] = field(default_factory=dict)

    def write(self, batch: CopyBatch) -> None:
        """Write rows."""
        buckets = self.target.buckets
        if buckets == 1:
            return self._into(0, _rows(batch, self.target))
        order, borders = by_bucket(buckets_of(_hashed(batch, self.target), buckets), buckets)
        rows = _rows(batch, self.target, pa.array(order))
        for bucket in np.flatnonzero(np.diff(borders)).tolist():
            start, end = int(borders[bucket]), int(borders[bucket + 1])
            self._into(bucket, rows.slice(start, end - start))
        return None

    def finished(self) -> list[CopiedFile]:
        """Close the files; each is durable then."""
        fallbacks = {column.fallback_column().name: column.attnum for column in self.target.columns}
        found = []
        for (_, names), writer in self._open.items():
            texts = frozenset(fallbacks[name] for name in names if name in fallbacks)
            found.append(CopiedFile(self.target.oid, writer.close(), texts))
            fail_point(FailPoint.FILE_WRITTEN)
        return found

    def discard(self) -> None:
        """Discard the files."""
        for writer in self._open.values():
            writer.discard()

    def _into(self, bucket: int, rows: pa.Table) -> None:
        names = tuple(rows.column_names)
        key = bucket, names
        if key not in self._open:
            like = next((writer for (_, others), writer in self._open.items() if others == names), None)
            name = prefix(bucket, self.target.buckets, live=True)
            folder = self.target.lake.path / self.target.path / VERSIONS
            indexed = indexed_key(self.target.columns, self.target.key) if self.target.indexed else ()
            index = KeyIndexWriter(indexed) if indexed else None
            self._open[key] = FileWriter(folder, name, like, text_bounds=False, index=index)
        self._open[key].write(rows)
        writers = self._open.values()
        if sum(writer.gathered_bytes for writer in writers) > GATHERED_BYTES:
            max(writers, key=lambda writer: writer.gathered_bytes).flush()


def _rows(batch: CopyBatch, target: LakeCopyTarget, order: pa.Array | None = None) -> pa.Table:
    """The rows of a batch with their interval, in the given order or as they are."""
    stored: list[StoredColumn] = []
    arrays: list[pa.Array] = []
    for column, values in zip(target.columns, batch.columns, strict=True):
        stored.append(column)
        arrays.append(values.array)
        if values.fallback is not None:
            stored.append(column.fallback_column())
            arrays.append(values.fallback)
    if order is not None:
        arrays = [pc.take(array, order, boundscheck=False) for array in arrays]
    begin = pa.array(np.full(batch.rows, target.base.value, np.int64))
    return pa.table([*arrays, begin, pa.nulls(batch.rows, pa.int64())], schema=version_schema(stored))


def by_bucket(buckets: Ints, count: int) -> tuple[Longs, Longs]:
    """The row numbers ordered by bucket, and the offset of each bucket in them; the last offset is the end."""
    borders = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(buckets, minlength=count), out=borders[1:])
    return _placed(buckets, borders[:-1].copy()), borders


@kernel
def _placed(buckets: Ints, next_at: Longs) -> Any:
    order = np.empty(len(buckets), np.int64)
    for row in range(len(buckets)):
        order[next_at[buckets[row]]] = row
        next_at[buckets[row]] += 1
    return order


def _hashed(batch: CopyBatch, target: LakeCopyTarget) -> Sequence[pa.Array]:
    """The cells that determine the bucket of a row, in order."""
    by_attnum = {column.attnum: values for column, values in zip(target.columns, batch.columns, strict=True)}
    chosen: list[Values] = [by_attnum[attnum] for attnum in target.key or by_attnum]
    return [cell for each in chosen for cell in (each.array, each.fallback) if cell is not None]
