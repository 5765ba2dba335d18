"""The tables of the source that are cloned: which ones, and whether they still are what was cloned."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from tidemark.errors import SourceAltered
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.session import Session
from tidemark.postgres.shared import table_label
from tidemark.schema.fingerprint import Effect, Fingerprint, compare
from tidemark.schema.selection import Selection
from tidemark.schema.table import Catalog
from tidemark.target.dependents import selected_tables
from tidemark.target.state import CloneState

WATCH_S = 5.0
_EXTENDED = "select objid::bigint from pg_depend where classid = 'pg_class'::regclass and deptype = 'e'"
_LOGGER = logging.getLogger("tidemark.target")


def read_selected(session: Session, selection: Selection, catalog: Catalog | None = None) -> dict[int, Fingerprint]:
    """The selected tables, without those of extensions, which CREATE EXTENSION creates at the target."""
    catalog = catalog or read_catalog(session)
    chosen = selected_tables(catalog, selection)
    extended = {oid for (oid,) in session.rows(_EXTENDED)}
    tables = [table for table in catalog.tables if table.oid not in extended]
    return {table.oid: Fingerprint.of(table, ()) for table in tables if chosen is None or table.oid in chosen}


def require_unaltered(state: CloneState, definitions: Mapping[int, Fingerprint]) -> None:
    """Raise an error if a table is not what it was when its definition was created at the target."""
    for oid, table in state.tables.items():
        found = compare(table.definition, definitions.get(oid))
        if found.effect is not Effect.SAME:
            raise SourceAltered(
                f"table {table.name} was altered at the source since it was cloned: {found.reasons[0]}",
                "Drop what was cloned, and schema tidemark, at the target, and clone again.",
            )


class SourceWatch:
    """Notices that tables were altered at the source, also where the stream has no trace of it, and names new ones."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._next = time.monotonic() + WATCH_S
        self._new: frozenset[str] = frozenset()

    def step(self, session: Session, state: CloneState) -> None:
        """Check if it is time."""
        if time.monotonic() >= self._next:
            self.check(session, state)
            self._next = time.monotonic() + WATCH_S

    def check(self, session: Session, state: CloneState) -> None:
        """Read the definitions and compare them."""
        with session.transaction():
            definitions = read_selected(session, self._selection)
        self.require(state, definitions)

    def require(self, state: CloneState, definitions: Mapping[int, Fingerprint]) -> None:
        """Raise SourceAltered if a table is no longer as it was copied; name new tables, which are not cloned."""
        require_unaltered(state, definitions)
        new = frozenset(table_label(each) for oid, each in definitions.items() if oid not in state.tables)
        for name in sorted(new - self._new):
            _LOGGER.warning("table %s was created at the source after the copy and is not cloned", name)
        self._new |= new
