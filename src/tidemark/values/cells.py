"""Cells: where the values of one column lie in a buffer, before anyone looks inside them.

A cell is an offset and a length. A negative length is no value: NULL, or a value that was not sent because it did not
change. Decoders take cells and give Arrow arrays; they never read outside a cell.
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
MOST_TEXT_BYTES = 256 << 20  # in one column of a batch of several rows
MOST_CELLS = 4 << 20  # in one batch, whatever the number of columns: about 50 MB to say where they lie


@dataclass(frozen=True, slots=True)
class Cells:
    """A column's values as they lie in `buffer`."""

    buffer: Bytes
    offsets: Longs
    lengths: Ints

    def __len__(self) -> int:
        return len(self.offsets)

    def raw(self, at: int) -> bytes:
        """The bytes of one value."""
        start = int(self.offsets[at])
        return self.buffer[start : start + int(self.lengths[at])].tobytes()

    def where(self, chosen: Flags) -> Cells:
        """These cells with the others emptied."""
        return Cells(self.buffer, self.offsets, np.where(chosen, self.lengths, np.int32(NULL)))


@dataclass(frozen=True, slots=True)
class Column:
    """A decoded column. `exact` holds, where `array` is null for want of a twin, PostgreSQL's own text of the value."""

    array: pa.Array
    exact: pa.StringArray | None = None


def require_room(cells: Cells, text_bytes: int) -> None:
    """Ask for smaller batches where the decoded text of one column would be too large; a single value may be."""
    if text_bytes > MOST_TEXT_BYTES and len(cells) > 1:
        raise BatchTooLarge


def validity(lengths: Ints, without: Flags | None = None) -> tuple[pa.Buffer | None, int]:
    """Arrow's validity bitmap and null count: null where there is no value, and where `without` says so."""
    valid = lengths >= 0
    if without is not None:
        valid &= ~without
    nulls = len(lengths) - int(np.count_nonzero(valid))
    return (pa.py_buffer(np.packbits(valid, bitorder="little")), nulls) if nulls else (None, 0)


def fixed(kind: pa.DataType, values: npt.NDArray[Any], lengths: Ints, without: Flags | None = None) -> pa.Array:
    """An array of a fixed-width type from its values."""
    bitmap, nulls = validity(lengths, without)
    return pa.Array.from_buffers(kind, len(lengths), [bitmap, pa.py_buffer(values)], null_count=nulls)


def variable(kind: pa.DataType, offsets: Ints, data: Bytes, lengths: Ints, without: Flags | None = None) -> pa.Array:
    """An array of strings or bytes from their offsets and contents."""
    bitmap, nulls = validity(lengths, without)
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(lengths), buffers, null_count=nulls)
