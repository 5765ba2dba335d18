"""Keyed hashes of keys: SipHash-2-4 with 128 bits, vectorized and compiled. Pure.

Rows with equal keys have equal hashes. Rows with different keys have different ones: a collision has a probability of
2^-128 for each pair, and cannot be produced without the secret. The cells of a row are hashed one after the other, each
with the hash of those before it as its secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.values.hashes import Hashes64, rotated64, value_bits
from tidemark.values.kernels import Bytes, Flags, Longs, kernel, le64, read_only

_V0, _V1, _V2, _V3 = map(np.uint64, (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573))
_NULL = np.uint64(0x6E756C6C6E756C6C)


def key_hashes(keys: Sequence[tuple[pa.Array, pa.Array | None]], secret: tuple[int, int]) -> tuple[Hashes64, Hashes64]:
    """Return both halves of the hash of each row's key.

    A column of the key is its values and their text fallbacks; a row without a text fallback has the same hash whether
    its column has text fallbacks or not. All columns must have a type that `can_hash` accepts.
    """
    rows = len(keys[0][0])
    low, high = (np.full(rows, half, np.uint64) for half in secret)
    for values, fallback in keys:
        _mix(low, high, values, nulls=True)
        if fallback is not None and fallback.null_count < rows:
            _mix(low, high, fallback, nulls=False)
    return low, high


def _mix(low: Hashes64, high: Hashes64, cell: pa.Array, *, nulls: bool) -> None:
    """Continue the hashes with a cell; with `nulls`, a null counts too."""
    kind = cell.type
    valid = cell.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        _, offsets, data = cell.buffers()
        starts = np.frombuffer(offsets, np.int32)[cell.offset : cell.offset + len(cell) + 1].astype(np.int64)
        _mix_bytes(low, high, read_only(np.frombuffer(data or b"", np.uint8)), starts, valid, nulls)
        return
    if pa.types.is_decimal(kind):
        words = np.frombuffer(cell.buffers()[1], np.int64).reshape(-1, 2)[cell.offset : cell.offset + len(cell)]
        words = np.ascontiguousarray(words)
    elif kind.bit_width == 64:
        words = value_bits(cell, np.float64, np.int64).reshape(-1, 1)
    else:
        words = value_bits(cell, np.float32, np.int32).astype(np.int64).reshape(-1, 1)
    width = 8 * words.shape[1]
    data = read_only(words.view(np.uint8).reshape(-1))
    _mix_bytes(low, high, data, np.arange(len(cell) + 1, dtype=np.int64) * width, valid, nulls)


@kernel
def _mix_bytes(low: Hashes64, high: Hashes64, data: Bytes, starts: Longs, valid: Flags, nulls: bool) -> None:
    for row in range(len(low)):
        if valid[row]:
            low[row], high[row] = siphash(data, starts[row], starts[row + 1], low[row], high[row])
        elif nulls:
            low[row], high[row] = siphash(data, starts[row], starts[row], low[row], high[row] ^ _NULL)


@kernel
def siphash(data: Bytes, at: Any, end: Any, k0: Any, k1: Any) -> Any:
    """SipHash-2-4 of some bytes with a result of 128 bits, as its authors define it."""
    v0, v1, v2, v3 = _V0 ^ k0, _V1 ^ k1 ^ np.uint64(0xEE), _V2 ^ k0, _V3 ^ k1
    size = np.uint64(end - at)
    while end - at >= 8:
        word = le64(data, at)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        at += 8
    word = size << np.uint64(56)
    for k in range(end - at):
        word |= np.uint64(data[at + k]) << np.uint64(8 * k)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return low, v0 ^ v1 ^ v2 ^ v3


@kernel
def _round(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    v0 += v1
    v1 = rotated64(v1, 13) ^ v0
    v0 = rotated64(v0, 32)
    v2 += v3
    v3 = rotated64(v3, 16) ^ v2
    v0 += v3
    v3 = rotated64(v3, 21) ^ v0
    v2 += v1
    v1 = rotated64(v1, 17) ^ v2
    v2 = rotated64(v2, 32)
    return v0, v1, v2, v3
