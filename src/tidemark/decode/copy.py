r"""COPY … (FORMAT binary): the bytes of a table, in pieces split anywhere, to columns in batches.

header   PGCOPY\n\377\r\n\0, int32 flags, int32 length of an extension, the extension
row      int16 number of fields, then for each int32 length (-1 is NULL) and bytes
trailer  int16 -1
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tidemark.decode.cells import MOST_CELLS, Bytes, Cells, Column, Ints, Longs, kernel
from tidemark.decode.failure import bad_message
from tidemark.decode.types import Decoding

SIGNATURE = b"PGCOPY\n\xff\r\n\0"
HEADER = len(SIGNATURE) + 8
CRITICAL_FLAGS = 0xFFFF0000  # a reader must give up on a flag it does not know in the upper half
BATCH_ROWS = 65_536

MORE, FULL, TRAILER, BAD = 0, 1, 2, 3


class CopyDecoder:
    """Feed it what the server sends; it gives a batch of columns for every so many whole rows.

    It holds no more than one batch and the piece of a row that has not ended. `finish()` says whether the end was seen:
    a copy that was cut off ends without a trailer and is refused.
    """

    def __init__(self, columns: Sequence[Decoding], batch_rows: int = BATCH_ROWS) -> None:
        self._columns = tuple(columns)
        self._shape = (len(self._columns), max(1, min(batch_rows, MOST_CELLS // max(1, len(self._columns)))))
        self._offsets = np.empty(self._shape, np.int64)
        self._lengths = np.empty(self._shape, np.int32)
        self._rest = b""
        self._begun = False
        self._ended = False
        self._consumed = 0

    def feed(self, piece: bytes) -> Iterator[list[Column]]:
        """Take the next piece; yield the batches that are complete with it, and the rows left over as one more."""
        data = np.frombuffer(self._rest + piece if self._rest else piece, np.uint8)
        if self._ended and len(data):
            bad_message("bytes after the trailer of a binary copy", data, 0)
        at = 0 if self._begun else self._header(data)
        status = FULL if self._begun else MORE
        while status == FULL:
            rows, at, status = _rows(data, at, self._offsets, self._lengths)
            if status == BAD:
                bad_message(
                    f"not a row of {self._shape[0]} fields, at byte {self._consumed + at} of the copy,", data, at
                )
            if rows:
                yield self._batch(data, rows)
        if status == TRAILER:
            self._end(data, at)
            at = len(data)
        self._rest = data[at:].tobytes()
        self._consumed += at

    def finish(self) -> None:
        """Refuse a copy whose end was not seen."""
        if not self._ended:
            bad_message("the copy ended without its trailer", np.frombuffer(self._rest, np.uint8), 0)

    def _header(self, data: Bytes) -> int:
        """Read the header once it is there whole; the position after it, or 0."""
        head = data[: len(SIGNATURE)].tobytes()
        if head != SIGNATURE[: len(head)]:
            bad_message("not the signature of a binary copy", data, 0)
        if len(data) < HEADER:
            return 0
        flags, extension = struct.unpack_from("!Ii", data[:HEADER].tobytes(), len(SIGNATURE))
        if flags & CRITICAL_FLAGS or extension < 0:
            bad_message("a binary copy with flags or an extension that we do not know", data, len(SIGNATURE))
        if len(data) < HEADER + extension:
            return 0
        self._begun = True
        return HEADER + int(extension)

    def _end(self, data: Bytes, at: int) -> None:
        if at != len(data):
            bad_message("bytes after the trailer of a binary copy", data, at)
        self._ended = True

    def _batch(self, data: Bytes, rows: int) -> list[Column]:
        return [
            column.decode(Cells(data, self._offsets[k, :rows], self._lengths[k, :rows]), column.binary)
            for k, column in enumerate(self._columns)
        ]


@kernel
def _int16(buffer: Bytes, at: int) -> Any:
    value = np.int64(buffer[at]) << 8 | np.int64(buffer[at + 1])
    return value - 65536 if value >= 32768 else value


@kernel
def _int32(buffer: Bytes, at: int) -> Any:
    value = (
        np.int64(buffer[at]) << 24
        | np.int64(buffer[at + 1]) << 16
        | np.int64(buffer[at + 2]) << 8
        | np.int64(buffer[at + 3])
    )
    return value - 4294967296 if value >= 2147483648 else value


@kernel
def _rows(buffer: Bytes, at: int, offsets: Longs, lengths: Ints) -> Any:
    """Find whole rows from `at` on: how many, where the next one begins, and why it stopped."""
    columns, most = offsets.shape
    end = len(buffer)
    for row in range(most):
        if at + 2 > end:
            return row, at, MORE
        fields = _int16(buffer, at)
        if fields == -1:
            return row, at + 2, TRAILER
        if fields != columns:
            return row, at, BAD
        p = at + 2
        for k in range(columns):
            if p + 4 > end:
                return row, at, MORE
            size = _int32(buffer, p)
            p += 4
            if size < -1:
                return row, at, BAD
            if size > end - p:
                return row, at, MORE
            offsets[k, row] = p
            lengths[k, row] = size
            p += max(size, 0)
        at = p
    return most, at, FULL
