r"""Rows as PostgreSQL sends and reads them: DataRow messages, COPY BINARY and COPY text, from columns of Arrow arrays.

    DataRow      D, int32 length of the message without the D, then a row as in COPY BINARY
    COPY BINARY  the header, rows, the trailer: see `copy`
    COPY text    fields separated by tabs, a newline after each row; \N is NULL; backslash escapes

Columns are encoded one at a time to cells, and the cells of all columns are copied into rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

import numpy as np

from tidemark.values.cells import Cells, DecodedColumn, bytes_of
from tidemark.values.copy import SIGNATURE
from tidemark.values.kernels import TWO, Bytes, Ints, Longs, kernel, put16, put32
from tidemark.values.output import column_text
from tidemark.values.types import Decoding
from tidemark.values.zones import UTC, Zone

COPY_HEADER = SIGNATURE + bytes(8)
COPY_TRAILER = b"\xff\xff"


class WireFormat(Enum):
    """The format of values: PostgreSQL's text, or the binary format of COPY and DataRow."""

    TEXT = 0
    BINARY = 1


def encode_column(column: DecodedColumn, decoding: Decoding, form: WireFormat, zone: Zone = UTC) -> Cells:
    """Encode a column of this type, as decoders, the lake and Spark return it.

    `zone` is the time zone in which timestamptz is printed as text. A type without a binary format here is named in the
    error.
    """
    column = column.gathered()
    if column.array.type != decoding.arrow:  # Arrow has several types for the same strings and lists
        column = DecodedColumn(column.array.cast(decoding.arrow), column.fallback)
    if form is WireFormat.TEXT:
        return column_text(column, zone)
    cells = decoding.encode(column.array)
    if column.fallback is None:
        return cells
    return cells.or_else(decoding.parse(bytes_of(column.fallback)))


def data_rows(columns: Sequence[Cells], rows: int) -> Bytes:
    """Return a DataRow message for each row; a column may be in either format."""
    return _assembled(columns, rows, 7, _begin_message)


def copy_rows(columns: Sequence[Cells], rows: int) -> Bytes:
    """Return rows of COPY BINARY, without the header and the trailer; the columns are in binary format."""
    return _assembled(columns, rows, 2, _begin_tuple)


def copy_lines(columns: Sequence[Cells], rows: int) -> Bytes:
    """Return rows of COPY text; the columns are in text format."""
    ends = np.ones(rows, np.int64)  # a newline for a table without columns
    for column in columns:
        _add_escaped_sizes(column.buffer, column.offsets, column.lengths, _ESCAPES, ends)
    ends -= bool(columns)
    np.cumsum(ends, out=ends)
    places = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if rows else ends
    out = np.full(int(ends[-1]) if rows else 0, 10, np.uint8)
    for number, column in enumerate(columns):
        last = number == len(columns) - 1
        _place_escaped(column.buffer, column.offsets, column.lengths, _ESCAPES, 10 if last else 9, places, out)
    return out


def _assembled(columns: Sequence[Cells], rows: int, head: int, begin: Callable[..., None]) -> Bytes:
    sizes = np.full(rows, head + 4 * len(columns), np.int64)
    for column in columns:
        sizes += np.maximum(column.lengths, 0)
    places = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), np.uint8)
    begin(sizes, len(columns), places, out)
    for column in columns:
        _place(column.buffer, column.offsets, column.lengths, places, out)
    return out


def _escapes() -> Bytes:
    """Return the letter after the backslash for each character that COPY text escapes, 0 for all others."""
    table = np.zeros(256, np.uint8)
    for char, letter in zip(b"\\\b\f\n\r\t\v", b"\\bfnrtv", strict=True):
        table[char] = letter
    return table


_ESCAPES = _escapes()


@kernel
def _begin_tuple(sizes: Longs, columns: int, places: Longs, out: Bytes) -> None:
    for i in range(len(sizes)):
        places[i] = put16(out, places[i], columns)


@kernel
def _begin_message(sizes: Longs, columns: int, places: Longs, out: Bytes) -> None:
    for i in range(len(sizes)):
        out[places[i]] = 68
        places[i] = put16(out, put32(out, places[i] + 1, sizes[i] - 1), columns)


@kernel
def _place(buffer: Bytes, offsets: Longs, lengths: Ints, places: Longs, out: Bytes) -> None:
    """Write the length and the bytes of each cell at its place in the row, and move the place behind it."""
    for i in range(len(offsets)):
        at = np.uint64(put32(out, places[i], max(lengths[i], -1)))
        begin, length = np.uint64(offsets[i]), np.uint64(max(lengths[i], 0))
        for k in range(length):
            out[at + np.uint64(k)] = buffer[begin + np.uint64(k)]
        places[i] = np.int64(at + length)


@kernel
def _add_escaped_sizes(buffer: Bytes, offsets: Longs, lengths: Ints, escapes: Bytes, sizes: Longs) -> None:
    """Add to each row the size of its cell and of the separator behind it."""
    for i in range(len(offsets)):
        size = 3 if lengths[i] < 0 else lengths[i] + 1
        begin = np.uint64(offsets[i])
        for k in range(np.uint64(max(lengths[i], 0))):
            size += escapes[buffer[begin + np.uint64(k)]] != 0
        sizes[i] += size


@kernel
def _place_escaped(
    buffer: Bytes, offsets: Longs, lengths: Ints, escapes: Bytes, separator: int, places: Longs, out: Bytes
) -> None:
    for i in range(len(offsets)):
        at = np.uint64(places[i])
        if lengths[i] < 0:
            out[at], out[at + np.uint64(1)] = 92, 78
            at += TWO
        begin = np.uint64(offsets[i])
        for k in range(np.uint64(max(lengths[i], 0))):
            char = buffer[begin + np.uint64(k)]
            if escapes[char] != 0:
                out[at] = 92
                at += np.uint64(1)
                char = escapes[char]
            out[at] = char
            at += np.uint64(1)
        out[at] = separator
        places[i] = np.int64(at) + 1
