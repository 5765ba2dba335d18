"""What all kernels share: the arrays they take, how they are compiled, and how they say which item was bad."""

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
OK = -1  # what a kernel returns when every item was good; otherwise the index of the first bad one


def read_only(buffer: Bytes) -> Bytes:
    """The same bytes, not to be written to: kernels are compiled for one kind of array, and this is the one."""
    view = buffer.view()
    view.flags.writeable = False
    return view


def kernel(function: Any) -> Any:
    """Compile to machine code on first use, into a cache on disk that other processes share; runs without the GIL.

    The cache is in the directory NUMBA_CACHE_DIR, beside the module, or in the user's cache directory. If none of them
    can be written, every process compiles for itself.
    """
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba found no directory for the cache
        return njit(nogil=True)(function)


@kernel
def be16(buffer: Bytes, at: Any) -> Any:
    """The two bytes there, as they go over the wire, unsigned.

    Positions are made unsigned, here and in every loop over bytes: numba looks at each signed one whether it counts
    from the end, and that takes longer than all the rest.
    """
    p = np.uint64(at)
    return np.uint16(np.uint16(buffer[p]) << np.uint16(8) | np.uint16(buffer[p + ONE]))


@kernel
def be32(buffer: Bytes, at: Any) -> Any:
    """Four bytes."""
    p = np.uint64(at)
    return np.uint32(np.uint32(be16(buffer, p)) << np.uint32(16) | np.uint32(be16(buffer, p + TWO)))


@kernel
def be64(buffer: Bytes, at: Any) -> Any:
    """Eight bytes."""
    value = np.uint64(0)
    for k in range(8):
        value = value << np.uint64(8) | np.uint64(buffer[np.uint64(at) + np.uint64(k)])
    return value
