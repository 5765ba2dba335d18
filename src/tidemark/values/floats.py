"""float4 and float8.

binary  IEEE 754, big-endian
text    the shortest decimal that parses to the same number; NaN, Infinity, -Infinity
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.values.cells import Cells, DecodedColumn, fixed
from tidemark.values.failure import bad_value, require_good
from tidemark.values.integers import big_endian
from tidemark.values.text import as_strings

WORDS = pa.array(["NaN", "Infinity", "-Infinity"])


def float4(cells: Cells, binary: bool) -> DecodedColumn:
    """float4 to float32."""
    return _float("float4", cells, binary, np.int32, pa.float32())


def float8(cells: Cells, binary: bool) -> DecodedColumn:
    """float8 to float64."""
    return _float("float8", cells, binary, np.int64, pa.float64())


def _float(name: str, cells: Cells, binary: bool, bits: Any, kind: pa.DataType) -> DecodedColumn:
    if binary:
        out = np.zeros(len(cells), bits)
        require_good(name, cells, big_endian(cells, out))
        return DecodedColumn(fixed(kind, out, cells.lengths))
    strings = as_strings(name, cells)
    try:
        values = pc.cast(strings, kind)
    except pa.ArrowInvalid:
        bad_value(name, cells, _first_not_a_float(strings))
    special = pc.invert(pc.is_finite(values))
    wrong = pc.and_(special, pc.invert(pc.is_in(strings, WORDS)))  # overflow, or spelled differently
    if pc.any(wrong).as_py():
        bad_value(name, cells, pc.index(wrong, True).as_py())
    return DecodedColumn(values)


def _first_not_a_float(strings: pa.StringArray) -> int:
    for at, value in enumerate(strings.to_pylist()):
        try:
            pc.cast(pa.array([value], pa.string()), pa.float64())
        except pa.ArrowInvalid:
            return at
    return 0
