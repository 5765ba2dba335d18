"""The bucket of every row of a batch: Spark's xxhash64 over the cells of its key, compiled.

Values are hashed as in Spark: types of 32 or 64 bits by these bits, decimals of more than 18 digits and texts by their
bytes. A null leaves the hash unchanged. Nested types are not hashed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.values.kernels import Bytes, Flags, Ints, Longs, kernel

Hashes: TypeAlias = npt.NDArray[np.uint64]

SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(0x9E3779B185EBCA87),
    np.uint64(0xC2B2AE3D27D4EB4F),
    np.uint64(0x165667B19E3779F9),
    np.uint64(0x85EBCA77C2B2AE63),
    np.uint64(0x27D4EB2F165667C5),
)
_LONG_DIGITS = 18
_ONE, _FOUR, _EIGHT, _THIRTY_TWO = np.uint64(1), np.uint64(4), np.uint64(8), np.uint64(0xFFFFFFFF)


def can_hash(kind: pa.DataType) -> bool:
    """Whether values of this type can be hashed here."""
    return not pa.types.is_nested(kind)


def buckets_of(cells: Sequence[pa.Array], buckets: int) -> Ints:
    """The bucket of every row."""
    hashes = np.full(len(cells[0]), SEED, np.uint64)
    for cell in cells:
        _mix(hashes, cell)
    found: Ints = np.mod(hashes.view(np.int64), buckets).astype(np.int32)
    return found


def by_bucket(buckets: Ints, count: int) -> tuple[Longs, Longs]:
    """The row numbers ordered by bucket, and the offset of each bucket in them; the last offset is the end."""
    borders = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(buckets, minlength=count), out=borders[1:])
    return _placed(buckets, borders[:-1].copy()), borders


def _mix(hashes: Hashes, cell: pa.Array) -> None:
    kind = cell.type
    valid = cell.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        _, offsets, data = cell.buffers()
        starts = np.frombuffer(offsets, np.int32)[cell.offset : cell.offset + len(cell) + 1].astype(np.int64)
        _mix_texts(hashes, np.frombuffer(data or b"", np.uint8), starts, valid)
    elif pa.types.is_decimal(kind):
        words = np.frombuffer(cell.buffers()[1], np.int64).reshape(-1, 2)[cell.offset : cell.offset + len(cell)]
        if kind.precision <= _LONG_DIGITS:
            _mix_longs(hashes, np.ascontiguousarray(words[:, 0]), valid)
        else:
            _mix_decimals(hashes, np.ascontiguousarray(words), valid)
    elif kind.bit_width == 64:
        _mix_longs(hashes, _bits(cell, np.float64, np.int64), valid)
    else:
        _mix_ints(hashes, _bits(cell, np.float32, np.int32).astype(np.int64), valid)


def _bits(cell: pa.Array, floating: type, integer: type) -> Any:
    """The values as integers, with every zero and every NaN in the one form that Java hashes."""
    if pa.types.is_floating(cell.type):
        values: Any = np.array(cell.fill_null(0.0), floating)
        values[values == 0] = 0.0
        values[np.isnan(values)] = np.nan
        return values.view(integer)
    if pa.types.is_boolean(cell.type):
        return np.asarray(cell.cast(pa.int8()).fill_null(0)).astype(integer)
    plain = cell.view({32: pa.int32(), 64: pa.int64()}.get(cell.type.bit_width, cell.type))
    return np.asarray(plain.fill_null(0)).astype(integer)


@kernel
def _placed(buckets: Ints, next_at: Longs) -> Any:
    order = np.empty(len(buckets), np.int64)
    for row in range(len(buckets)):
        order[next_at[buckets[row]]] = row
        next_at[buckets[row]] += 1
    return order


@kernel
def _rotated(value: Any, by: Any) -> Any:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


@kernel
def _finished(value: Any) -> Any:
    value = (value ^ (value >> np.uint64(33))) * _P2
    value = (value ^ (value >> np.uint64(29))) * _P3
    return value ^ (value >> np.uint64(32))


@kernel
def _with_long(value: Any, word: Any) -> Any:
    return _rotated(value ^ (_rotated(word * _P2, 31) * _P1), 27) * _P1 + _P4


@kernel
def _with_int(value: Any, word: Any) -> Any:
    return _rotated(value ^ (word * _P1), 23) * _P2 + _P3


@kernel
def _mix_longs(hashes: Hashes, values: Longs, valid: Flags) -> None:
    for row in range(len(hashes)):
        if valid[row]:
            hashes[row] = _finished(_with_long(hashes[row] + _P5 + _EIGHT, np.uint64(values[row])))


@kernel
def _mix_ints(hashes: Hashes, values: Longs, valid: Flags) -> None:
    for row in range(len(hashes)):
        if valid[row]:
            word = np.uint64(values[row]) & _THIRTY_TWO
            hashes[row] = _finished(_with_int(hashes[row] + _P5 + _FOUR, word))


@kernel
def _mix_texts(hashes: Hashes, data: Bytes, starts: Longs, valid: Flags) -> None:
    for row in range(len(hashes)):
        if valid[row]:
            hashes[row] = _text(data, starts[row], starts[row + 1], hashes[row])


@kernel
def _mix_decimals(hashes: Hashes, words: Longs, valid: Flags) -> None:
    """Hash decimals as their shortest big-endian two's complement bytes."""
    data = np.empty(16, np.uint8)
    for row in range(len(hashes)):
        if not valid[row]:
            continue
        for at in range(8):
            data[at] = np.uint8((words[row, 1] >> (56 - 8 * at)) & 255)
            data[8 + at] = np.uint8((words[row, 0] >> (56 - 8 * at)) & 255)
        first = 0
        while first < 15:
            sign = data[first + 1] >> 7
            if (data[first] == 0 and sign == 0) or (data[first] == 255 and sign == 1):
                first += 1
            else:
                break
        hashes[row] = _text(data, first, 16, hashes[row])


@kernel
def _long_at(data: Bytes, at: int) -> Any:
    word = np.uint64(0)
    for n in range(8):
        word |= np.uint64(data[at + n]) << np.uint64(8 * n)
    return word


@kernel
def _text(data: Bytes, at: int, end: int, seed: Any) -> Any:
    size = np.uint64(end - at)
    if end - at >= 32:
        a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while end - at >= 32:
            a = _rotated(a + _long_at(data, at) * _P2, 31) * _P1
            b = _rotated(b + _long_at(data, at + 8) * _P2, 31) * _P1
            c = _rotated(c + _long_at(data, at + 16) * _P2, 31) * _P1
            d = _rotated(d + _long_at(data, at + 24) * _P2, 31) * _P1
            at += 32
        value = _rotated(a, 1) + _rotated(b, 7) + _rotated(c, 12) + _rotated(d, 18)
        for lane in (a, b, c, d):
            value = (value ^ (_rotated(lane * _P2, 31) * _P1)) * _P1 + _P4
    else:
        value = seed + _P5
    value += size
    while end - at >= 8:
        value = _with_long(value, _long_at(data, at))
        at += 8
    if end - at >= 4:
        word = np.uint64(0)
        for n in range(4):
            word |= np.uint64(data[at + n]) << np.uint64(8 * n)
        value = _with_int(value, word)
        at += 4
    while at < end:
        value = _rotated(value ^ (np.uint64(data[at]) * _P5), 11) * _P1
        at += 1
    return _finished(value)
