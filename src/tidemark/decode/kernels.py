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

OK = -1  # what a kernel returns when every item was good; otherwise the index of the first bad one


def read_only(buffer: Bytes) -> Bytes:
    """The same bytes, not to be written to: kernels are compiled for one kind of array, and this is the one."""
    view = buffer.view()
    view.flags.writeable = False
    return view


def kernel(function: Any) -> Any:
    """Compile to machine code on first use, into a cache on disk that other processes share; runs without the GIL."""
    return njit(cache=True, nogil=True)(function)
