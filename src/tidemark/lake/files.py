"""One Parquet file of a Delta table, from its first rows to the statistics that Delta keeps of it.

Rows are gathered to row groups of some megabytes. Dictionaries only for columns of few values: elsewhere they cost time
and room. Numbers and times that lie near each other are packed as differences, which is smaller and sooner compressed.
Decimals of up to 18 digits are integers, as Spark has them. A file is synced to disk before anyone is told of it; one
that nobody is told of is vacuum's.

Floating-point columns have neither bounds nor dictionaries. Parquet's bounds leave NaN out, which PostgreSQL sorts
above all numbers, and take -0.0 for less than 0.0, which equals it; parquet-mr looks values up in dictionaries by their
bits. Readers that trust either skip rows that a filter selects.

Delta's statistics are of our own columns only, which have bounds in every file. deltalake makes `x >= null` of a column
without bounds, and so selects no row of the file by any filter on it; many of the source's values have no exact bounds
in Delta's JSON. Readers skip by those of Parquet's row groups.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.errors import LakeDiskFull
from tidemark.lake.columns import CHANGE_TYPE, UNCHANGED, stored_columns
from tidemark.log.disk import FULL

GROUP_BYTES = 32 << 20
_SAMPLE, _FEW = 4096, 0.1
_INT_DIGITS, _LONG_DIGITS = 9, 18  # of decimals that are integers of 32 and of 64 bits
_MARKS = ",", "-"  # what `_unchanged` names columns by begins with a comma: these are below and above every such text


@dataclass(frozen=True, slots=True)
class DataFile:
    """A finished file: where it lies in its table's folder, and what Delta is to know of it."""

    path: str
    size_bytes: int
    rows: int
    stats: str


@dataclass(frozen=True, slots=True)
class _Encodings:
    """How columns are kept: those of few values by a dictionary, and those that lie near each other as differences."""

    few: tuple[str, ...]
    near: tuple[str, ...]

    @staticmethod
    def of(rows: pa.Table) -> _Encodings:
        """As the first rows suggest."""
        sample = rows.slice(0, _SAMPLE)
        few = tuple(name for name in rows.column_names if _few_values(sample[name]))
        near = tuple(name for name in rows.column_names if name not in few and _lies_near(sample[name]))
        return _Encodings(few, near)


class FileWriter:
    """Writes one file. Rows with other columns than the first need another file.

    Of several files with rows of one kind, the first finds how its columns are best kept, and the others are `like` it.
    Where rows come in no order, the bounds of texts are not worth their time: `text_bounds` says whether to keep them.
    """

    def __init__(self, folder: Path, prefix: str, like: FileWriter | None = None, *, text_bounds: bool = True) -> None:
        self._folder, self._like, self._text_bounds = folder, like, text_bounds
        self._encodings: _Encodings | None = None
        self._name = f"{prefix}-{uuid.uuid4().hex}.parquet"
        self._writer: pq.ParquetWriter | None = None
        self._gathered: list[pa.Table] = []
        self._bytes = 0
        self._nulls: Counter[str] = Counter()
        self.rows = 0

    def write(self, rows: pa.Table) -> None:
        """Take rows; they may stay in memory until there are enough for a row group."""
        self._gathered.append(rows)
        self._bytes += rows.nbytes
        self.rows += len(rows)
        if self._bytes >= GROUP_BYTES:
            self.flush()

    @property
    def gathered_bytes(self) -> int:
        """What is in memory."""
        return self._bytes

    def flush(self) -> None:
        """Write what was gathered as a row group."""
        if not self._gathered:
            return
        group = pa.concat_tables(self._gathered)
        if self._encodings is None:
            chosen = self._like._encodings if self._like is not None else None
            self._encodings = chosen or _Encodings.of(group)
        self._nulls.update({name: group[name].null_count for name in _ours(group.schema)})
        with room_in(self._folder):
            if self._writer is None:
                self._writer = pq.ParquetWriter(
                    self._folder / self._name,
                    group.schema,
                    compression="zstd",
                    compression_level=1,
                    use_dictionary=list(self._encodings.few),
                    column_encoding=dict.fromkeys(self._encodings.near, "DELTA_BINARY_PACKED"),
                    write_statistics=[each.name for each in group.schema if self._has_bounds(each.type)],
                    store_decimal_as_integer=True,
                    store_schema=False,
                )
            self._writer.write_table(group, row_group_size=len(group) or None)
        self._gathered, self._bytes = [], 0

    def _has_bounds(self, kind: pa.DataType) -> bool:
        """Whether readers may skip rows by the least and greatest value of a column."""
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            return False
        return self._text_bounds or not _is_text(kind)

    def close(self) -> DataFile:
        """Finish the file; it is durable after this."""
        self.flush()
        assert self._writer is not None  # noqa: S101 - a file is begun for rows
        path = self._folder / self._name
        with room_in(self._folder):
            self._writer.close()
            sync(path)
            sync(self._folder)
        stats = json.dumps(_stats(pq.read_metadata(path), self._nulls))
        return DataFile(self._name, path.stat().st_size, self.rows, stats)

    def discard(self) -> None:
        """Give up the file, and the room that it takes."""
        if self._writer is not None:
            with suppress(OSError):
                self._writer.close()
        (self._folder / self._name).unlink(missing_ok=True)


