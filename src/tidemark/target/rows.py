"""Rows in the binary format of COPY, from values in the format in which the stream sent them. Pure.

A row of a stage has an operation, the key under which the target has the row, its columns, and, if a value was not sent
again, one byte for each column, which is 1 for such a value. A row to insert has its columns only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidemark.target.net import DELETED, NetContents, NetRows, TableChanges
from tidemark.values.cells import UNCHANGED
from tidemark.values.kernels import Bytes, Ints, Longs, kernel, put16, put32

HEADER, TRAILER = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
LETTERS = np.frombuffer(b"-iumd", np.uint8)  # by operation
_NO_KEY = np.empty(0, np.int64)


def staged_rows(changes: TableChanges, net: NetRows, key: Longs, columns: Longs, *, marks: bool) -> Bytes:
    """Return the rows of a stage for these net rows."""
    return _encoded(changes, LETTERS[net.operations], net.origins, 2 * net.last, key, columns, marks=marks)


def staged_contents(changes: TableChanges, net: NetContents, columns: Longs) -> Bytes:
    """Return the rows of a stage for contents without a key, each as often as there is a row more or fewer of it."""
    letters = np.where(net.counts > 0, LETTERS[1], LETTERS[DELETED]).astype(np.uint8)
    times = np.abs(net.counts)
    rows = np.repeat(net.rows, times)
    return _encoded(changes, np.repeat(letters, times), rows, rows, _NO_KEY, columns)


def inserted_rows(changes: TableChanges, rows: Longs, columns: Longs) -> Bytes:
    """Return the rows with these references as COPY of the table itself reads them."""
    return _encoded(changes, np.empty(0, np.uint8), rows, rows, _NO_KEY, columns)


def _encoded(
    changes: TableChanges,
    letters: Bytes,
    origins: Longs,
    rows: Longs,
    key: Longs,
    columns: Longs,
    *,
    marks: bool = False,
) -> Bytes:
    arrays = (
        changes.buffer, changes.new_offsets, changes.new_lengths, changes.old_offsets, changes.old_lengths,
        letters, origins, rows, key, columns, marks,
    )  # fmt: skip
    out = np.empty(_encode(*arrays, np.empty(0, np.uint8), True), np.uint8)
    _encode(*arrays, out, False)
    return out


@kernel
def _put_cell(buffer: Bytes, offset: Any, length: Any, out: Bytes, at: Any, measure: bool) -> Any:
    size = max(length, 0)
    if not measure:
        put32(out, at, length if length >= 0 else -1)
        source, there = np.uint64(offset), np.uint64(at + 4)
        for k in range(size):
            out[there + np.uint64(k)] = buffer[source + np.uint64(k)]
    return at + 4 + size


@kernel
def _encode(
    buffer: Bytes,
    new_offsets: Longs,
    new_lengths: Ints,
    old_offsets: Longs,
    old_lengths: Ints,
    letters: Bytes,
    origins: Longs,
    rows: Longs,
    key: Longs,
    columns: Longs,
    marks: bool,
    out: Bytes,
    measure: bool,
) -> Any:
    """Write the rows, or only measure their size; return it."""
    staged = len(letters) > 0
    fields = len(columns) + (1 + len(key) if staged else 0) + (1 if marks else 0)
    at = 0
    for r in range(len(rows)):
        row, is_old = rows[r] >> 1, rows[r] & 1
        if not measure:
            put16(out, at, fields)
        at += 2
        if staged:
            if not measure:
                put32(out, at, 1)
                out[at + 4] = letters[r]
            at += 5
            for column in key:
                reference = origins[r]
                if reference < 0:
                    at = _put_cell(buffer, 0, -1, out, at, measure)
                elif reference & 1:
                    length = old_lengths[column, reference >> 1]
                    at = _put_cell(buffer, old_offsets[column, reference >> 1], length, out, at, measure)
                else:
                    length = new_lengths[column, reference >> 1]
                    at = _put_cell(buffer, new_offsets[column, reference >> 1], length, out, at, measure)
        for column in columns:
            if row < 0 or (staged and letters[r] == 100 and len(key) > 0):  # d
                at = _put_cell(buffer, 0, -1, out, at, measure)
            elif is_old:
                at = _put_cell(buffer, old_offsets[column, row], old_lengths[column, row], out, at, measure)
            else:
                at = _put_cell(buffer, new_offsets[column, row], new_lengths[column, row], out, at, measure)
        if marks:
            if not measure:
                put32(out, at, len(columns))
                for k in range(len(columns)):
                    marked = row >= 0 and not is_old and new_lengths[columns[k], row] == UNCHANGED
                    out[at + 4 + k] = 1 if marked else 0
            at += 4 + len(columns)
    return at
