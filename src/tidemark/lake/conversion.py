"""Conversion of stored values to another type, for a column whose type was altered without a rewrite of the table.

PostgreSQL does not rewrite the rows when a numeric gets more digits before the decimal point, or loses its limits. If
the new type is stored as text, the stored decimals are converted to it, with all digits of their scale and without an
exponent.
"""

from __future__ import annotations

import pyarrow as pa

from tidemark.values.cells import DecodedColumn as Values
from tidemark.values.output import column_strings


def converted(values: Values, kind: pa.DataType) -> Values:
    """Convert stored values to this type. If it is text, the text fallback of a decimal is merged into the values."""
    there = values.array.type
    if there == kind:
        return values
    if pa.types.is_decimal(there) and pa.types.is_string(kind):
        return Values(column_strings(values))
    return Values(values.array.cast(kind), values.exact)
