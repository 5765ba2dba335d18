"""Shared definitions of the kernels: array types, compilation, readers of integers, the result for a malformed item."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit

Bytes: TypeAlias = npt.NDArray[np.uint8]
Longs: TypeAlias = npt.NDArray[np.int64]
Ints: TypeAlias = npt.NDArray[np.int32]
Flags: TypeAlias = npt.NDArray[np.bool_]

ONE, TWO, FOUR = map(np.uint64, (1, 2, 4))
OK = -1  # returned by a kernel if every item is valid; otherwise it returns the index of the first invalid item


def read_only(buffer: Bytes) -> Bytes:
    """Return a read-only view of the same bytes. Kernels are compiled for read-only byte arrays only."""
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
