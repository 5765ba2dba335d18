"""Cells: the locations of one column's values in a buffer, before decoding.

A cell is an offset and a length. A negative length means that there is no value: NULL, or an unchanged TOAST value.
Decoders convert cells to Arrow arrays and never read outside a cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.values.failure import BatchTooLarge
from tidemark.values.kernels import Bytes, Flags, Ints, Longs

NULL, UNCHANGED = -1, -2
MOST_TEXT_BYTES = 256 << 20  # limit for one column of a batch with several rows
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


@dataclass(frozen=True, slots=True)
class DecodedColumn:
    """A decoded column. `exact` is the text fallback: PostgreSQL's text of the values that `array` cannot represent.

    For such a value `array` is null; for all others `exact` is null.
    """

    array: pa.Array
    exact: pa.StringArray | None = None


def require_room(cells: Cells, text_bytes: int) -> None:
    """Raise BatchTooLarge if the decoded text of one column would exceed the limit; a single value may exceed it."""
    if text_bytes > MOST_TEXT_BYTES and len(cells) > 1:
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
