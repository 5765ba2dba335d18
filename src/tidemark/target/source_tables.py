"""The tables of the source that are cloned: which ones, and whether they were altered since."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue, SourceAltered
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session
from tidemark.schema.fingerprint import Effect, Fingerprint, compare
from tidemark.schema.selection import Selection, own_tables
from tidemark.schema.table import Catalog
from tidemark.target.alterations import AlteredTable, obstacle
from tidemark.target.dependents import selected_tables
from tidemark.target.source_rows import read_altered
from tidemark.target.state import ClonedTable

WATCH_S = 5.0
CLONE_AGAIN = "Drop what was cloned, and schema tidemark, at the target, and clone again."
CARRY_OR_CLONE_AGAIN = f"If only columns were added, dropped or renamed, use `--on-ddl carry`. Otherwise: {CLONE_AGAIN}"
_EXTENDED = "select objid::bigint from pg_depend where classid = 'pg_class'::regclass and deptype = 'e'"
_LOGGER = logging.getLogger("tidemark.target")


def read_selected(
    session: Session, selection: Selection, catalog: Catalog | None = None, publications: Collection[str] = ()
) -> dict[int, Fingerprint]:
    """The selected tables, with their memberships in these publications.

    Tables of extensions are not among them: CREATE EXTENSION creates them at the target. Nor are those of an earlier
    clone of which this database was the target.
    """
    catalog = catalog or read_catalog(session)
    chosen = selected_tables(catalog, selection)
    others = read_extended(session) | own_tables(catalog)
    tables = [table for table in catalog.tables if table.oid not in others]
    return {table.oid: Fingerprint.of(table, publications) for table in tables if chosen is None or table.oid in chosen}


def read_extended(session: Session) -> set[int]:
    """The OIDs of the relations of extensions."""
    return {oid for (oid,) in session.rows(_EXTENDED)}


@dataclass(frozen=True, slots=True)
class Carrying:
    """How changes of columns are carried.

    `source` is read when the stream describes a table that was altered. `later` returns the SQL that completes the
    clone, which has the names of columns as of the copy. `altered` are tables that were altered and whose changes, if
    there are any, may not have been received yet: `SourceWatch` adds them.
    """

    source: Dsn
    later: Callable[[], str] = lambda: ""
    altered: dict[int, AlteredTable] = field(default_factory=dict)


def require_unaltered(
    tables: Mapping[int, ClonedTable], definitions: Mapping[int, Fingerprint], hint: str = CLONE_AGAIN
) -> None:
    """Raise an error if a table is not what it was when its definition was created at the target."""
    for oid, table in tables.items():
        found = compare(table.definition, definitions.get(oid))
        if found.effect is not Effect.SAME:
            raise _altered(table, found.reasons[0], hint)


def require_members(tables: Mapping[int, ClonedTable], definitions: Mapping[int, Fingerprint]) -> None:
    """Raise an error if changes of a table may be missing because of what happened to its publication."""
    for oid, table in tables.items():
        found = definitions.get(oid)
        if found is not None and found.memberships != table.definition.memberships:
            raise SourceAltered(
                f"table {table.name} was not published for some time, or its publication was altered: changes in "
                "between may be missing",
                CLONE_AGAIN,
            )


def require_selection(name: str, recorded: Selection, given: Selection) -> None:
    """Refuse another selection than the one with which a clone was begun."""
    if given != recorded:
        options = _options(recorded) or "neither `--table` nor `--exclude`"
        raise InvalidValue(
            f"clone {name} was begun with {options}, which cannot be changed",
            f"Run the command with {options}, or use another `--name` for another clone.",
        )


def _options(selection: Selection) -> str:
    parts = [*(("--table", each) for each in selection.take), *(("--exclude", each) for each in selection.leave)]
    options = " ".join(f"{option} {shlex.quote(pattern.text)}" for option, pattern in parts)
    return f"`{options}`" if options else ""


def require_carried(tables: Mapping[int, ClonedTable], altered: Mapping[int, AlteredTable], applied: Lsn) -> None:
    """Raise an error if a table was altered at the source and it is not known whether that was before the end."""
    for oid, found in altered.items():
        table = tables[oid]
        if compare(table.definition, found.definition).effect is not Effect.SAME:
            raise SourceAltered(
                f"table {table.name} was altered at the source, possibly after {applied}, where the clone is to end",
                "Retry the command, with a later `--endpos` or none.",
            )


class SourceWatch:
    """Notices that tables were altered at the source, also where the stream has no trace of it, and names new ones.

    A table that left one of the `publications` counts as altered, also if it is in that publication again.
    """

    def __init__(
        self, selection: Selection, carrying: Carrying | None = None, publications: Collection[str] = ()
    ) -> None:
        self._selection, self._carrying, self._publications = selection, carrying, publications
        self._next = 0.0
        self._new: frozenset[str] = frozenset()

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next check."""
        return time.monotonic() >= self._next

    def check(self, session: Session, tables: Mapping[int, ClonedTable]) -> None:
        """Raise SourceAltered if a table was altered in a way that is not carried; name tables that are not cloned."""
        with session.transaction():
            definitions = read_selected(session, self._selection, publications=self._publications)
            if self._carrying is None:
                require_unaltered(tables, definitions, CARRY_OR_CLONE_AGAIN)
            else:
                _find_altered(session, tables, definitions, self._carrying.altered)
        self.name_new(tables, definitions)
        self._next = time.monotonic() + WATCH_S

    def name_new(self, tables: Mapping[int, ClonedTable], definitions: Mapping[int, Fingerprint]) -> None:
        """Name new tables, which are not cloned."""
        new = frozenset(each.qualified for oid, each in definitions.items() if oid not in tables)
        for name in sorted(new - self._new):
            _LOGGER.warning("table %s was created at the source after the copy and is not cloned", name)
        self._new |= new


def _find_altered(
    session: Session,
    tables: Mapping[int, ClonedTable],
    definitions: Mapping[int, Fingerprint],
    altered: dict[int, AlteredTable],
) -> None:
    altered.clear()
    for oid, table in tables.items():
        if table.definition != definitions.get(oid):
            found = read_altered(session, definitions[oid]) if oid in definitions else None
            reason = obstacle(table.definition, found)
            if found is None or reason:
                raise _altered(table, reason or "it was dropped", CLONE_AGAIN)
            altered[oid] = found


def _altered(table: ClonedTable, reason: str, hint: str) -> SourceAltered:
    return SourceAltered(f"table {table.name} was altered at the source since it was cloned: {reason}", hint)
