"""What a sync would do, in words: the SQL at the source, and each table with its parts and bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator

from tidemark.setup import read_plan, script
from tidemark.source.catalog import read_catalog
from tidemark.source.selection import choose
from tidemark.source.session import Session
from tidemark.sync.parts import buckets_for, parts_of
from tidemark.sync.publishing import Meant
from tidemark.sync.reading import pages_of


def outlook(meant: Meant) -> str:
    """All of it; nothing is done."""
    return "\n".join(_lines(meant)) + "\n"


def _lines(meant: Meant) -> Iterator[str]:
    tasks = os.cpu_count() or 1
    with Session.open(meant.source, "sync") as session:
        plan = read_plan(session, meant.names, meant.selection, None)
        yield script(plan).rstrip("\n")
        yield f"-- Replication slot {meant.names.slot}, and temporary ones while tables are copied."
        with session.transaction():
            chosen = choose(read_catalog(session), meant.selection)
            whole = 0
            for table in chosen.tables:
                pages, page_bytes = pages_of(session, table.oid)
                size = pages * page_bytes
                parts = parts_of(table.oid, pages, page_bytes, tasks)
                how = "copied" if table.identifies_rows else "not copied: it has no replica identity"
                yield f"{table.qualified}  {size:,} bytes  {len(parts)} parts  {buckets_for(size)} buckets  {how}"
                whole += size if table.identifies_rows else 0
            for skipped in chosen.skipped:
                yield f"{skipped.table.qualified}  skipped: {skipped.reason}"
    yield f"{whole:,} bytes to copy"
