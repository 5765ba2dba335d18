"""Numbers for rows: two rows get the same number if they have the same values. Vectorized, for any Arrow type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.values.kernels import Flags, Longs


def numbers_of(rows: pa.Table, cells: Sequence[str], *, zeros_apart: bool) -> Longs:
    """Return a number for each row. 0.0 and -0.0 are equal as keys, but different contents, hence `zeros_apart`."""
    numbers = np.zeros(len(rows), np.int64)
    for cell in cells:
        codes = _codes(rows[cell].combine_chunks(), zeros_apart)
        _, numbers = np.unique(numbers * (int(codes.max(initial=0)) + 1) + codes, return_inverse=True)
    return numbers.astype(np.int64)


def may_be_among(rows: pa.Table, others: pa.Table, cells: Sequence[str]) -> Flags:
    """Return whether each row may equal one of the others. Each cell is tested alone, so there are false positives."""
    found = np.ones(len(rows), bool)
    for cell in cells:
        if pa.types.is_nested(rows[cell].type) or pa.types.is_floating(rows[cell].type):
            continue
        there = pc.is_in(rows[cell], value_set=pc.unique(others[cell].combine_chunks()))
        found &= np.asarray(there.combine_chunks().to_numpy(zero_copy_only=False), bool)
    return found


def _codes(values: pa.Array, zeros_apart: bool) -> Longs:
    if pa.types.is_nested(values.type):
        values = pa.array([repr(value) for value in values.to_pylist()], pa.string())
    elif pa.types.is_floating(values.type):
        values = _comparable(values, zeros_apart)
    coded = pc.dictionary_encode(values, null_encoding="encode")
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    codes: Longs = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _comparable(values: pa.Array, zeros_apart: bool) -> pa.Array:
    """Convert floats to comparable integers: all NaN are equal, and 0.0 equals -0.0 unless `zeros_apart`."""
    floats = values.fill_null(0).cast(pa.float64()).to_numpy(zero_copy_only=False)
    floats = np.where(np.isnan(floats), np.nan, floats if zeros_apart else floats + 0.0)
    return pc.if_else(values.is_valid(), pa.array(floats.view(np.int64)), pa.scalar(None, pa.int64()))
