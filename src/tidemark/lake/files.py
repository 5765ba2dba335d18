"""Writing one Parquet file of a Delta table, with the statistics that Delta records for it.

Rows are collected into row groups of some megabytes. Only columns with few distinct values are dictionary-encoded; for
others a dictionary costs time and space. Numbers and times in a narrow range are delta-encoded, which is smaller and
compresses faster. Decimals of up to 18 digits are stored as integers, as Spark stores them. A file is flushed to disk
before it is reported; the expire job removes files that were never committed.

Floating-point columns have neither bounds nor dictionaries. Parquet's bounds omit NaN, which PostgreSQL sorts above all
numbers, and order -0.0 below 0.0, which equals it; parquet-mr searches dictionaries by the bits of a value. Readers
that rely on either would skip rows that a filter selects.

Delta's statistics cover only Tidemark's own columns, which have bounds in every file. deltalake generates `x >= null`
for a column without bounds, so that any filter on it selects no row of the file; and many values of the source have no
exact bounds in Delta's JSON. Readers use the bounds of Parquet's row groups for columns of the source.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.lake.columns import CHANGE_TYPE, UNCHANGED, stored_columns
from tidemark.lake.key_index import KeyIndexWriter, index_path
from tidemark.storage.disk import room_in, sync

GROUP_BYTES = 32 << 20
_SAMPLE, _FEW = 4096, 0.1
_INT_DIGITS, _LONG_DIGITS = 9, 18  # decimals of up to so many digits are 32-bit and 64-bit integers
_PADDING, _PADDED_BYTES = "tidemark.padding", 4096  # so that sizes differ, by which readers know a file's index
_UNCHANGED_BOUNDS = ",", "-"  # bounds of every text in `_unchanged`, since each begins with a comma


@dataclass(frozen=True, slots=True)
class DataFile:
    """A finished file: its path within the directory of its table, and the values that Delta records for it."""

    path: str
    size_bytes: int
    rows: int
    stats: str


@dataclass(frozen=True, slots=True)
class _Encodings:
    """The encodings of columns: `few` are dictionary-encoded, `near` are delta-encoded."""

    few: tuple[str, ...]
    near: tuple[str, ...]

    @staticmethod
    def of(rows: pa.Table) -> _Encodings:
        """Choose encodings from the first rows."""
        sample = rows.slice(0, _SAMPLE)
        few = tuple(name for name in rows.column_names if _few_values(sample[name]))
        near = tuple(name for name in rows.column_names if name not in few and _lies_near(sample[name]))
        return _Encodings(few, near)


class FileWriter:
    """Writes one file. Rows with other columns than the first rows need another file.

    Of several files with similar rows, the first chooses the encodings, and the others reuse them (`like`).
    `text_bounds` enables bounds of text columns, which are not worth their cost if the rows are in no order. With an
    `index`, the file gets an index of its keys.
    """

    def __init__(
        self,
        folder: Path,
        prefix: str,
        like: FileWriter | None = None,
        *,
        text_bounds: bool = True,
        index: KeyIndexWriter | None = None,
    ) -> None:
        self._folder, self._like, self._text_bounds, self._index = folder, like, text_bounds, index
        self._encodings: _Encodings | None = None
        self._name = f"{prefix}-{uuid.uuid4().hex}.parquet"
        self._writer: pq.ParquetWriter | None = None
        self._gathered: list[pa.Table] = []
        self._bytes = 0
        self._nulls: Counter[str] = Counter()
        self.rows = 0

    def write(self, rows: pa.Table) -> None:
        """Add rows, which are buffered until they fill a row group."""
        self._gathered.append(rows)
        self._bytes += rows.nbytes
        self.rows += len(rows)
        if self._bytes >= GROUP_BYTES:
            self.flush()

    @property
    def gathered_bytes(self) -> int:
        """The size of the buffered rows."""
        return self._bytes

    def flush(self) -> None:
        """Write the buffered rows as a row group."""
        if not self._gathered:
            return
        group = pa.concat_tables(self._gathered)
        if self._index is not None:
            self._index.add(group)
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
        """Return whether readers may skip rows by the minimum and maximum of a column."""
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            return False
        return self._text_bounds or not _is_text(kind)

    def close(self) -> DataFile:
        """Finish the file, which is durable after this call."""
        self.flush()
        assert self._writer is not None  # noqa: S101 - a file is begun for rows
        path = self._folder / self._name
        with room_in(self._folder):
            if self._index is not None:
                self._writer.add_key_value_metadata({_PADDING: "." * secrets.randbelow(_PADDED_BYTES)})
            self._writer.close()
            sync(path)
            sync(self._folder)
        if self._index is not None:
            self._index.write(self._folder, self._name)
        stats = json.dumps(_stats(pq.read_metadata(path), self._nulls))
        return DataFile(self._name, path.stat().st_size, self.rows, stats)

    def discard(self) -> None:
        """Abandon the file and remove it from disk, if that is possible."""
        if self._writer is not None:
            with suppress(OSError):
                self._writer.close()
        with suppress(OSError):
            remove_file(self._folder, self._name)


def remove_file(folder: Path, name: str) -> None:
    """Delete a file from disk, and its index first: an index without its file would not be found again."""
    for path in (index_path(folder, name), folder / name):
        path.unlink(missing_ok=True)


def _few_values(sample: pa.ChunkedArray) -> bool:
    kind = sample.type
    if pa.types.is_nested(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind):
        return False
    return bool(pc.count_distinct(sample).as_py() <= max(2, _FEW * len(sample)))


def _lies_near(sample: pa.ChunkedArray) -> bool:
    """Return whether differences between values need at most half of the bits of a stored value."""
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
    """Return the columns that do not hold columns of the source, except lists and maps, which have no statistics."""
    theirs = {column.name for column in stored_columns(schema)}
    return [each.name for each in schema if each.name not in theirs and not pa.types.is_nested(each.type)]


def _stats(metadata: pq.FileMetaData, nulls: Mapping[str, int]) -> dict[str, Any]:
    """Return Delta's statistics: the null count, minimum and maximum of each of Tidemark's own columns."""
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
            least[name], greatest[name] = _UNCHANGED_BOUNDS
        elif bounds and whole and (plain := _plain(name, min(b[0] for b in bounds), max(b[1] for b in bounds))):
            least[name], greatest[name] = plain
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": dict(nulls)}


def _plain(name: str, low: Any, high: Any) -> tuple[Any, Any] | None:
    """Return bounds for Delta's JSON, for types whose order is the same in all engines; otherwise None."""
    if isinstance(low, int) and not isinstance(low, bool):
        return low, high
    return (low, high) if name == CHANGE_TYPE else None
