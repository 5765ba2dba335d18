"""Table selection by shell patterns on `schema.table`, and the tables that cannot be mirrored, with the reason.

This module performs no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.errors import InvalidValue
from tidemark.schema.table import Catalog, Persistence, RelationKind, Table

_PATTERN = re.compile(r"""(?:("(?:[^"]|"")+"|[^".]+)\.)?("(?:[^"]|"")+"|[^".]+)""")


STATE_SCHEMA = "tidemark"
STATE_TABLES = frozenset({"clones", "tables", "parts", "repairs", "large_objects"})


@dataclass(frozen=True, slots=True)
class Pattern:
    """`schema.table` with the wildcards * and ?. A double-quoted name is literal. The default schema is public."""

    text: str

    def __post_init__(self) -> None:
        if _PATTERN.fullmatch(self.text) is None:
            raise InvalidValue(f"invalid table pattern: {self.text!r}", _HINT)

    def matches(self, table: Table) -> bool:
        """Whether the pattern matches this table."""
        return self.matches_name(table.schema, table.name)

    def matches_name(self, schema: str, name: str) -> bool:
        """Whether the pattern matches a relation of this name."""
        found = _PATTERN.fullmatch(self.text)
        wanted_schema, wanted_name = found.groups() if found else (None, None)
        return _means(wanted_schema or "public", schema) and _means(wanted_name or "", name)


_HINT = (
    "Use SCHEMA.TABLE with the wildcards * and ?; without a schema, the pattern applies to schema public. "
    'Put names with special characters in double quotes: public."Odd.name".'
)


def _means(part: str, name: str) -> bool:
    if part.startswith('"'):
        return part[1:-1].replace('""', '"') == name
    expression = re.escape(part).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, name, re.DOTALL) is not None


@dataclass(frozen=True, slots=True)
class Selection:
    """Patterns of tables to include and to exclude. Without a pattern to include, every table is included."""

    take: tuple[Pattern, ...] = ()
    leave: tuple[Pattern, ...] = ()

    def includes(self, schema: str, name: str) -> bool:
        """Whether a relation of this name is selected, regardless of its parent tables."""
        taken = not self.take or any(pattern.matches_name(schema, name) for pattern in self.take)
        return taken and not any(pattern.matches_name(schema, name) for pattern in self.leave)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A selected table that cannot be mirrored."""

    table: Table
    reason: str


@dataclass(frozen=True, slots=True)
class SelectedTables:
    """The tables to publish, and the selected tables that cannot be mirrored."""

    tables: tuple[Table, ...]
    skipped: tuple[Skipped, ...]


def choose(catalog: Catalog, selection: Selection, *, strict: bool = True) -> SelectedTables:
    """Apply the patterns; if `strict`, every pattern must match a table.

    A partitioned table stands for its partitions. Including a table also includes the tables that inherit from it,
    because a query on the parent returns their rows. Excluding a table does not exclude them: they are separate tables.
    """
    for pattern in (*selection.take, *selection.leave) if strict else ():
        if not any(pattern.matches(table) for table in catalog.tables):
            raise InvalidValue(f"no table matches {pattern.text!r}", _HINT)
    every = {table.oid for table in catalog.tables}
    taken = matched(catalog, selection.take, inheriting=True) if selection.take else every
    meant = taken - matched(catalog, selection.leave)
    own = own_tables(catalog)
    wanted = [
        table for table in catalog.tables if table.oid in meant - own and table.kind is not RelationKind.PARTITIONED
    ]
    skipped = tuple(Skipped(table, reason) for table in wanted if (reason := why_not(table)))
    return SelectedTables(tuple(table for table in wanted if not why_not(table)), skipped)


def own_tables(catalog: Catalog) -> frozenset[int]:
    """The tables in which Tidemark records clones, if the database is the target of one: they are never selected."""
    names = {table.name for table in catalog.tables if table.schema == STATE_SCHEMA}
    return frozenset(
        table.oid for table in catalog.tables if table.schema == STATE_SCHEMA and names >= STATE_TABLES >= {table.name}
    )


def matched(catalog: Catalog, patterns: Iterable[Pattern], *, inheriting: bool = False) -> set[int]:
    """Return the tables that match, their partitions and, if `inheriting`, the tables that inherit from them."""
    listed = tuple(patterns)
    found = {table.oid for table in catalog.tables if any(pattern.matches(table) for pattern in listed)}
    above = {table.oid: {table.parent, *(table.inherits if inheriting else ())} for table in catalog.tables}
    while below := {oid for oid, parents in above.items() if parents & found} - found:
        found |= below
    return found


def why_not(table: Table) -> str | None:
    """Return why this table cannot be mirrored, or None if it can."""
    if table.kind is RelationKind.FOREIGN:
        return "a foreign table: its rows are on another server"
    if table.persistence is Persistence.UNLOGGED:
        return "an unlogged table: its changes are not in the WAL"
    return table.flaw
