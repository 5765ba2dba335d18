"""The layout of a table's versions: its columns, and the number of buckets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.lake.columns import StoredColumn, free_name
from tidemark.lake.key_index import MOST_ROWS, indexed_key
from tidemark.lake.versions import INTERVAL
from tidemark.reads.shown import ShownTable
from tidemark.schema.table import Column

BUCKET_BYTES = 32 << 20
CHANGED_BYTES = 128 << 20
_ROW_BYTES = 100
_SHRINKS = 3  # how many times smaller than its pages a stored table is
_ROOM = 2  # a bucket may grow to twice its size or shrink to half before the number of buckets changes


@dataclass(frozen=True, slots=True)
class VersionLayout:
    """The stored columns and the cells that are stored in them, the cells of the key, and the number of buckets.

    `rows` is how many current rows there may be.
    """

    columns: tuple[StoredColumn, ...]
    cells: tuple[str, ...]
    key: tuple[str, ...]
    buckets: int
    rows: int

    @property
    def indexed_key(self) -> tuple[StoredColumn, ...]:
        """The columns of the key, if files of current rows get an index of it."""
        if self.rows > MOST_ROWS:
            return ()
        by_cell = dict(zip(self.cells, self.columns, strict=True))
        return indexed_key(self.columns, [by_cell[cell].attnum for cell in self.key if not by_cell[cell].text])


def version_columns(table: ShownTable, retired: Sequence[Column]) -> tuple[StoredColumn, ...]:
    """Every column under its present name at the source and with its present type; retired columns as `name~attnum`."""
    gone = {column.attnum for column in retired}
    taken = set(INTERVAL.names)
    columns: list[StoredColumn] = []
    for column in table.columns:
        name = f"{column.source_name}~{column.attnum}" if column.attnum in gone else column.source_name
        home = StoredColumn(free_name(name, column.attnum, taken), column.attnum, column.type)
        taken |= {home.name.lower(), home.fallback_column().name.lower()}
        columns += [home, home.fallback_column()] if column.fallback else [home]
    return tuple(columns)


def rows_for(size_bytes: int) -> int:
    """An estimate of the number of rows in a table with pages of this size."""
    return size_bytes // _ROW_BYTES


def buckets_for(size_bytes: int) -> int:
    """The number of buckets into which a table with pages of this size is copied."""
    return max(1, round(size_bytes / _SHRINKS / BUCKET_BYTES))


def bucket_count(live_bytes: int, changed_bytes: int, there: int) -> int:
    """The number of buckets: the present one, unless the buckets have become too large or too small.

    The changes may be much larger than the live rows: those of one bucket must fit into a task.
    """
    wanted = max(1, -(-(live_bytes or changed_bytes) // BUCKET_BYTES), -(-changed_bytes // CHANGED_BYTES))
    return there if there and there / _ROOM <= wanted <= there * _ROOM else wanted
