"""The libpq that psycopg has loaded into this process, for functions that psycopg does not provide."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path


@cache
def libpq() -> ctypes.CDLL:
    """Return the library."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = [line.split(maxsplit=5)[5] for line in maps if "/libpq" in line]
    return ctypes.CDLL(next((path for path in paths if "psycopg_binary" in path), paths[0]))


def address_of(function: str) -> int:
    """Return the address of a libpq function."""
    return ctypes.cast(getattr(libpq(), function), ctypes.c_void_p).value or 0
