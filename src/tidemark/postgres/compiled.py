"""libpq's functions for compiled code, which calls them without Python in between."""

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
    """Tell the compiler where psycopg's libpq is."""
    for name in ("PQgetCopyData", "PQconsumeInput", "PQfreemem"):
        llvmlite.binding.add_symbol(name, address_of(name))
