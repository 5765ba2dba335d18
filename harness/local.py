"""The rows of a moment's tables as the local engine returns them."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pyarrow as pa

from harness.printed import printed
from tidemark.engines.duckdb import LocalDatabase
from tidemark.mirror.moment import Moment
from tidemark.reads.local import LocalRows
from tidemark.values.cells import DecodedColumn

Row = tuple[str | None, ...]


def by_duckdb(moment: Moment, table: str, *, only: bool) -> tuple[tuple[str, ...], Counter[Row]]:
    """The columns of a table, and its rows as the server would print them."""
    rows = moment.local_rows(table, only=only)
    found = cells(rows)
    columns = []
    for column in rows.columns:
        text = found[f"t{column.attnum}"].combine_chunks() if column.fallback else None
        columns.append(printed(DecodedColumn(found[f"v{column.attnum}"].combine_chunks(), text)))
    names = tuple(column.name for column in rows.columns)
    return names, Counter(zip(*columns, strict=True)) if columns else Counter({(): len(found)})


def cells(rows: LocalRows) -> pa.Table:
    """The cells of a table's rows."""
    fields = [
        pa.field(cell, kind)
        for column in rows.columns
        for cell, kind in ((f"v{column.attnum}", column.type), (f"t{column.attnum}", pa.string()))
        if column.fallback or cell[0] == "v"
    ]
    with database().session() as session:
        session.hold(rows)
        return session.run(rows.query, pa.schema(fields))


@cache
def database() -> LocalDatabase:
    """A database that reads any file."""
    return LocalDatabase(Path("/"), threads=2, memory_bytes=1 << 30)
