r"""Types that are text: text, varchar, bpchar, name, json, enum labels, and all types stored as PostgreSQL's text.

binary  the same bytes as in text; jsonb has a version byte (1) before them; "char" is one byte
text    UTF-8
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.values.cells import Cells, DecodedColumn, bytes_of, copied, variable, written
from tidemark.values.failure import bad_value, require_good
from tidemark.values.kernels import OK, ONE, TWO, Bytes, Ints, Longs, kernel


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


def bytea_text(array: pa.Array) -> Cells:
    r"""Binary to \x followed by hexadecimal digits."""
    cells = bytes_of(array)
    room = int(np.where(cells.lengths >= 0, 2 + 2 * cells.lengths.astype(np.int64), 0).sum())
    texts, _ = written(_hex, cells.lengths >= 0, room, cells.buffer, cells.offsets, cells.lengths)
    return texts


def as_is(cells: Cells) -> Cells:
    """Convert the text of a type whose binary format has the same bytes."""
    return cells


def parsed_jsonb(cells: Cells) -> Cells:
    """Convert the text of jsonb to binary: the version, then the same text."""
    room = int((cells.lengths.astype(np.int64) + 1).sum())
    found, _ = written(_with_version, cells.lengths >= 0, room, cells.buffer, cells.offsets, cells.lengths)
    return found


def parsed_char(cells: Cells) -> Cells:
    """Convert the text of "char" to one byte."""
    found, bad = written(_bytes, cells.lengths >= 0, len(cells), cells.buffer, cells.offsets, cells.lengths)
    require_good('"char"', cells, bad)
    return found


def parsed_uuid(cells: Cells) -> Cells:
    """Convert the text of uuid to 16 bytes."""
    require_good("uuid", cells, _uuid_texts(cells.buffer, cells.offsets, cells.lengths))
    found, _ = written(_uuid_bytes, cells.lengths >= 0, 16 * len(cells), cells.buffer, cells.offsets)
    return found


def as_strings(name: str, cells: Cells) -> pa.StringArray:
    """Copy the cells' bytes into a string array; bytes that are not valid UTF-8 raise an error."""
    offsets, data = copied(cells)
    array = variable(pa.string(), offsets, data, cells.lengths)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        bad_value(f"{name} in UTF-8", cells, _first_not_utf8(cells))
    return array


def _first_not_utf8(cells: Cells) -> int:
    for at in range(len(cells)):
        try:
            if cells.lengths[at] >= 0:
                cells.raw(at).decode()
        except UnicodeDecodeError:
            return at
    return 0


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
            _put_hex(out, at, buffer[offsets[i] + k])
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


@kernel
def _put_hex(out: Bytes, at: Any, value: Any) -> None:
    high, low = value >> 4, value & 15
    out[at] = high + (48 if high < 10 else 87)
    out[at + 1] = low + (48 if low < 10 else 87)


@kernel
def _hex(buffer: Bytes, starts: Longs, sizes: Ints, offsets: Longs, lengths: Ints, out: Bytes) -> Any:
    at = np.uint64(0)
    for i in range(len(starts)):
        offsets[i] = np.int64(at)
        if lengths[i] < 0:
            continue
        out[at], out[at + ONE] = 92, 120
        at += TWO
        begin = np.uint64(starts[i])
        for k in range(np.uint64(sizes[i])):
            _put_hex(out, at, buffer[begin + np.uint64(k)])
            at += TWO
        lengths[i] = 2 + 2 * sizes[i]
    return OK


@kernel
def _with_version(buffer: Bytes, starts: Longs, sizes: Ints, offsets: Longs, lengths: Ints, out: Bytes) -> Any:
    at = np.uint64(0)
    for i in range(len(starts)):
        offsets[i] = np.int64(at)
        if lengths[i] < 0:
            continue
        out[at] = 1
        at += ONE
        begin = np.uint64(starts[i])
        for k in range(np.uint64(sizes[i])):
            out[at] = buffer[begin + np.uint64(k)]
            at += ONE
        lengths[i] = sizes[i] + 1
    return OK


@kernel
def _bytes(buffer: Bytes, starts: Longs, sizes: Ints, offsets: Longs, lengths: Ints, out: Bytes) -> Any:
    r"""Convert nothing to NUL, one byte to itself, and a backslash and three octal digits to the byte they denote."""
    for i in range(len(starts)):
        offsets[i] = i
        if lengths[i] < 0:
            continue
        value, at = np.int64(0), starts[i]
        if sizes[i] == 4 and buffer[at] == 92:
            for k in range(1, 4):
                value = value * 8 + np.int64(buffer[at + k]) - 48
        elif sizes[i] == 1:
            value = np.int64(buffer[at])
        if sizes[i] not in (0, 1, 4) or not 0 <= value <= 255 or (sizes[i] == 4 and value < 128):
            return i
        out[i] = value
        lengths[i] = 1
    return OK


@kernel
def _uuid_bytes(buffer: Bytes, starts: Longs, offsets: Longs, lengths: Ints, out: Bytes) -> Any:
    at = 0
    for i in range(len(starts)):
        offsets[i] = at
        if lengths[i] < 0:
            continue
        p = starts[i]
        for k in range(16):
            p += k == 4 or k == 6 or k == 8 or k == 10
            out[at + k] = _nibble(np.int64(buffer[p])) << 4 | _nibble(np.int64(buffer[p + 1]))
            p += 2
        at += 16
        lengths[i] = 16
    return OK
