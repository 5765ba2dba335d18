r"""Decode COPY … (FORMAT binary) data, received in pieces split anywhere, into batches of columns.

header   PGCOPY\n\377\r\n\0, int32 flags, int32 length of an extension, the extension
row      int16 number of fields, then for each int32 length (-1 is NULL) and bytes
trailer  int16 -1
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidemark.values.cells import MOST_CELLS, Cells, DecodedColumn
from tidemark.values.failure import BatchTooLarge, bad_message, decoding_column
from tidemark.values.kernels import FOUR, TWO, Bytes, Ints, Longs, be16, int32_at, kernel
from tidemark.values.types import Decoding

SIGNATURE = b"PGCOPY\n\xff\r\n\0"
HEADER = len(SIGNATURE) + 8
CRITICAL_FLAGS = 0xFFFF0000  # a reader must fail on an unknown flag in the upper half
BATCH_ROWS = 65_536
CHUNK_BYTES = 1 << 20

MORE, FULL, TRAILER, BAD = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class CopyBatch:
    """Rows of a copy, by column; a table without columns also has rows."""

    rows: int
    columns: tuple[DecodedColumn, ...]


class CopyDecoder:
    """Decodes the data that the server sends into batches of a limited number of whole rows.

    The decoder collects small pieces, and scans an incomplete row again only when enough bytes for it have arrived, so
    that each byte is scanned about once. It stores at most one batch, `chunk_bytes`, and one row. An interrupted copy
    has no trailer, and `finish()` raises an error for it. The caller must exhaust the iterators of `feed()` and
    `finish()`.
    """

    def __init__(
        self,
        columns: Sequence[Decoding],
        names: Sequence[str] = (),
        batch_rows: int = BATCH_ROWS,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._columns = tuple(columns)
        self._names = tuple(names) or tuple(str(number) for number in range(1, len(self._columns) + 1))
        self._shape = (len(self._columns), max(1, min(batch_rows, MOST_CELLS // max(1, len(self._columns)))))
        self._offsets = np.empty(self._shape, np.int64)
        self._lengths = np.empty(self._shape, np.int32)
        self._pieces: list[bytes | memoryview] = []
        self._held = 0
        self._chunk_bytes = self._wanted = chunk_bytes
        self._begun = False
        self._ended = False
        self._consumed = 0

    def feed(self, piece: bytes | memoryview) -> Iterator[CopyBatch]:
        """Add the next piece, which must not be modified afterwards; yield the batches that it completes."""
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held >= self._wanted:
            yield from self._decode()

    def finish(self) -> Iterator[CopyBatch]:
        """Yield the remaining rows after the last piece; raise an error if the data has no trailer."""
        yield from self._decode()
        if not self._ended:
            bad_message("binary COPY data without a trailer", self._gathered(), 0)

    def _decode(self) -> Iterator[CopyBatch]:
        data = self._gathered()
        if self._ended and len(data):
            bad_message("bytes after the trailer of binary COPY data", data, 0)
        at, need = (0 if self._begun else self._header(data)), 0
        status = FULL if self._begun and not self._ended else MORE
        while status == FULL:
            rows, at, status, need = _rows(data, at, self._offsets, self._lengths)
            if status == BAD:
                bad_message(
                    f"not a row of {self._shape[0]} fields (byte {self._consumed + at} of the COPY data)", data, at
                )
            yield from self._batches(data, 0, rows)
        if status == TRAILER:
            self._end(data, at)
        self._pieces, self._held = [data[at:].tobytes()] if at < len(data) else [], len(data) - at
        self._wanted = max(need, self._chunk_bytes)
        self._consumed += at

    def _gathered(self) -> Bytes:
        """Return all pieces as one array; a single piece is not copied."""
        return np.frombuffer(self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces), np.uint8)

    def _header(self, data: Bytes) -> int:
        """Read the header once it is complete; return the position after it, or 0."""
        head = data[: len(SIGNATURE)].tobytes()
        if head != SIGNATURE[: len(head)]:
            bad_message("invalid signature of binary COPY data", data, 0)
        if len(data) < HEADER:
            return 0
        flags, extension = struct.unpack_from("!Ii", data[:HEADER].tobytes(), len(SIGNATURE))
        if flags & CRITICAL_FLAGS or extension < 0:
            bad_message("binary COPY data with unknown flags or header extension", data, len(SIGNATURE))
        if len(data) < HEADER + extension:
            return 0
        self._begun = True
        return HEADER + int(extension)

    def _end(self, data: Bytes, at: int) -> None:
        if at != len(data):
            bad_message("bytes after the trailer of binary COPY data", data, at)
        self._ended = True

    def _batches(self, data: Bytes, first: int, last: int) -> Iterator[CopyBatch]:
        """Decode these rows, in halves if the batch is too large."""
        rows = slice(first, last)
        decoded = []
        try:
            for k, (name, column) in enumerate(zip(self._names, self._columns, strict=True)):
                with decoding_column(name):
                    cells = Cells(data, self._offsets[k, rows], self._lengths[k, rows])
                    decoded.append(column.decode(cells, column.binary))
        except BatchTooLarge:
            middle = (first + last) // 2
            yield from self._batches(data, first, middle)
            yield from self._batches(data, middle, last)
            return
        if last > first:
            yield CopyBatch(last - first, tuple(decoded))


@kernel
def _rows(buffer: Bytes, start: int, offsets: Longs, lengths: Ints) -> Any:
    """Locate whole rows; return their count, the next row's offset, the stop reason and that row's minimum length."""
    columns, most = offsets.shape
    at, end = np.uint64(start), np.uint64(len(buffer))
    for row in range(most):
        if at + TWO > end:
            return row, np.int64(at), MORE, 2
        fields = np.int16(be16(buffer, at))
        if fields == -1:
            return row, np.int64(at + TWO), TRAILER, 0
        if fields != columns:
            return row, np.int64(at), BAD, 0
        p = at + TWO
        for k in range(columns):
            if p + FOUR > end:
                return row, np.int64(at), MORE, np.int64(p + FOUR - at)
            size = int32_at(buffer, p)
            p += FOUR
            if size < -1:
                return row, np.int64(at), BAD, 0
            offsets[k, row] = np.int64(p)
            lengths[k, row] = size
            if size > 0:
                p += np.uint64(size)
                if p > end:
                    return row, np.int64(at), MORE, np.int64(p - at)
        at = p
    return most, np.int64(at), FULL, 0
