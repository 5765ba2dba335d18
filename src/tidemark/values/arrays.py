r"""Arrays of decoded types: to lists if possible, otherwise to PostgreSQL's text.

    binary  int32 dimensions, int32 has nulls, oid of the element type, then int32 length and int32 lower bound for each
            dimension, then the elements: int32 length (-1 is NULL) and bytes
    text    {1,NULL,"a \"quoted\" one"}; {{…},{…}} with more dimensions, [2:3]={…} with other lower bounds

A list has one dimension and lower bound 1, or is empty. Any other array, and an array with an element that Arrow cannot
represent, is stored in the text fallback.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.values.cells import NULL, Cells, DecodedColumn, validity
from tidemark.values.failure import bad_value, require_good, text_or_bad
from tidemark.values.kernels import OK, Bytes, Flags, Ints, Longs, int32_at, kernel, read_only
from tidemark.values.text import as_strings

Decode = Callable[[Cells, bool], DecodedColumn]
TextOf = Callable[[bytes], str]


def array(cells: Cells, binary: bool, element: Decode, element_oid: int, text_of: TextOf) -> DecodedColumn:
    """An array column to a list column; `text_of` formats one binary element as text."""
    counts = np.zeros(len(cells), np.int64)
    strange = np.zeros(len(cells), np.bool_)
    flatten = partial(_flatten_binary, element_oid=element_oid) if binary else _flatten_text
    offsets, inner = flatten(cells, counts, strange)
    child = element(inner, binary)
    if child.exact is not None:
        parents = np.searchsorted(offsets, np.flatnonzero(child.exact.is_valid()), side="right") - 1
        strange[parents] = True
        plain = np.where(strange, np.int32(NULL), cells.lengths)
        counts[strange] = 0
        offsets, inner = flatten(Cells(cells.buffer, cells.offsets, plain), counts, np.zeros_like(strange))
        child = element(inner, binary)
    bitmap, nulls = validity(cells.lengths, strange)
    buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32))]
    kind = pa.list_(pa.field("element", child.array.type))
    listed = pa.Array.from_buffers(kind, len(cells), buffers, null_count=nulls, children=[child.array])
    return DecodedColumn(listed, _exact(cells, strange, binary, text_of))


def _exact(cells: Cells, strange: Flags, binary: bool, text_of: TextOf) -> pa.StringArray | None:
    if not strange.any():
        return None
    if not binary:
        return as_strings("array", cells.where(strange))
    texts = [_array_text(cells, at, text_of) if strange[at] else None for at in range(len(cells))]
    return pa.array(texts, pa.string())


def _flatten_binary(cells: Cells, counts: Longs, strange: Flags, element_oid: int) -> tuple[Longs, Cells]:
    require_good(
        "array", cells, _count_binary(cells.buffer, cells.offsets, cells.lengths, element_oid, counts, strange)
    )
    offsets = np.zeros(len(cells) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    begin, length = np.empty(offsets[-1], np.int64), np.empty(offsets[-1], np.int32)
    bad = _place_binary(cells.buffer, cells.offsets, cells.lengths, counts, strange, offsets, begin, length)
    require_good("array", cells, bad)
    return offsets, Cells(cells.buffer, begin, length)


def _flatten_text(cells: Cells, counts: Longs, strange: Flags) -> tuple[Longs, Cells]:
    require_good("array", cells, _count_text(cells.buffer, cells.offsets, cells.lengths, counts, strange))
    offsets = np.zeros(len(cells) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    begin, length = np.empty(offsets[-1], np.int64), np.empty(offsets[-1], np.int32)
    scratch = np.empty(int(np.maximum(cells.lengths, 0).sum(dtype=np.int64)), np.uint8)
    bad = _place_text(cells.buffer, cells.offsets, cells.lengths, counts, strange, offsets, begin, length, scratch)
    require_good("array", cells, bad)
    return offsets, Cells(read_only(scratch), begin, length)


@kernel
def _count_binary(buffer: Bytes, offsets: Longs, lengths: Ints, element_oid: int, counts: Longs, strange: Flags) -> Any:
    for i in range(len(offsets)):
        counts[i] = 0
        if lengths[i] < 0:
            continue
        at = offsets[i]
        if lengths[i] < 12:
            return i
        dimensions, flags = int32_at(buffer, at), int32_at(buffer, at + 4)
        if dimensions < 0 or dimensions > 6 or flags < 0 or flags > 1 or lengths[i] < 12 + 8 * dimensions:
            return i
        if int32_at(buffer, at + 8) & 0xFFFFFFFF != element_oid:
            return i
        if dimensions == 0:
            if lengths[i] != 12:
                return i
        elif dimensions == 1 and int32_at(buffer, at + 16) == 1:
            count = int32_at(buffer, at + 12)
            if count < 0 or count > (lengths[i] - 20) // 4:  # bounded by the size of the value
                return i
            counts[i] = count
        else:
            strange[i] = True
    return OK


@kernel
def _place_binary(
    buffer: Bytes,
    offsets: Longs,
    lengths: Ints,
    counts: Longs,
    strange: Flags,
    starts: Longs,
    begin: Longs,
    length: Ints,
) -> Any:
    for i in range(len(offsets)):
        if lengths[i] < 0 or strange[i] or int32_at(buffer, offsets[i]) == 0:
            continue
        at, end = offsets[i] + 20, offsets[i] + lengths[i]
        for k in range(starts[i], starts[i] + counts[i]):
            if at + 4 > end:
                return i
            size = int32_at(buffer, at)
            at += 4
            if size < -1 or size > end - at:
                return i
            begin[k] = at
            length[k] = size
            at += max(size, 0)
        if at != end:
            return i
    return OK


@kernel
def _count_text(buffer: Bytes, offsets: Longs, lengths: Ints, counts: Longs, strange: Flags) -> Any:
    """Count the elements of plain lists and mark other arrays, whose braces and quotes must be balanced."""
    for i in range(len(offsets)):
        counts[i] = 0
        if lengths[i] < 0:
            continue
        at, end = offsets[i], offsets[i] + lengths[i]
        bounded = at < end and buffer[at] == 91  # [
        while bounded and at < end and buffer[at] != 61:  # =
            at += 1
        at += bounded
        if end - at < 2 or buffer[at] != 123 or buffer[end - 1] != 125:
            return i
        depth, deepest, commas, quoted = 0, 0, 0, False
        while at < end:
            char = buffer[at]
            if quoted:
                at += char == 92
                quoted = char != 34
            elif char == 34:
                quoted = True
            elif char == 123:
                depth += 1
                deepest = max(deepest, depth)
            elif char == 125:
                depth -= 1
                if depth == 0 and at != end - 1:
                    return i
            elif char == 44:
                commas += 1
            at += 1
        if quoted or depth != 0 or at != end:
            return i
        if bounded or deepest > 1:
            strange[i] = True
        elif lengths[i] > 2:
            counts[i] = commas + 1
    return OK


@kernel
def _is_null(buffer: Bytes, at: int, end: int) -> Any:
    return end - at == 4 and buffer[at] == 78 and buffer[at + 1] == 85 and buffer[at + 2] == 76 and buffer[at + 3] == 76


@kernel
def _place_text(
    buffer: Bytes,
    offsets: Longs,
    lengths: Ints,
    counts: Longs,
    strange: Flags,
    starts: Longs,
    begin: Longs,
    length: Ints,
    scratch: Bytes,
) -> Any:
    to = 0
    for i in range(len(offsets)):
        if lengths[i] < 0 or strange[i] or counts[i] == 0:
            continue
        at, last = offsets[i] + 1, offsets[i] + lengths[i] - 1
        for k in range(starts[i], starts[i] + counts[i]):
            begin[k] = to
            if at < last and buffer[at] == 34:
                at += 1
                while at < last and buffer[at] != 34:
                    at += buffer[at] == 92
                    scratch[to] = buffer[at]
                    to += 1
                    at += 1
                at += 1
                length[k] = to - begin[k]
            else:
                first = at
                while at < last and buffer[at] != 44:
                    if buffer[at] == 92 or buffer[at] == 34:
                        return i
                    scratch[to] = buffer[at]
                    to += 1
                    at += 1
                if at == first:
                    return i
                length[k] = to - begin[k]
                if _is_null(buffer, first, at):
                    length[k] = NULL
                    to = begin[k]
            if at > last or (at < last and buffer[at] != 44):
                return i
            at += 1
        if at != last + 1:
            return i
    return OK


def _array_text(cells: Cells, at: int, text_of: TextOf) -> str:
    """Format one binary array like array_out."""
    raw = cells.raw(at)
    dimensions = struct.unpack_from("!i", raw)[0]
    shape = [struct.unpack_from("!ii", raw, 12 + 8 * d) for d in range(dimensions)]
    total = int(np.prod([size for size, _ in shape], dtype=object))
    if any(size <= 0 for size, _ in shape) or total > len(raw) // 4:
        bad_value("array", cells, at)
    elements, position = [], 12 + 8 * dimensions
    for _ in range(total):
        if position + 4 > len(raw):
            bad_value("array", cells, at)
        (size,) = struct.unpack_from("!i", raw, position)
        position += 4
        if size < -1 or size > len(raw) - position:
            bad_value("array", cells, at)
        elements.append(
            "NULL" if size < 0 else _quoted(text_or_bad("array", cells, at, raw[position : position + size], text_of))
        )
        position += max(size, 0)
    if position != len(raw):
        bad_value("array", cells, at)
    for size, _ in reversed(shape):
        elements = ["{" + ",".join(elements[k : k + size]) + "}" for k in range(0, len(elements), size)]
    bounds = "".join(f"[{low}:{low + size - 1}]" for size, low in shape)
    return (f"{bounds}=" if any(low != 1 for _, low in shape) else "") + elements[0]


def _quoted(text: str) -> str:
    if text and text.upper() != "NULL" and not any(char in '"\\{}, \t\n\r\v\f' for char in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
