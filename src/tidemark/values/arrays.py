r"""Arrays of decoded types: to lists if possible, otherwise to PostgreSQL's text.

    binary  int32 dimensions, int32 has nulls, oid of the element type, then int32 length and int32 lower bound for each
            dimension, then the elements: int32 length (-1 is NULL) and bytes
    text    {1,NULL,"a \"quoted\" one"}; {{…},{…}} with more dimensions, [2:3]={…} with other lower bounds

A list has one dimension and lower bound 1, or is empty. Any other array, and an array with an element that Arrow cannot
represent, is stored in the text fallback.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.values.cells import NULL, Cells, DecodedColumn, cells_of, present, strings_of, validity, written
from tidemark.values.failure import bad_value, require_good
from tidemark.values.kernels import OK, Bytes, Flags, Ints, Longs, int32_at, kernel, put32, read_only
from tidemark.values.text import as_strings

Decode = Callable[[Cells, bool], DecodedColumn]
Convert = Callable[[Cells], Cells]
_HEADER_BYTES = 20  # of an array with one dimension
_SPACES = b" \t\n\v\f\r"
_ELEMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"|([^",{}\\]+)', re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_QUOTED = np.isin(np.arange(256), np.frombuffer(b'"\\{},' + _SPACES, np.uint8))


def array(cells: Cells, binary: bool, element: Decode, element_oid: int, text_of: Convert) -> DecodedColumn:
    """An array column to a list column; `text_of` converts binary elements to text."""
    counts = np.zeros(len(cells), np.int64)
    strange = np.zeros(len(cells), np.bool_)
    flatten = partial(_flatten_binary, element_oid=element_oid) if binary else _flatten_text
    offsets, inner = flatten(cells, counts, strange)
    child = element(inner, binary)
    if child.fallback is not None:
        parents = np.searchsorted(offsets, np.flatnonzero(child.fallback.is_valid()), side="right") - 1
        strange[parents] = True
        plain = np.where(strange, np.int32(NULL), cells.lengths)
        counts[strange] = 0
        offsets, inner = flatten(Cells(cells.buffer, cells.offsets, plain), counts, np.zeros_like(strange))
        child = element(inner, binary)
    bitmap, nulls = validity(cells.lengths, strange)
    buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32))]
    kind = pa.list_(pa.field("element", child.array.type))
    listed = pa.Array.from_buffers(kind, len(cells), buffers, null_count=nulls, children=[child.array])
    return DecodedColumn(listed, _fallback(cells, strange, binary, text_of))


def _fallback(cells: Cells, strange: Flags, binary: bool, text_of: Convert) -> pa.StringArray | None:
    if not strange.any():
        return None
    if not binary:
        return as_strings("array", cells.where(strange))
    return strings_of(_converted(cells.where(strange), _from_binary, text_of, ShapedArray.text))


def array_text(array: pa.ListArray, text_of: Callable[[pa.Array], Cells]) -> Cells:
    """Lists to text; `text_of` converts the elements."""
    starts, elements = _listed(array), text_of(array.values)
    sizes, quoted = np.empty(len(elements), np.int64), np.empty(len(elements), np.bool_)
    _element_sizes(elements.buffer, elements.offsets, elements.lengths, _QUOTED, sizes, quoted)
    room = int(sizes.sum()) + len(sizes) + 2 * len(array)
    inputs = (starts, elements.buffer, elements.offsets, elements.lengths, quoted)
    cells, _ = written(_list_texts, present(array), room, *inputs)
    return cells


def array_binary(array: pa.ListArray, element_oid: int, binary_of: Callable[[pa.Array], Cells]) -> Cells:
    """Lists to binary; `binary_of` converts the elements."""
    starts, elements = _listed(array), binary_of(array.values)
    room = int(np.maximum(elements.lengths, 0).sum(dtype=np.int64)) + 4 * len(elements) + _HEADER_BYTES * len(array)
    inputs = (starts, elements.buffer, elements.offsets, elements.lengths, element_oid)
    cells, _ = written(_list_bytes, present(array), room, *inputs)
    return cells


def parsed_array(cells: Cells, element_oid: int, binary_of: Convert) -> Cells:
    """Convert the text of arrays of any shape, as in the text fallback, to binary; `binary_of` converts elements."""
    return _converted(cells, _from_text, binary_of, lambda each: each.binary(element_oid))


def reprinted_array(cells: Cells, convert: Convert) -> Cells:
    """Convert the elements in the text of arrays of any shape; `convert` converts their texts."""
    return _converted(cells, _from_text, convert, ShapedArray.text)


def _listed(array: pa.ListArray) -> Longs:
    """Return the offsets of the lists in `array.values`."""
    if not len(array):
        return np.zeros(1, np.int64)
    found = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    return found.astype(np.int64)


@dataclass(frozen=True, slots=True)
class ShapedArray:
    """One array of any shape: length and lower bound of each dimension, and its elements, None for NULL."""

    shape: tuple[tuple[int, int], ...]
    elements: list[bytes | None]

    def text(self) -> bytes:
        """Format it like array_out; the elements are texts."""
        if not self.shape:
            return b"{}"
        parts = [b"NULL" if each is None else _in_quotes(each) for each in self.elements]
        for size, _ in reversed(self.shape):
            parts = [b"{" + b",".join(parts[k : k + size]) + b"}" for k in range(0, len(parts), size)]
        bounds = "".join(f"[{low}:{low + size - 1}]" for size, low in self.shape)
        return (f"{bounds}=".encode() if any(low != 1 for _, low in self.shape) else b"") + parts[0]

    def binary(self, element_oid: int) -> bytes:
        """Format it like array_send; the elements are binary."""
        head = struct.pack("!iiI", len(self.shape), None in self.elements, element_oid)
        bounds = (struct.pack("!ii", size, low) for size, low in self.shape)
        values = (b"\xff" * 4 if each is None else struct.pack("!i", len(each)) + each for each in self.elements)
        return b"".join([head, *bounds, *values])


def _converted(
    cells: Cells,
    read: Callable[[Cells, int], ShapedArray],
    convert: Convert,
    write: Callable[[ShapedArray], bytes],
) -> Cells:
    """Read arrays one at a time, convert the elements of all of them at once, and write the arrays."""
    arrays = [read(cells, at) if cells.lengths[at] >= 0 else None for at in range(len(cells))]
    inner = cells_of([each for found in arrays if found is not None for each in found.elements])
    converted = convert(inner)
    elements = iter([converted.raw(at) if converted.lengths[at] >= 0 else None for at in range(len(converted))])
    whole = [
        None if found is None else write(ShapedArray(found.shape, [next(elements) for _ in found.elements]))
        for found in arrays
    ]
    return cells_of(whole)


def _in_quotes(text: bytes) -> bytes:
    if text and text.upper() != b"NULL" and not any(_QUOTED[char] for char in text):
        return text
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def _from_binary(cells: Cells, at: int) -> ShapedArray:
    raw = cells.raw(at)
    dimensions = struct.unpack_from("!i", raw)[0]
    shape = tuple(struct.unpack_from("!ii", raw, 12 + 8 * d) for d in range(dimensions))
    total = math.prod(size for size, _ in shape)
    if any(size <= 0 for size, _ in shape) or total > len(raw) // 4:
        bad_value("array", cells, at)
    elements: list[bytes | None] = []
    position = 12 + 8 * dimensions
    for _ in range(total):
        if position + 4 > len(raw):
            bad_value("array", cells, at)
        (size,) = struct.unpack_from("!i", raw, position)
        position += 4
        if size < -1 or size > len(raw) - position:
            bad_value("array", cells, at)
        elements.append(None if size < 0 else raw[position : position + size])
        position += max(size, 0)
    if position != len(raw):
        bad_value("array", cells, at)
    return ShapedArray(shape, elements)


def _from_text(cells: Cells, at: int) -> ShapedArray:
    raw = cells.raw(at)
    bounds, _, body = raw.partition(b"=") if raw.startswith(b"[") else (b"", b"", raw)
    lows = [int(part.split(b":")[0]) for part in bounds[1:-1].split(b"][")] if bounds else [1] * 6
    sizes, elements = [0] * 6, list[bytes | None]()
    deepest = _read_elements(body, sizes, elements)
    if deepest is None:
        bad_value("array", cells, at)
    shape = tuple(zip(sizes[:deepest], lows, strict=False)) if elements else ()
    if shape and (len(shape) < deepest or math.prod(size for size, _ in shape) != len(elements)):
        bad_value("array", cells, at)
    return ShapedArray(shape, elements)


def _read_elements(body: bytes, sizes: list[int], elements: list[bytes | None]) -> int | None:
    """Read {…} into elements, and the length of each dimension; return the number of dimensions, None if malformed.

    The length of a dimension is the number of its parts: commas of that depth since the brace was opened, and one.
    """
    depth, deepest, at = 0, 0, 0
    counts = [0] * (len(sizes) + 1)
    while at < len(body):
        char = body[at : at + 1]
        if char == b"{":
            depth += 1
            if depth > len(sizes):
                return None
            deepest, counts[depth] = max(deepest, depth), 1
        elif char == b"}":
            sizes[depth - 1] = counts[depth]
            depth -= 1
        elif char == b",":
            counts[depth] += 1
        else:
            found = _ELEMENT.match(body, at)
            if found is None or depth == 0:
                return None
            quoted, plain = found.groups()
            elements.append(_ESCAPED.sub(rb"\1", quoted) if plain is None else None if plain == b"NULL" else plain)
            at = found.end() - 1
        at += 1
    return deepest if depth == 0 else None


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


@kernel
def _element_sizes(buffer: Bytes, offsets: Longs, lengths: Ints, special: Flags, sizes: Longs, quoted: Flags) -> None:
    """Compute the size of each element in the text of an array, and whether it is quoted."""
    for i in range(len(offsets)):
        if lengths[i] < 0:
            quoted[i] = False
            sizes[i] = 4
            continue
        begin, size = np.uint64(offsets[i]), np.uint64(lengths[i])
        quote, escapes = lengths[i] == 0, 0
        for k in range(size):
            char = buffer[begin + np.uint64(k)]
            quote |= special[char]
            escapes += char == 34 or char == 92
        if lengths[i] == 4 and not quote:
            quote = True
            for k, char in enumerate((78, 85, 76, 76)):
                quote &= buffer[offsets[i] + k] & 0xDF == char
        quoted[i] = quote
        sizes[i] = lengths[i] + escapes + (2 if quote else 0)


@kernel
def _list_texts(
    starts: Longs,
    buffer: Bytes,
    begins: Longs,
    sizes: Ints,
    quoted: Flags,
    offsets: Longs,
    lengths: Ints,
    out: Bytes,
) -> Any:
    at = 0
    for i in range(len(offsets)):
        offsets[i] = at
        if lengths[i] < 0:
            continue
        out[at] = 123
        at += 1
        for k in range(starts[i], starts[i + 1]):
            if k > starts[i]:
                out[at] = 44
                at += 1
            if sizes[k] < 0:
                out[at], out[at + 1], out[at + 2], out[at + 3] = 78, 85, 76, 76
                at += 4
                continue
            if quoted[k]:
                out[at] = 34
                at += 1
            for p in range(begins[k], begins[k] + sizes[k]):
                char = buffer[p]
                if char == 34 or char == 92:
                    out[at] = 92
                    at += 1
                out[at] = char
                at += 1
            if quoted[k]:
                out[at] = 34
                at += 1
        out[at] = 125
        at += 1
        lengths[i] = at - offsets[i]
    return OK


@kernel
def _list_bytes(
    starts: Longs,
    buffer: Bytes,
    begins: Longs,
    sizes: Ints,
    element_oid: int,
    offsets: Longs,
    lengths: Ints,
    out: Bytes,
) -> Any:
    at = 0
    for i in range(len(offsets)):
        offsets[i] = at
        if lengths[i] < 0:
            continue
        count, nulls = starts[i + 1] - starts[i], 0
        for k in range(starts[i], starts[i + 1]):
            nulls |= sizes[k] < 0
        at = put32(out, put32(out, put32(out, at, min(count, 1)), nulls), element_oid)
        if count > 0:
            at = put32(out, put32(out, at, count), 1)
        for k in range(starts[i], starts[i + 1]):
            at = put32(out, at, sizes[k])
            for p in range(begins[k], begins[k] + sizes[k]):
                out[at] = buffer[p]
                at += 1
        lengths[i] = at - offsets[i]
    return OK
