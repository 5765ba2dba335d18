r"""Types that are text: text, varchar, bpchar, name, json, enum labels, and all types stored as PostgreSQL's text.

binary  the same bytes as in text; jsonb has a version byte (1) before them; "char" is one byte
text    UTF-8
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.values.cells import Cells, DecodedColumn, require_room, variable
from tidemark.values.failure import bad_value, require_good
from tidemark.values.kernels import OK, Bytes, Ints, Longs, kernel


def text(cells: Cells, binary: bool) -> DecodedColumn:  # noqa: ARG001
    """Text to string; both formats have the same bytes."""
    return DecodedColumn(as_strings("text", cells))


def jsonb(cells: Cells, binary: bool) -> DecodedColumn:
    """jsonb to string."""
    if binary:
        require_good("jsonb", cells, _versioned(cells.buffer, cells.offsets, cells.lengths))
        present = cells.lengths >= 0
        cells = Cells(cells.buffer, cells.offsets + present, cells.lengths - present.astype(np.int32))
    return DecodedColumn(as_strings("jsonb", cells))


def char(cells: Cells, binary: bool) -> DecodedColumn:
    r"""PostgreSQL's one-byte "char" to string, as charout prints it: NUL becomes empty, a high byte becomes \ooo."""
    if not binary:
        return DecodedColumn(as_strings('"char"', cells))
    out = np.empty(4 * len(cells), np.uint8)
    offsets = np.zeros(len(cells) + 1, np.int32)
    require_good('"char"', cells, _chars(cells.buffer, cells.offsets, cells.lengths, offsets, out))
    return DecodedColumn(variable(pa.string(), offsets, out, cells.lengths))


def uuid(cells: Cells, binary: bool) -> DecodedColumn:
    """Uuid to string, as PostgreSQL prints it."""
    if not binary:
        require_good("uuid", cells, _uuid_texts(cells.buffer, cells.offsets, cells.lengths))
        return DecodedColumn(as_strings("uuid", cells))
    out = np.empty(36 * len(cells), np.uint8)
    offsets = np.zeros(len(cells) + 1, np.int32)
    require_good("uuid", cells, _uuids(cells.buffer, cells.offsets, cells.lengths, offsets, out))
    return DecodedColumn(variable(pa.string(), offsets, out, cells.lengths))


def bytea(cells: Cells, binary: bool) -> DecodedColumn:
    r"""Bytea to binary; the text format is \x followed by hexadecimal digits."""
    if binary:
        offsets, data = copied(cells)
        return DecodedColumn(variable(pa.binary(), offsets, data, cells.lengths))
    lengths = np.where(cells.lengths >= 0, np.maximum(cells.lengths // 2 - 1, 0), 0)
    offsets = np.zeros(len(cells) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    require_good("bytea", cells, _unhex(cells.buffer, cells.offsets, cells.lengths, offsets, data))
    return DecodedColumn(variable(pa.binary(), offsets, data, cells.lengths))


def as_strings(name: str, cells: Cells) -> pa.StringArray:
    """Copy the cells' bytes into a string array; bytes that are not valid UTF-8 raise an error."""
    offsets, data = copied(cells)
    array = variable(pa.string(), offsets, data, cells.lengths)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        bad_value(f"{name} in UTF-8", cells, _first_not_utf8(cells))
    return array


def copied(cells: Cells) -> tuple[Ints, Bytes]:
    """Return the cells' bytes concatenated, and the offset of each."""
    total = int(np.maximum(cells.lengths, 0).sum(dtype=np.int64))
    require_room(cells, total)
    offsets = np.empty(len(cells) + 1, np.int32)
    data = np.empty(total, np.uint8)
    _copy(cells.buffer, cells.offsets, cells.lengths, offsets, data)
    return offsets, data


def _first_not_utf8(cells: Cells) -> int:
    for at in range(len(cells)):
        try:
            if cells.lengths[at] >= 0:
                cells.raw(at).decode()
        except UnicodeDecodeError:
            return at
    return 0


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


@kernel
def _versioned(buffer: Bytes, offsets: Longs, lengths: Ints) -> Any:
    for i in range(len(offsets)):
        if lengths[i] >= 0 and (lengths[i] == 0 or buffer[offsets[i]] != 1):
            return i
    return OK


@kernel
def _chars(buffer: Bytes, offsets: Longs, lengths: Ints, starts: Ints, out: Bytes) -> Any:
    at = 0
    for i in range(len(offsets)):
        starts[i] = at
        if lengths[i] < 0:
            continue
        if lengths[i] != 1:
            return i
        value = buffer[offsets[i]]
        if value >= 128:
            out[at] = 92
            out[at + 1] = 48 + (value >> 6)
            out[at + 2] = 48 + (value >> 3 & 7)
            out[at + 3] = 48 + (value & 7)
            at += 4
        elif value != 0:
            out[at] = value
            at += 1
    starts[len(offsets)] = at
    return OK


@kernel
def _uuids(buffer: Bytes, offsets: Longs, lengths: Ints, starts: Ints, out: Bytes) -> Any:
    at = 0
    for i in range(len(offsets)):
        starts[i] = at
        if lengths[i] < 0:
            continue
        if lengths[i] != 16:
            return i
        for k in range(16):
            if k == 4 or k == 6 or k == 8 or k == 10:
                out[at] = 45
                at += 1
            value = buffer[offsets[i] + k]
            high, low = value >> 4, value & 15
            out[at] = high + (48 if high < 10 else 87)
            out[at + 1] = low + (48 if low < 10 else 87)
            at += 2
    starts[len(offsets)] = at
    return OK


@kernel
def _nibble(char: int) -> Any:
    if 48 <= char <= 57:
        return char - 48
    if 97 <= char <= 102:
        return char - 87
    return -1


@kernel
def _uuid_texts(buffer: Bytes, offsets: Longs, lengths: Ints) -> Any:
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        if lengths[i] != 36:
            return i
        for k in range(36):
            char = np.int64(buffer[offsets[i] + k])
            if k == 8 or k == 13 or k == 18 or k == 23:
                if char != 45:
                    return i
            elif _nibble(char) < 0:
                return i
    return OK


@kernel
def _unhex(buffer: Bytes, offsets: Longs, lengths: Ints, starts: Ints, out: Bytes) -> Any:
    for i in range(len(offsets)):
        length = lengths[i]
        if length < 0:
            continue
        at = offsets[i]
        if length < 2 or length % 2 or buffer[at] != 92 or buffer[at + 1] != 120:
            return i
        for k in range(length // 2 - 1):
            high = _nibble(np.int64(buffer[at + 2 + 2 * k]))
            low = _nibble(np.int64(buffer[at + 3 + 2 * k]))
            if high < 0 or low < 0:
                return i
            out[starts[i] + k] = high << 4 | low
    return OK
