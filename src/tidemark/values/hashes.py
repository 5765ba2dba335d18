"""Hashes of values: Spark's `xxhash64` and PostgreSQL's `hashtextextended`. Pure.

Each equals the hash of its engine bit by bit: a row's bucket in the lake is the one that Spark computes, and the hash
of a text is the one that PostgreSQL computes. Both are vectorized and compiled. `xxhash64` also has a form for a single
key, which a process that reads one row uses: the first call of a compiled function takes longer than the read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.values.kernels import Bytes, Flags, Ints, Longs, kernel, le32, le64

Hashes64: TypeAlias = npt.NDArray[np.uint64]

SEED = 42  # Spark's
PRIMES = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5  # XXH64's
_P1, _P2, _P3, _P4, _P5 = map(np.uint64, PRIMES)
_MASK = (1 << 64) - 1
_START = np.uint32(0x9E3779B9 + 3923095)  # PostgreSQL's
_LONG_DIGITS = 18
_FOUR, _EIGHT, _LOW_HALF = np.uint64(4), np.uint64(8), np.uint64(0xFFFFFFFF)


def can_hash(kind: pa.DataType) -> bool:
    """Return whether `spark_hashes` accepts this type: nested types are not hashed."""
    return not pa.types.is_nested(kind)


def spark_hashes(cells: Sequence[pa.Array]) -> Longs:
    """Return Spark's `xxhash64` over the cells of each row.

    Types of 32 or 64 bits are hashed by these bits, decimals of more than 18 digits and texts by their bytes. A null
    leaves the hash unchanged.
    """
    hashes = np.full(len(cells[0]), SEED, np.uint64)
    for cell in cells:
        _mix(hashes, cell)
    return hashes.view(np.int64)


def spark_hash(key: Sequence[tuple[pa.DataType, int | str]]) -> int:
    """Return Spark's `xxhash64` of one key: integers and texts, in order, with their stored types."""
    hashed = SEED
    for kind, value in key:
        if isinstance(value, str):
            hashed = _xxh64(value.encode(), hashed)
        else:
            width = 8 if kind == pa.int64() else 4
            hashed = _xxh64((value & ((1 << 8 * width) - 1)).to_bytes(width, "little"), hashed)
    return hashed - (1 << 64) if hashed >> 63 else hashed


def buckets_of(cells: Sequence[pa.Array], buckets: int) -> Ints:
    """Return the bucket of each row: its hash modulo the number of buckets."""
    found: Ints = np.mod(spark_hashes(cells), buckets).astype(np.int32)
    return found


def text_hashes(texts: pa.Array) -> Longs:
    """Return PostgreSQL's `hashtextextended(text collate "C", 0)` of each text."""
    texts = texts.cast(pa.large_string())
    _, offsets, data = texts.buffers()
    starts = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    found: Longs = _text_hashes(np.frombuffer(data if data is not None else b"", np.uint8), starts)
    return found


def _mix(hashes: Hashes64, cell: pa.Array) -> None:
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
        _mix_longs(hashes, value_bits(cell, np.float64, np.int64), valid)
    else:
        _mix_ints(hashes, value_bits(cell, np.float32, np.int32).astype(np.int64), valid)


def value_bits(cell: pa.Array, floating: type, integer: type) -> Any:
    """Return the values as integers, with every zero and every NaN in the one form that Java hashes."""
    if pa.types.is_floating(cell.type):
        values: Any = np.array(cell.fill_null(0.0), floating)
        values[values == 0] = 0.0
        values[np.isnan(values)] = np.nan
        return values.view(integer)
    if pa.types.is_boolean(cell.type):
        return np.asarray(cell.cast(pa.int8()).fill_null(0)).astype(integer)
    plain = cell.view({32: pa.int32(), 64: pa.int64()}.get(cell.type.bit_width, cell.type))
    return np.asarray(plain.fill_null(0)).astype(integer)


def _xxh64(data: bytes, seed: int) -> int:
    """XXH64 as its specification defines it."""
    p1, p2, _, p4, p5 = PRIMES
    lanes, at = [seed + p1 + p2, seed + p2, seed, seed - p1], 0
    while len(data) - at >= 32:
        lanes = [_round(lane, _word(data, at + 8 * n)) for n, lane in enumerate(lanes)]
        at += 32
    if at:
        result = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            result = ((result ^ _round(0, lane)) * p1 + p4) & _MASK
    else:
        result = seed + p5
    return _finished(data, at, (result + len(data)) & _MASK)


def _finished(data: bytes, at: int, result: int) -> int:
    p1, p2, p3, p4, p5 = PRIMES
    while len(data) - at >= 8:
        result = (_rotated(result ^ _round(0, _word(data, at)), 27) * p1 + p4) & _MASK
        at += 8
    if len(data) - at >= 4:
        four = int.from_bytes(data[at : at + 4], "little")
        result = (_rotated(result ^ (four * p1 & _MASK), 23) * p2 + p3) & _MASK
        at += 4
    for byte in data[at:]:
        result = _rotated(result ^ (byte * p5 & _MASK), 11) * p1 & _MASK
    for shift, factor in ((33, p2), (29, p3)):
        result = (result ^ (result >> shift)) * factor & _MASK
    return result ^ (result >> 32)


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * PRIMES[1]) & _MASK, 31) * PRIMES[0] & _MASK


def _rotated(value: int, by: int) -> int:
    value &= _MASK
    return (value << by | value >> (64 - by)) & _MASK


@kernel
def rotated64(value: Any, by: Any) -> Any:
    """Rotate 64 bits to the left."""
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


@kernel
def _finished64(value: Any) -> Any:
    value = (value ^ (value >> np.uint64(33))) * _P2
    value = (value ^ (value >> np.uint64(29))) * _P3
    return value ^ (value >> np.uint64(32))


