"""Spark's xxhash64 of a key in Python, which finds the bucket of a key without Spark. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

SEED = 42
_MASK = (1 << 64) - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def can_hash(kind: pa.DataType) -> bool:
    """Return whether values of this type can be hashed here."""
    return bool(pa.types.is_signed_integer(kind) or pa.types.is_string(kind))


def bucket_of(key: Sequence[tuple[pa.DataType, int | str]], buckets: int) -> int:
    """Return the bucket of a key, whose values are given in order with their stored types."""
    hashed = SEED
    for kind, value in key:
        hashed = _hash(kind, value, hashed)
    signed = hashed - (1 << 64) if hashed >> 63 else hashed
    return signed % buckets


def _hash(kind: pa.DataType, value: int | str, seed: int) -> int:
    if isinstance(value, str):
        return xxh64(value.encode(), seed)
    width = 8 if kind == pa.int64() else 4
    return xxh64((value & ((1 << 8 * width) - 1)).to_bytes(width, "little"), seed)


def xxh64(data: bytes, seed: int) -> int:
    """Return the XXH64 hash as its specification defines it."""
    lanes, at = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1], 0
    while len(data) - at >= 32:
        lanes = [_round(lane, _word(data, at + 8 * n)) for n, lane in enumerate(lanes)]
        at += 32
    if at:
        result = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            result = ((result ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        result = seed + _P5
    return _finished(data, at, (result + len(data)) & _MASK)


def _finished(data: bytes, at: int, result: int) -> int:
    while len(data) - at >= 8:
        result = (_rotated(result ^ _round(0, _word(data, at)), 27) * _P1 + _P4) & _MASK
        at += 8
    if len(data) - at >= 4:
        four = int.from_bytes(data[at : at + 4], "little")
        result = (_rotated(result ^ (four * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        result = _rotated(result ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    for shift, factor in ((33, _P2), (29, _P3)):
        result = (result ^ (result >> shift)) * factor & _MASK
    return result ^ (result >> 32)


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * _P2) & _MASK, 31) * _P1 & _MASK


def _rotated(value: int, by: int) -> int:
    value &= _MASK
    return (value << by | value >> (64 - by)) & _MASK
