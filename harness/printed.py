"""The text that PostgreSQL would print for a decoded value, for comparison with the server's output."""

from __future__ import annotations

from tidemark.values.cells import DecodedColumn
from tidemark.values.output import column_strings


def printed(column: DecodedColumn) -> list[str | None]:
    """Every value of a column as text; where there is a text fallback, the value must be null."""
    if column.fallback is not None:
        assert not any(
            value.is_valid for value, kept in zip(column.array, column.fallback, strict=True) if kept.is_valid
        )
    texts: list[str | None] = column_strings(column).to_pylist()
    return texts
