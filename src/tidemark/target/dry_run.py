"""What `tidemark clone` would do, as text: the output of `--dry-run`. Nothing is created at either server."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from tidemark.pipeline.copy.reading import pages_of
from tidemark.postgres.capability import Choice, Mode
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session
from tidemark.postgres.setup import read_plan, script
from tidemark.postgres.sqlstate import Endpoint
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.selection import Selection
from tidemark.target.archive import dump_schema
from tidemark.target.copying import has_own_rows
from tidemark.target.needs import missing_at_target, replaced_owners
from tidemark.target.programs import Programs
from tidemark.target.stages import CloneStage
from tidemark.units import format_size

_FIRST = (CloneStage.DEFINITIONS, CloneStage.KEYS, CloneStage.INDEXES)


def source_lines(source: Dsn, names: MirrorNames, selection: Selection, choice: Choice) -> Iterator[str]:
    """Yield the mode, and the SQL that is run at the source."""
    yield f"-- Mode {choice.mode.value}: {choice.why}"
    if choice.mode is Mode.POLL:
        yield "-- Nothing is created at the source."
        return
    with Session.open(source, "clone") as session:
        yield script(read_plan(session, names, selection, None)).rstrip("\n")
    yield f"-- Replication slot {names.slot} is created, and a temporary slot while tables are copied."


def schema_lines(
    source: Dsn, target: Dsn, programs: Programs, tables: Mapping[int, Fingerprint] | None
) -> Iterator[str]:
    """Yield what is created at the target, after checking that it can be; `tables` are those that are selected."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Session.open(target, "clone", server=Endpoint.TARGET) as session,
    ):
        archive = dump_schema(programs, source, None, Path(folder), tables)
        needs = missing_at_target(session, archive)
        needs.require()
        counts = Counter(archive.stages.values())
        first = ", ".join(f"{counts[stage]} {stage.value}" for stage in _FIRST)
        yield f"-- Created at the target: {first}; {counts[CloneStage.LAST]} objects when the clone is completed."
        if owners := replaced_owners(session, archive):
            yield f"-- {owners[0].upper()}{owners[1:]}"
        yield from (f"-- Not created, because only a superuser can: {entry}" for entry in needs.superuser)
        yield from (f"-- Not created, because a table is not selected: {entry}" for entry in archive.left_out)


def table_lines(session: Session, tables: Mapping[int, Fingerprint]) -> Iterator[str]:
    """Yield a line for each table that is copied, and the size of all."""
    whole = 0
    for table in sorted(tables.values(), key=lambda each: (each.schema, each.name)):
        if has_own_rows(table):
            pages, page_bytes = pages_of(session, table.oid)
            whole += pages * page_bytes
            yield f"{table.qualified}  {format_size(pages * page_bytes)}"
    yield f"{format_size(whole)} to copy"
