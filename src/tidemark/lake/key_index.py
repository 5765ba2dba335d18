"""The key index of a file of current rows: the position of each row by its key, in a file `_<name>.keys` next to it.

A read leaves out the rows whose keys later changes have. The index contains their positions, so that the key columns
are not read: for texts and composite keys that costs several times the query. An integer key needs no index, because a
bitmap of the keys costs as little as one of positions.

Keys are compared by 96 bits of a keyed hash (`values/key_hashes`), and the secret of an index is random. The entries
are ordered by the first bits of the hash, and `starts` has the first entry for each value of these bits. A small file
has no index: its keys are read instead.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.lake.columns import StoredColumn
from tidemark.storage.disk import room_in, sync
from tidemark.values.hashes import Hashes64, can_hash
from tidemark.values.kernels import Longs, kernel, read_only
from tidemark.values.key_hashes import key_hashes

KeyCells: TypeAlias = Sequence[tuple[pa.Array, pa.Array | None]]
Starts: TypeAlias = npt.NDArray[np.uint32]

LEAST_ROWS = 4_000
MOST_ROWS = 64 << 20  # a table with more gets no index: the bitmaps of its files would be too large
_SUFFIX = ".keys"
_MAGIC = b"TMKEYS01"
_HEADER = struct.Struct("<8sIIIIQQ")  # magic, bytes of the columns, rows, bits, 0, secret
_ROWS_PER_START, _MOST_BITS = 8, 24
_HIGH_HALF = np.uint64(0xFFFFFFFF00000000)


def indexed_key(columns: Sequence[StoredColumn], key: Sequence[int]) -> tuple[StoredColumn, ...]:
    """Return the columns of a key with an index: none for a single integer, nor for a type that cannot be hashed."""
    by_attnum = {column.attnum: column for column in columns if not column.text}
    found = tuple(by_attnum[attnum] for attnum in key)
    if (len(found) == 1 and pa.types.is_integer(found[0].type)) or not all(can_hash(each.type) for each in found):
        return ()
    return found


def index_path(folder: Path, name: str) -> Path:
    """Return the path of the index of a file."""
    return folder / f"_{name.removesuffix('.parquet')}{_SUFFIX}"


def index_bytes(folder: Path) -> int:
    """Return the size of all indexes in a directory."""
    size = 0
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_SUFFIX):
                with suppress(FileNotFoundError):  # the expire job deletes it
                    size += entry.stat().st_size
    return size


def cells_of(rows: pa.Table, columns: Sequence[StoredColumn]) -> KeyCells:
    """Return the cells of a key in rows with stored columns."""
    found = []
    for column in columns:
        text = column.fallback_column().name
        fallback = rows[text].combine_chunks() if text in rows.column_names else None
        found.append((rows[column.name].combine_chunks(), fallback))
    return found


@dataclass(slots=True)
class KeyIndexWriter:
    """Collects the keys of a file while it is written."""

    columns: tuple[StoredColumn, ...]
    _secret: tuple[int, int] = field(default_factory=lambda: (secrets.randbits(64), secrets.randbits(64)))
    _hashes: list[tuple[Hashes64, Hashes64]] = field(default_factory=list)
    _rows: int = 0

    def add(self, rows: pa.Table) -> None:
        """Add the next rows of the file."""
        self._hashes.append(key_hashes(cells_of(rows, self.columns), self._secret))
        self._rows += len(rows)

    def write(self, folder: Path, name: str) -> None:
        """Write the index of a file, unless it has few rows. The index is durable after this call."""
        if self._rows < LEAST_ROWS:
            return
        index, path = self.index(), index_path(folder, name)
        kinds = _kinds(self.columns)
        with room_in(folder):
            with path.open("wb") as file:
                file.write(_HEADER.pack(_MAGIC, len(kinds), self._rows, index.bits, 0, *self._secret) + kinds)
                for part in (index.starts, index.low, index.high):
                    file.write(part.data)
            sync(path)
            sync(folder)

    def index(self) -> KeyIndex:
        """Return the index of the rows so far."""
        low, high = (np.concatenate(halves) for halves in zip(*self._hashes, strict=True))
        bits = min(_MOST_BITS, max(1, (self._rows // _ROWS_PER_START).bit_length()))
        starts = np.zeros(_starts(bits), np.uint32)
        ordered = np.empty(self._rows, np.uint64), np.empty(self._rows, np.uint64)
        _order(low, high, np.uint64(64 - bits), starts, *ordered)
        return KeyIndex(self.columns, self._secret, bits, read_only(starts), *map(read_only, ordered))


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """The index of a file. `high` has the rest of the hash in its high half, and the position of the row in its low."""

    columns: tuple[StoredColumn, ...]
    secret: tuple[int, int]
    bits: int
    starts: Starts
    low: Hashes64
    high: Hashes64

    def positions(self, keys: KeyCells) -> Longs:
        """Return the positions of the rows that have one of these keys, which must have the types of the columns."""
        if [values.type for values, _ in keys] != [column.type for column in self.columns]:
            raise TypeError(f"an index of {self.columns} cannot be searched for keys of other types")
        low, high = key_hashes(keys, self.secret)
        found: Longs = _positions(low, high, np.uint64(64 - self.bits), self.starts, self.low, self.high)
        return found


def open_index(folder: Path, name: str, columns: tuple[StoredColumn, ...], rows: int) -> KeyIndex | None:
    """Return the index of a file for the key with these columns; None if it has none, and too many rows to make one."""
    try:
        with index_path(folder, name).open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return _made(folder / name, columns) if rows < LEAST_ROWS else None
    if len(data) < _HEADER.size:
        return None
    magic, size, count, bits, _, *secret = _HEADER.unpack_from(data)
    at = _HEADER.size + size
    whole = at + 4 * _starts(bits) + 16 * rows
    if (magic, count, len(data)) != (_MAGIC, rows, whole) or data[_HEADER.size : at] != _kinds(columns):
        return None
    starts = np.frombuffer(data, np.uint32, _starts(bits), at)
    low = np.frombuffer(data, np.uint64, rows, at + starts.nbytes)
    high = np.frombuffer(data, np.uint64, rows, at + starts.nbytes + low.nbytes)
    return KeyIndex(columns, (secret[0], secret[1]), bits, starts, low, high)


def _made(path: Path, columns: tuple[StoredColumn, ...]) -> KeyIndex | None:
    """Read the keys of a file; None if it does not contain the columns, or not with these types."""
    file = pq.ParquetFile(path)
    names = [each.name for column in columns for each in (column, column.fallback_column())]
    rows = file.read(columns=[name for name in names if name in file.schema_arrow.names])
    types = dict(zip(rows.column_names, rows.schema.types, strict=True))
    if any(types.get(column.name) != column.type for column in columns):
        return None
    writer = KeyIndexWriter(columns)
    writer.add(rows)
    return writer.index()


def _starts(bits: int) -> int:
    """The number of `starts`: one for each value of the first bits, the end, and one so that it is even."""
    return (1 << bits) + 2


def _kinds(columns: Sequence[StoredColumn]) -> bytes:
    """What identifies the key that an index is for: the attnums and types, padded to a multiple of eight bytes."""
    text = json.dumps([[column.attnum, str(column.type)] for column in columns])
    return text.ljust(-(-len(text) // 8) * 8).encode()


@kernel
def _order(low: Any, high: Any, shift: Any, starts: Any, out_low: Any, out_high: Any) -> None:
    """Order the entries by the first bits of the hash."""
    for row in range(len(low)):
        starts[(low[row] >> shift) + np.uint64(1)] += np.uint32(1)
    for part in range(1, len(starts)):
        starts[part] += starts[part - 1]
    following = starts[:-1].copy()
    for row in range(len(low)):
        part = low[row] >> shift
        out_low[following[part]] = low[row]
        out_high[following[part]] = (high[row] & _HIGH_HALF) | np.uint64(row)
        following[part] += np.uint32(1)


@kernel
def _positions(low: Any, high: Any, shift: Any, starts: Any, there_low: Any, there_high: Any) -> Any:
    found = np.empty(len(low), np.int64)
    count = 0
    for row in range(len(low)):
        part = low[row] >> shift
        for at in range(starts[part], starts[part + np.uint64(1)]):
            if there_low[at] == low[row] and (there_high[at] ^ high[row]) & _HIGH_HALF == np.uint64(0):
                if count == len(found):
                    found = np.concatenate((found, np.empty(len(found), np.int64)))
                found[count] = np.int64(there_high[at] & ~_HIGH_HALF)
                count += 1
    return found[:count]
