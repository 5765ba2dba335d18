"""The libpq that psycopg has loaded into this process, for functions that psycopg does not provide.

Compiled kernels call some of them directly, without the Python interpreter.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy as np
from numba import types

get_copy_data: Any = types.ExternalFunction("PQgetCopyData", types.int32(types.intp, types.intp, types.int32))
consume_input: Any = types.ExternalFunction("PQconsumeInput", types.int32(types.intp))
free_memory: Any = types.ExternalFunction("PQfreemem", types.void(types.intp))
copy_memory: Any = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.intp))


PIECE_BYTES = 1 << 20


@cache
def libpq() -> ctypes.CDLL:
    """Return the library."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = [line.split(maxsplit=5)[5] for line in maps if "/libpq" in line]
    return ctypes.CDLL(next((path for path in paths if "psycopg_binary" in path), paths[0]))


def copy_pieces(data: np.ndarray) -> Iterator[tuple[ctypes.c_void_p, int]]:
    """Yield the address and the size of each piece of data for PQputCopyData, which takes the size as a C int."""
    for at in range(0, len(data), PIECE_BYTES):
        yield ctypes.c_void_p(data.ctypes.data + at), min(PIECE_BYTES, len(data) - at)


def address_of(function: str) -> int:
    """Return the address of a libpq function."""
    return ctypes.cast(getattr(libpq(), function), ctypes.c_void_p).value or 0


@cache
def link() -> None:
    """Register the addresses of psycopg's libpq functions with the compiler."""
    for name in ("PQgetCopyData", "PQconsumeInput", "PQfreemem"):
        llvmlite.binding.add_symbol(name, address_of(name))
