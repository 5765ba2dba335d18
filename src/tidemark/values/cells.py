"""Cells: the locations of one column's values in a buffer, in PostgreSQL's text or binary format.

A cell is an offset and a length. A negative length means that there is no value: NULL, or an unchanged TOAST value.
Decoders convert cells to Arrow arrays and never read outside a cell; encoders convert Arrow arrays to cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.values.failure import BatchTooLarge
from tidemark.values.kernels import Bytes, Flags, Ints, Longs, kernel, read_only

NULL, UNCHANGED = -1, -2
MOST_TEXT_BYTES = 256 << 20  # limit for one column of a decoded batch with several rows
_MOST_OFFSET = 2**31 - 1  # of an Arrow array of strings
MOST_CELLS = 4 << 20  # limit for one batch, regardless of the number of columns: about 50 MB of offsets and lengths


@dataclass(frozen=True, slots=True)
class Cells:
    """The locations of a column's values in `buffer`."""

    buffer: Bytes
    offsets: Longs
    lengths: Ints

    def __len__(self) -> int:
        return len(self.offsets)

    def raw(self, at: int) -> bytes:
        """Return the bytes of one value."""
        start = int(self.offsets[at])
        return self.buffer[start : start + int(self.lengths[at])].tobytes()

    def where(self, chosen: Flags) -> Cells:
        """Return these cells with all others set to NULL."""
        return Cells(self.buffer, self.offsets, np.where(chosen, self.lengths, np.int32(NULL)))

    def or_else(self, others: Cells) -> Cells:
        """Return these cells, and those of `others` where these are NULL."""
        here = self.lengths >= 0
        offsets = np.where(here, self.offsets, others.offsets + len(self.buffer))
        buffer = read_only(np.concatenate([self.buffer, others.buffer]))
        return Cells(buffer, offsets, np.where(here, self.lengths, others.lengths))


@dataclass(frozen=True, slots=True)
class DecodedColumn:
    """A decoded column. `fallback` is the text fallback: PostgreSQL's text of the values that `array` cannot represent.

    For such a value `array` is null; for all others `fallback` is null.
    """

    array: pa.Array
    fallback: pa.StringArray | None = None

    def gathered(self) -> DecodedColumn:
        """Return the column with its chunks, if it has any, in one array each."""
        fallback = self.fallback if self.fallback is None else _in_one(self.fallback).cast(pa.string())
        return DecodedColumn(_in_one(self.array), fallback)


def _in_one(array: pa.Array) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def require_room(cells: Cells, text_bytes: int, most_bytes: int = MOST_TEXT_BYTES) -> None:
    """Raise BatchTooLarge if the text of one column would exceed the limit; a single value may exceed it."""
    if text_bytes > most_bytes and len(cells) > 1:
        raise BatchTooLarge


def validity(lengths: Ints, without: Flags | None = None) -> tuple[pa.Buffer | None, int]:
    """Build Arrow's validity bitmap and null count: null where there is no value or `without` is true."""
    valid = lengths >= 0
    if without is not None:
        valid &= ~without
    nulls = len(lengths) - int(np.count_nonzero(valid))
    return (pa.py_buffer(np.packbits(valid, bitorder="little")), nulls) if nulls else (None, 0)


def fixed(kind: pa.DataType, values: npt.NDArray[Any], lengths: Ints, without: Flags | None = None) -> pa.Array:
    """Build an array of a fixed-width type from its values."""
    bitmap, nulls = validity(lengths, without)
    return pa.Array.from_buffers(kind, len(lengths), [bitmap, pa.py_buffer(values)], null_count=nulls)


def variable(kind: pa.DataType, offsets: Ints, data: Bytes, lengths: Ints, without: Flags | None = None) -> pa.Array:
    """Build an array of strings or bytes from offsets and contents."""
    bitmap, nulls = validity(lengths, without)
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(lengths), buffers, null_count=nulls)