@contextmanager
def room_in(folder: Path) -> Iterator[None]:
    """Have a full disk said as such, and by its name."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        disk = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_mount())
        raise LakeDiskFull(
            f"cannot write to {folder}: {os.strerror(error.errno)} on the file system mounted at {disk}",
            f"Free disk space on {disk}, then retry the command. No data was lost.",
        ) from error


def write_whole(path: Path, text: str) -> None:
    """Write a small file, durably: whoever opens it finds all of it, or what was there before."""
    new = path.with_name(f"{path.name}.new")
    with room_in(path.parent):
        with new.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync(path.parent)


def sync(path: Path) -> None:
    """Return when a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _few_values(sample: pa.ChunkedArray) -> bool:
    kind = sample.type
    if pa.types.is_nested(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind):
        return False
    return bool(pc.count_distinct(sample).as_py() <= max(2, _FEW * len(sample)))


def _lies_near(sample: pa.ChunkedArray) -> bool:
    """Whether differences need less than half of the bits that a value has in the file."""
    kind = sample.type
    if pa.types.is_decimal128(kind) and kind.precision <= _LONG_DIGITS:
        bounds, scale, bits = pc.min_max(sample), kind.scale, 32 if kind.precision <= _INT_DIGITS else 64
    elif pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        plain = sample.cast(pa.int32()) if pa.types.is_date32(kind) else sample.cast(pa.int64())
        bounds, scale, bits = pc.min_max(plain), 0, 64 if kind.bit_width == 64 else 32
    else:
        return False
    least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
    return least is not None and int((greatest - least) * 10**scale).bit_length() <= bits // 2


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _ours(schema: pa.Schema) -> list[str]:
    """The columns that are not the source's."""
    theirs = {column.name for column in stored_columns(schema)}
    return [name for name in schema.names if name not in theirs]


def _stats(metadata: pq.FileMetaData, nulls: Mapping[str, int]) -> dict[str, Any]:
    """Delta's statistics: for each of our columns how many nulls there are, and the least and greatest value."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    flat = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    for name in nulls.keys() & flat.keys():
        groups = range(metadata.num_row_groups)
        chunks = [metadata.row_group(group).column(flat[name]).statistics for group in groups]
        if any(chunk is None for chunk in chunks):
            continue
        bounds = [(chunk.min, chunk.max) for chunk in chunks if chunk.has_min_max]
        whole = all(chunk.has_min_max or chunk.num_values == 0 for chunk in chunks)
        if name == UNCHANGED and nulls[name] < metadata.num_rows:
            least[name], greatest[name] = _MARKS
        elif bounds and whole and (plain := _plain(name, min(b[0] for b in bounds), max(b[1] for b in bounds))):
            least[name], greatest[name] = plain
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": dict(nulls)}


def _plain(name: str, low: Any, high: Any) -> tuple[Any, Any] | None:
    """Bounds as Delta's JSON has them; only of types whose order no engine disputes."""
    if isinstance(low, int) and not isinstance(low, bool):
        return low, high
    return (low, high) if name == CHANGE_TYPE else None
