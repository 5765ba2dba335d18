"""bool, int2, int4, int8 and oid.

binary  bool: one byte, 0 or 1; the others big-endian, signed except oid
text    t or f; decimal digits with an optional minus sign
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.values.cells import Cells, DecodedColumn, fixed, present, same_width, validity, values_of, written
from tidemark.values.failure import require_good
from tidemark.values.kernels import OK, Bytes, Ints, Longs, be16, be32, be64, kernel, put_number

_MOST_DIGITS = 20  # of an int64, with its sign


def boolean(cells: Cells, binary: bool) -> DecodedColumn:
    """Bool to Arrow bool."""
    out = np.zeros(len(cells), np.bool_)
    require_good("bool", cells, _bool(cells.buffer, cells.offsets, cells.lengths, binary, out))
    bitmap, nulls = validity(cells.lengths)
    bits = pa.py_buffer(np.packbits(out, bitorder="little"))
    return DecodedColumn(pa.Array.from_buffers(pa.bool_(), len(cells), [bitmap, bits], null_count=nulls))


def int2(cells: Cells, binary: bool) -> DecodedColumn:
    """int2 to int16."""
    return _integer("int2", cells, binary, np.int16, pa.int16())


def int4(cells: Cells, binary: bool) -> DecodedColumn:
    """int4 to int32."""
    return _integer("int4", cells, binary, np.int32, pa.int32())


def int8(cells: Cells, binary: bool) -> DecodedColumn:
    """int8 to int64."""
    return _integer("int8", cells, binary, np.int64, pa.int64())


def oid(cells: Cells, binary: bool) -> DecodedColumn:
    """oid, which is unsigned, to int64: Spark and Delta have no unsigned types."""
    out = np.zeros(len(cells), np.int64)
    if binary:
        bad = _unsigned(cells.buffer, cells.offsets, cells.lengths, out)
    else:
        bad = _decimal(cells.buffer, cells.offsets, cells.lengths, 0, 2**32 - 1, out)
    require_good("oid", cells, bad)
    return DecodedColumn(fixed(pa.int64(), out, cells.lengths))


def boolean_text(array: pa.Array) -> Cells:
    """Bool to t or f."""
    flags = array.fill_null(False).to_numpy(zero_copy_only=False)
    return same_width(np.where(flags, np.uint8(116), np.uint8(102)), present(array))


def boolean_binary(array: pa.Array) -> Cells:
    """Bool to one byte."""
    return same_width(array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8), present(array))


def integer_text(array: pa.Array) -> Cells:
    """Signed integers of any width to decimal digits."""
    values = values_of(array, f"i{array.type.bit_width // 8}").astype(np.int64)
    cells, _ = written(_digits, present(array), _MOST_DIGITS * len(array), values)
    return cells


def integer_binary(array: pa.Array) -> Cells:
    """int2, int4 and int8 to big-endian integers."""
    width = array.type.bit_width // 8
    return same_width(values_of(array, f"i{width}").astype(f">i{width}"), present(array))


def oid_binary(array: pa.Array) -> Cells:
    """Int64 to oid; the upper half of a valid oid is zero."""
    return same_width(values_of(array, np.int64).astype(">u4"), present(array))


def big_endian(cells: Cells, out: Any) -> int:
    """Fill `out` with integers of its item size; return the index of the first cell of another length, or OK."""
    bad: int = _WIDTHS[out.dtype.itemsize](cells.buffer, cells.offsets, cells.lengths, out)
    return bad


def _integer(name: str, cells: Cells, binary: bool, dtype: Any, kind: pa.DataType) -> DecodedColumn:
    out = np.zeros(len(cells), dtype)
    if binary:
        bad = big_endian(cells, out)
    else:
        limits = np.iinfo(dtype)
        bad = _decimal(cells.buffer, cells.offsets, cells.lengths, limits.min, limits.max, out)
    require_good(name, cells, bad)
    return DecodedColumn(fixed(kind, out, cells.lengths))


@kernel
def _bool(buffer: Bytes, offsets: Longs, lengths: Ints, binary: bool, out: Any) -> Any:
    yes, no = (1, 0) if binary else (116, 102)  # t, f
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        if lengths[i] != 1:
            return i
        value = buffer[offsets[i]]
        if value != yes and value != no:
            return i
        out[i] = value == yes
    return OK


@kernel
def _int16(buffer: Bytes, offsets: Longs, lengths: Ints, out: Any) -> Any:
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        if lengths[i] != 2:
            return i
        out[i] = np.int16(be16(buffer, offsets[i]))
    return OK


@kernel
def _int32(buffer: Bytes, offsets: Longs, lengths: Ints, out: Any) -> Any:
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        if lengths[i] != 4:
            return i
        out[i] = np.int32(be32(buffer, offsets[i]))
    return OK


@kernel
def _int64(buffer: Bytes, offsets: Longs, lengths: Ints, out: Any) -> Any:
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        if lengths[i] != 8:
            return i
        out[i] = np.int64(be64(buffer, offsets[i]))
    return OK


_WIDTHS = {2: _int16, 4: _int32, 8: _int64}


@kernel
def _unsigned(buffer: Bytes, offsets: Longs, lengths: Ints, out: Longs) -> Any:
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        if lengths[i] != 4:
            return i
        out[i] = np.int64(be32(buffer, offsets[i]))
    return OK


@kernel
def _decimal(buffer: Bytes, offsets: Longs, lengths: Ints, low: int, high: int, out: Any) -> Any:
    """Parse integers within [low, high]. Accumulates negatively, because the int64 range is larger below zero."""
    for i in range(len(offsets)):
        if lengths[i] < 0:
            continue
        at, end = offsets[i], offsets[i] + lengths[i]
        negative = at < end and buffer[at] == 45
        if negative:
            at += 1
        if at >= end or end - at > 19:
            return i
        value = np.int64(0)
        while at < end:
            digit = np.int64(buffer[at]) - 48
            if digit < 0 or digit > 9 or value < -922337203685477580:
                return i
            value *= 10
            if value < -9223372036854775807 - 1 + digit:
                return i
            value -= digit
            at += 1
        if negative:
            if value < low:
                return i
            out[i] = value
        else:
            if value < -high:
                return i
            out[i] = -value
    return OK


@kernel
def _digits(values: Longs, offsets: Longs, lengths: Ints, out: Bytes) -> Any:
    at = 0
    for i in range(len(values)):
        offsets[i] = at
        if lengths[i] < 0:
            continue
        size = np.uint64(values[i])
        if values[i] < 0:
            size = np.uint64(0) - size
            out[at] = 45
            at += 1
        at = put_number(out, at, size, 1)
        lengths[i] = at - offsets[i]
    return OK
