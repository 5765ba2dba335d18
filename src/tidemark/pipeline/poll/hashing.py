"""PostgreSQL's hash of texts, vectorized, so that source and mirror compute the same hashes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]
from pyspark.sql.types import LongType

from tidemark.values.kernels import Bytes, Longs, kernel

_START = np.uint32(0x9E3779B9 + 3923095)


def text_hash(texts: str) -> Column:
    """The hash of a column of texts.

    The UDF is created here and not at import, when it is not known whether the session is a remote one.
    """
    made: Column = arrow_udf(_hashed, LongType())(texts)
    return made


def _hashed(texts: pa.Array) -> pa.Array:
    return pa.array(hashes_of(texts))


def hashes_of(texts: pa.Array) -> Longs:
    """PostgreSQL's `hashtextextended(text collate "C", 0)` of each text."""
    texts = texts.cast(pa.large_string())
    _, offsets, data = texts.buffers()
    starts = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    raw = np.frombuffer(data if data is not None else b"", np.uint8)
    found: Longs = _hashes(raw, starts)
    return found


@kernel
def _hashes(data: Bytes, starts: Longs) -> Any:
    found = np.empty(len(starts) - 1, np.int64)
    for row in range(len(found)):
        found[row] = _of_bytes(data, np.uint64(starts[row]), np.uint64(starts[row + 1]))
    return found


@kernel
def _of_bytes(data: Bytes, at: Any, end: Any) -> Any:
    """`hash_bytes_extended` of PostgreSQL's hashfn.c, with seed 0."""
    a = b = c = np.uint32(_START + np.uint32(end - at))
    while end - at >= np.uint64(12):
        a, b, c = _mixed(
            np.uint32(a + _word(data, at)),
            np.uint32(b + _word(data, at + np.uint64(4))),
            np.uint32(c + _word(data, at + np.uint64(8))),
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
    b, c = _finished(a, b, c)
    return np.int64(np.uint64(b) << np.uint64(32) | np.uint64(c))


@kernel
def _word(data: Bytes, at: Any) -> Any:
    word = np.uint32(0)
    for n in range(4):
        word |= np.uint32(data[at + np.uint64(n)]) << np.uint32(8 * n)
    return word


@kernel
def _rotated(value: Any, by: int) -> Any:
    return np.uint32(np.uint32(value << np.uint32(by)) | (value >> np.uint32(32 - by)))


@kernel
def _mixed(a: Any, b: Any, c: Any) -> Any:
    a = np.uint32(np.uint32(a - c) ^ _rotated(c, 4))
    c = np.uint32(c + b)
    b = np.uint32(np.uint32(b - a) ^ _rotated(a, 6))
    a = np.uint32(a + c)
    c = np.uint32(np.uint32(c - b) ^ _rotated(b, 8))
    b = np.uint32(b + a)
    a = np.uint32(np.uint32(a - c) ^ _rotated(c, 16))
    c = np.uint32(c + b)
    b = np.uint32(np.uint32(b - a) ^ _rotated(a, 19))
    a = np.uint32(a + c)
    c = np.uint32(np.uint32(c - b) ^ _rotated(b, 4))
    b = np.uint32(b + a)
    return a, b, c


@kernel
def _finished(a: Any, b: Any, c: Any) -> Any:
    c = np.uint32(np.uint32(c ^ b) - _rotated(b, 14))
    a = np.uint32(np.uint32(a ^ c) - _rotated(c, 11))
    b = np.uint32(np.uint32(b ^ a) - _rotated(a, 25))
    c = np.uint32(np.uint32(c ^ b) - _rotated(b, 16))
    a = np.uint32(np.uint32(a ^ c) - _rotated(c, 4))
    b = np.uint32(np.uint32(b ^ a) - _rotated(a, 14))
    c = np.uint32(np.uint32(c ^ b) - _rotated(b, 24))
    return b, c
