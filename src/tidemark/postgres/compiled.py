"""libpq functions that compiled kernels call directly, without the Python interpreter."""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding
from numba import types

from tidemark.postgres.libpq import address_of

get_copy_data: Any = types.ExternalFunction("PQgetCopyData", types.int32(types.intp, types.intp, types.int32))
consume_input: Any = types.ExternalFunction("PQconsumeInput", types.int32(types.intp))
free_memory: Any = types.ExternalFunction("PQfreemem", types.void(types.intp))
copy_memory: Any = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.intp))


@cache
def link() -> None:
    """Register the addresses of psycopg's libpq functions with the compiler."""
    for name in ("PQgetCopyData", "PQconsumeInput", "PQfreemem"):
        llvmlite.binding.add_symbol(name, address_of(name))
