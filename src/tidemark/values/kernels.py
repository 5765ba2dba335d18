"""Shared definitions of the kernels: array types, compilation, readers of integers, the result for a malformed item."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

Bytes: TypeAlias = npt.NDArray[np.uint8]
Longs: TypeAlias = npt.NDArray[np.int64]
Ints: TypeAlias = npt.NDArray[np.int32]
Flags: TypeAlias = npt.NDArray[np.bool_]

Item = TypeVar("Item", bound=np.generic)

ONE, TWO, FOUR = map(np.uint64, (1, 2, 4))
OK = -1  # returned by a kernel if every item is valid; otherwise it returns the index of the first invalid item


def read_only(buffer: npt.NDArray[Item]) -> npt.NDArray[Item]:
    """Return a read-only view of the same items. Kernels are compiled for read-only byte arrays only."""
    view = buffer.view()
    view.flags.writeable = False
    return view


def kernel(function: Any) -> Any:
    """Compile to machine code on first use, into an on-disk cache shared by all processes; runs without the GIL.

    The cache is in the directory NUMBA_CACHE_DIR, next to the module, or in the user's cache directory. If none of them
    is writable, every process compiles its own copy.
    """
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba found no directory for the cache
        return njit(nogil=True)(function)


@kernel
def be16(buffer: Bytes, at: Any) -> Any:
    """Read two bytes in network order as an unsigned integer.

    Indexes are converted to unsigned, here and in every loop over bytes: for each signed index numba checks whether it
    counts from the end, which takes longer than the rest of the loop.
    """
    p = np.uint64(at)
    return np.uint16(np.uint16(buffer[p]) << np.uint16(8) | np.uint16(buffer[p + ONE]))


@kernel
def be32(buffer: Bytes, at: Any) -> Any:
    """Read four bytes in network order as an unsigned integer."""
    p = np.uint64(at)
    return np.uint32(np.uint32(be16(buffer, p)) << np.uint32(16) | np.uint32(be16(buffer, p + TWO)))


@kernel
def be64(buffer: Bytes, at: Any) -> Any:
    """Read eight bytes in network order as an unsigned integer."""
    value = np.uint64(0)
    for k in range(8):
        value = value << np.uint64(8) | np.uint64(buffer[np.uint64(at) + np.uint64(k)])
    return value


@kernel
def int32_at(buffer: Bytes, at: Any) -> Any:
    """Read four bytes in network order as a signed integer, which has 64 bits then."""
    return np.int64(np.int32(be32(buffer, at)))


@kernel
def le32(buffer: Bytes, at: Any) -> Any:
    """Read four bytes as an unsigned integer whose lowest byte is first."""
    value = np.uint32(0)
    for k in range(4):
        value |= np.uint32(buffer[np.uint64(at) + np.uint64(k)]) << np.uint32(8 * k)
    return value


@kernel
def le64(buffer: Bytes, at: Any) -> Any:
    """Read eight bytes as an unsigned integer whose lowest byte is first."""
    value = np.uint64(0)
    for k in range(8):
        value |= np.uint64(buffer[np.uint64(at) + np.uint64(k)]) << np.uint64(8 * k)
    return value


@kernel
def put16(out: Bytes, at: Any, value: Any) -> Any:
    """Write two bytes in network order; like every `put`, return the position after what was written."""
    out[at] = value >> 8 & 255
    out[at + 1] = value & 255
    return at + 2


@kernel
def put32(out: Bytes, at: Any, value: Any) -> Any:
    """Write four bytes in network order."""
    return put16(out, put16(out, at, value >> 16), value)


@kernel
def put_two(out: Bytes, at: Any, value: Any) -> Any:
    """Write a number below 100 as two digits."""
    out[at] = 48 + value // 10
    out[at + 1] = 48 + value % 10
    return at + 2


@kernel
def put_number(out: Bytes, at: Any, value: Any, least: Any) -> Any:
    """Write the decimal digits of a number that is not negative, padded with zeros to at least `least` digits."""
    ten = np.uint64(10)
    number = np.uint64(value)
    width, rest = 1, number // ten
    while rest > np.uint64(0):
        width += 1
        rest //= ten
    width = max(width, least)
    for k in range(at + width - 1, at - 1, -1):
        quotient = number // ten
        out[k] = np.uint64(48) + (number - quotient * ten)
        number = quotient
    return at + width


@kernel
def put_clock(out: Bytes, at: Any, micros: Any) -> Any:
    """Write a time of day as HH:MM:SS, with the fraction's trailing zeros removed."""
    at = put_two(out, at, micros // 3_600_000_000)
    out[at] = 58
    at = put_two(out, at + 1, micros // 60_000_000 % 60)
    out[at] = 58
    return put_seconds(out, at + 1, micros % 60_000_000)


@kernel
def put_seconds(out: Bytes, at: Any, micros: Any) -> Any:
    """Write SS and the fraction without trailing zeros."""
    at = put_two(out, at, micros // 1_000_000)
    fraction = micros % 1_000_000
    if fraction == 0:
        return at
    out[at] = 46
    width = 6
    while fraction % 10 == 0:
        fraction //= 10
        width -= 1
    return put_number(out, at + 1, fraction, width)


@kernel
def put_offset(out: Bytes, at: Any, east: Any) -> Any:
    """Write the distance from UTC, in seconds east, as +HH, +HH:MM or +HH:MM:SS."""
    out[at] = 45 if east < 0 else 43
    distance = abs(east)
    at = put_two(out, at + 1, distance // 3600)
    if distance % 3600:
        out[at] = 58
        at = put_two(out, at + 1, distance // 60 % 60)
    if distance % 60:
        out[at] = 58
        at = put_two(out, at + 1, distance % 60)
    return at


@kernel
def put_infinity(out: Bytes, at: Any, negative: Any, first: Any) -> Any:
    """Write infinity, whose `first` letter is a capital for numbers, or -infinity."""
    if negative:
        out[at] = 45
        at += 1
    out[at] = first
    for char in (110, 102, 105, 110, 105, 116, 121):
        at += 1
        out[at] = char
    return at + 1


@kernel
def is_infinity(buffer: Bytes, at: Any, length: Any, first: Any) -> Any:
    """Whether this is infinity or -infinity with this first letter."""
    skip = 1 if length == 9 and buffer[at] == 45 else 0
    if length - skip != 8 or buffer[at + skip] != first:
        return False
    for k, char in enumerate((110, 102, 105, 110, 105, 116, 121)):
        if buffer[at + skip + 1 + k] != char:
            return False
    return True
