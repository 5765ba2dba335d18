"""How a table's versions are kept: which columns, and how many buckets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.lake.columns import StoredColumn, free_name
from tidemark.lake.versions import INTERVAL
from tidemark.reads.shown import ShownTable
from tidemark.schema.table import Column

BUCKET_BYTES = 32 << 20
CHANGED_BYTES = 128 << 20
_ROOM = 2  # a bucket may grow to twice its size, or shrink to half, before all are made anew


@dataclass(frozen=True, slots=True)
class VersionLayout:
    """The stored columns with the cells that go into them, the key's cells, and the number of buckets."""

    columns: tuple[StoredColumn, ...]
    cells: tuple[str, ...]
    key: tuple[str, ...]
    buckets: int


def version_columns(table: ShownTable, retired: Sequence[Column]) -> tuple[StoredColumn, ...]:
    """Every column under the name that the source has for it, in its present type; what is gone, with its attnum."""
    gone = {column.attnum for column in retired}
    taken = set(INTERVAL.names)
    columns: list[StoredColumn] = []
    for column in table.columns:
        name = f"{column.source_name}~{column.attnum}" if column.attnum in gone else column.source_name
        home = StoredColumn(free_name(name, column.attnum, taken), column.attnum, column.type)
        taken |= {home.name.lower(), home.companion().name.lower()}
        columns += [home, home.companion()] if column.exact else [home]
    return tuple(columns)


def bucket_count(live_bytes: int, changed_bytes: int, there: int) -> int:
    """How many buckets: as many as there are, unless they have become too large or too small.

    What changed may be much more than what is there: its part of a bucket must fit into a task.
    """
    wanted = max(1, -(-(live_bytes or changed_bytes) // BUCKET_BYTES), -(-changed_bytes // CHANGED_BYTES))
    return there if there and there / _ROOM <= wanted <= there * _ROOM else wanted
