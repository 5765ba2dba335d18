"""Conversion of stored values to another type, for a column whose type was altered without a rewrite of the table.

PostgreSQL does not rewrite the rows when a numeric gets more digits before the decimal point, or loses its limits. If
the new type is stored as text, the stored decimals are converted to it, with all digits of their scale and without an
exponent.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.values.cells import DecodedColumn as Values

_MOST_DIGITS = 38


def converted(values: Values, kind: pa.DataType) -> Values:
    """Convert stored values to this type. If it is text, the text fallback of a decimal is merged into the values."""
    there = values.array.type
    if there == kind:
        return values
    if pa.types.is_decimal(there) and pa.types.is_string(kind):
        texts = decimal_texts(values.array)
        return Values(texts if values.exact is None else pc.coalesce(values.exact, texts))
    return Values(values.array.cast(kind), values.exact)


def decimal_texts(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Convert decimals to the text that PostgreSQL prints for a numeric of their scale."""
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([decimal_texts(chunk) for chunk in values.chunks], pa.string())
    scale = values.type.scale
    whole = pa.Array.from_buffers(
        pa.decimal128(_MOST_DIGITS, 0), len(values), values.buffers(), values.null_count, values.offset
    )
    digits = whole.cast(pa.string())
    if not scale:
        return digits
    sign = pc.if_else(pc.starts_with(digits, "-"), "-", "")
    padded = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), scale + 1, "0")
    before, after = pc.utf8_slice_codeunits(padded, 0, -scale), pc.utf8_slice_codeunits(padded, -scale)
    return pc.binary_join_element_wise(sign, before, ".", after, "").cast(pa.string())