def present(array: pa.Array) -> Flags:
    """Return whether each value of an array is not null."""
    flags: Flags = array.is_valid().to_numpy(zero_copy_only=False)
    return flags


def values_of(array: pa.Array, dtype: Any) -> npt.NDArray[Any]:
    """Return the values of an array of a fixed-width type, not copied; those of nulls have no meaning."""
    if not len(array):
        return read_only(np.empty(0, dtype))
    return read_only(np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)])


def bytes_of(array: pa.Array) -> Cells:
    """Return the values of an array of strings or bytes as cells, not copied."""
    count = len(array)
    if not count:
        return Cells(read_only(np.empty(0, np.uint8)), np.empty(0, np.int64), np.empty(0, np.int32))
    _, starts, data = array.buffers()
    offsets = np.frombuffer(starts, np.int32)[array.offset : array.offset + count + 1].astype(np.int64)
    lengths = np.diff(offsets).astype(np.int32)
    if array.null_count:
        lengths[~present(array)] = NULL
    buffer = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    return Cells(read_only(buffer), offsets[:-1], lengths)


def cells_of(values: Sequence[bytes | None]) -> Cells:
    """Return values, one at a time, as cells."""
    lengths = np.array([NULL if each is None else len(each) for each in values], np.int32)
    offsets = np.zeros(len(values), np.int64)
    np.cumsum(np.maximum(lengths, 0)[:-1], out=offsets[1:])
    return Cells(np.frombuffer(b"".join(each or b"" for each in values), np.uint8), offsets, lengths)


def strings_of(cells: Cells) -> pa.StringArray:
    """Return cells that are known to be UTF-8 as an array of strings, which has room for 2 GB."""
    offsets, data = copied(cells, _MOST_OFFSET)
    return variable(pa.string(), offsets, data, cells.lengths)


def copied(cells: Cells, most_bytes: int = MOST_TEXT_BYTES) -> tuple[Ints, Bytes]:
    """Return the cells' bytes concatenated, and the offset of each."""
    total = int(np.maximum(cells.lengths, 0).sum(dtype=np.int64))
    require_room(cells, total, most_bytes)
    offsets = np.empty(len(cells) + 1, np.int32)
    data = np.empty(total, np.uint8)
    _copy(cells.buffer, cells.offsets, cells.lengths, offsets, data)
    return offsets, data


def same_width(values: npt.NDArray[Any], valid: Flags) -> Cells:
    """Return the bytes of values of one width as cells."""
    width = values.dtype.itemsize
    data = read_only(np.ascontiguousarray(values).view(np.uint8))
    offsets = np.arange(0, width * len(values), width, dtype=np.int64)
    return Cells(data, offsets, np.where(valid, np.int32(width), np.int32(NULL)))


def written(write: Any, valid: Flags, room: int, *inputs: Any) -> tuple[Cells, int]:
    """Run a kernel that writes cells one after another into `room` bytes; return them, and what the kernel returned.

    The kernel takes `inputs`, offsets, lengths and the output. Lengths are NULL where there is no value; the kernel
    fills in the others, and returns OK or the index of an invalid value.
    """
    offsets = np.zeros(len(valid), np.int64)
    lengths = np.where(valid, np.int32(0), np.int32(NULL))
    out = np.empty(room, np.uint8)
    bad: int = write(*inputs, offsets, lengths, out)
    return Cells(read_only(out), offsets, lengths), bad


@kernel
def _copy(buffer: Bytes, offsets: Longs, lengths: Ints, starts: Ints, out: Bytes) -> None:
    at = np.uint64(0)
    for i in range(len(offsets)):
        starts[i] = np.int32(at)
        begin, length = np.uint64(offsets[i]), np.uint64(max(lengths[i], 0))
        for k in range(length):
            out[at + np.uint64(k)] = buffer[begin + np.uint64(k)]
        at += length
    starts[len(offsets)] = np.int32(at)