@kernel
def _with_long(value: Any, word: Any) -> Any:
    return rotated64(value ^ (rotated64(word * _P2, 31) * _P1), 27) * _P1 + _P4


@kernel
def _with_int(value: Any, word: Any) -> Any:
    return rotated64(value ^ (word * _P1), 23) * _P2 + _P3


@kernel
def _mix_longs(hashes: Hashes64, values: Longs, valid: Flags) -> None:
    for row in range(len(hashes)):
        if valid[row]:
            hashes[row] = _finished64(_with_long(hashes[row] + _P5 + _EIGHT, np.uint64(values[row])))


@kernel
def _mix_ints(hashes: Hashes64, values: Longs, valid: Flags) -> None:
    for row in range(len(hashes)):
        if valid[row]:
            word = np.uint64(values[row]) & _LOW_HALF
            hashes[row] = _finished64(_with_int(hashes[row] + _P5 + _FOUR, word))


@kernel
def _mix_texts(hashes: Hashes64, data: Bytes, starts: Longs, valid: Flags) -> None:
    for row in range(len(hashes)):
        if valid[row]:
            hashes[row] = _xxhash64(data, starts[row], starts[row + 1], hashes[row])


@kernel
def _mix_decimals(hashes: Hashes64, words: Longs, valid: Flags) -> None:
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
        hashes[row] = _xxhash64(data, first, 16, hashes[row])


@kernel
def _xxhash64(data: Bytes, at: int, end: int, seed: Any) -> Any:
    size = np.uint64(end - at)
    if end - at >= 32:
        a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while end - at >= 32:
            a = rotated64(a + le64(data, at) * _P2, 31) * _P1
            b = rotated64(b + le64(data, at + 8) * _P2, 31) * _P1
            c = rotated64(c + le64(data, at + 16) * _P2, 31) * _P1
            d = rotated64(d + le64(data, at + 24) * _P2, 31) * _P1
            at += 32
        value = rotated64(a, 1) + rotated64(b, 7) + rotated64(c, 12) + rotated64(d, 18)
        for lane in (a, b, c, d):
            value = (value ^ (rotated64(lane * _P2, 31) * _P1)) * _P1 + _P4
    else:
        value = seed + _P5
    value += size
    while end - at >= 8:
        value = _with_long(value, le64(data, at))
        at += 8
    if end - at >= 4:
        value = _with_int(value, np.uint64(le32(data, at)))
        at += 4
    while at < end:
        value = rotated64(value ^ (np.uint64(data[at]) * _P5), 11) * _P1
        at += 1
    return _finished64(value)


@kernel
def _text_hashes(data: Bytes, starts: Longs) -> Any:
    found = np.empty(len(starts) - 1, np.int64)
    for row in range(len(found)):
        found[row] = _hash_bytes_extended(data, np.uint64(starts[row]), np.uint64(starts[row + 1]))
    return found


@kernel
def _hash_bytes_extended(data: Bytes, at: Any, end: Any) -> Any:
    """`hash_bytes_extended` of PostgreSQL's hashfn.c, with seed 0."""
    a = b = c = np.uint32(_START + np.uint32(end - at))
    while end - at >= np.uint64(12):
        a, b, c = _mixed32(
            np.uint32(a + le32(data, at)),
            np.uint32(b + le32(data, at + np.uint64(4))),
            np.uint32(c + le32(data, at + np.uint64(8))),
        )
        at += np.uint64(12)
    left = np.int64(end - at)
    for n in range(left):
        byte = np.uint32(data[at + np.uint64(n)])
        if n < 4:
            a = np.uint32(a + (byte << np.uint32(8 * n)))
        elif n < 8:
            b = np.uint32(b + (byte << np.uint32(8 * (n - 4))))
        else:  # the lowest byte is reserved for the length
            c = np.uint32(c + (byte << np.uint32(8 * (n - 7))))
    b, c = _finished32(a, b, c)
    return np.int64(np.uint64(b) << np.uint64(32) | np.uint64(c))


@kernel
def _rotated32(value: Any, by: int) -> Any:
    return np.uint32(np.uint32(value << np.uint32(by)) | (value >> np.uint32(32 - by)))


@kernel
def _mixed32(a: Any, b: Any, c: Any) -> Any:
    a = np.uint32(np.uint32(a - c) ^ _rotated32(c, 4))
    c = np.uint32(c + b)
    b = np.uint32(np.uint32(b - a) ^ _rotated32(a, 6))
    a = np.uint32(a + c)
    c = np.uint32(np.uint32(c - b) ^ _rotated32(b, 8))
    b = np.uint32(b + a)
    a = np.uint32(np.uint32(a - c) ^ _rotated32(c, 16))
    c = np.uint32(c + b)
    b = np.uint32(np.uint32(b - a) ^ _rotated32(a, 19))
    a = np.uint32(a + c)
    c = np.uint32(np.uint32(c - b) ^ _rotated32(b, 4))
    b = np.uint32(b + a)
    return a, b, c


@kernel
def _finished32(a: Any, b: Any, c: Any) -> Any:
    c = np.uint32(np.uint32(c ^ b) - _rotated32(b, 14))
    a = np.uint32(np.uint32(a ^ c) - _rotated32(c, 11))
    b = np.uint32(np.uint32(b ^ a) - _rotated32(a, 25))
    c = np.uint32(np.uint32(c ^ b) - _rotated32(b, 16))
    a = np.uint32(np.uint32(a ^ c) - _rotated32(c, 4))
    b = np.uint32(np.uint32(b ^ a) - _rotated32(a, 14))
    c = np.uint32(np.uint32(c ^ b) - _rotated32(b, 24))
    return b, c
