"""Engines: each runs the bottoms of a split statement on the tables of the mirror at one boundary.

An engine returns exactly what the tree means, as an Arrow table with the bottom's columns in order, or raises: for an
overflow, for a value that its types cannot hold, and for more rows than its limit. `engines.arrays` turns the columns
into the array parameters of the statement with which PostgreSQL finishes.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from tidemark.split.ir import Bottom

MOST_ROWS = 100_000


class Engine(Protocol):
    """Runs bottoms; the tables are bound when it is made."""

    def run(self, bottom: Bottom, most_rows: int = MOST_ROWS) -> pa.Table:
        """Return the rows; raise EngineRefused if there are more than `most_rows`, or another error of the engine."""

    def cancel(self) -> None:
        """Cancel what runs now, from another thread."""
