"""What a sync would do, as text: the SQL at the source, and each table with its parts and size."""

from __future__ import annotations

import os
from collections.abc import Iterator

from tidemark.pipeline.copy.parts import buckets_for, parts_of
from tidemark.pipeline.copy.reading import pages_of
from tidemark.pipeline.publishing import Meant
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.session import Session
from tidemark.postgres.setup import read_plan, script
from tidemark.postgres.unmirrored import read_unmirrored
from tidemark.schema.selection import choose
from tidemark.units import format_size


def outlook(meant: Meant, *, polled: bool = False) -> str:
    """The whole text. Nothing is changed."""
    return "\n".join(_lines(meant, polled)) + "\n"


def _lines(meant: Meant, polled: bool) -> Iterator[str]:
    tasks = os.cpu_count() or 1
    with Session.open(meant.source, "sync") as session:
        if polled:
            yield "-- Nothing is created at the source."
        else:
            yield script(read_plan(session, meant.names, meant.selection, None)).rstrip("\n")
            yield f"-- Replication slot {meant.names.slot} is created, and temporary slots while tables are copied."
        with session.transaction():
            chosen = choose(read_catalog(session), meant.selection)
            whole = 0
            for table in chosen.tables:
                pages, page_bytes = pages_of(session, table.oid)
                size = pages * page_bytes
                parts = parts_of(table.oid, pages, page_bytes, tasks)
                taken = polled or table.identifies_rows
                how = "copied" if taken else "not copied: no replica identity"
                counts = f"{len(parts)} parts  {buckets_for(size)} buckets"
                yield f"{table.qualified}  {format_size(size)}  {counts}  {how}"
                whole += size if taken else 0
            for each in read_unmirrored(session, meant.selection, chosen):
                yield f"{each.name}  {each.kind}, not mirrored: {each.reason}"
    yield f"{format_size(whole)} to copy"
