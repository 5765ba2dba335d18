"""Which tables a user means: shell patterns on `schema.table`, and what cannot be had, with the reason. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tidemark.errors import InvalidValue
from tidemark.schema.table import Catalog, Kind, Persistence, Table


@dataclass(frozen=True, slots=True)
class Selection:
    """Patterns to take and to leave. No pattern to take means every table."""

    take: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()

    def wants(self, table: Table) -> bool:
        """Whether the table itself is meant."""
        taken = not self.take or any(_matches(pattern, table) for pattern in self.take)
        return taken and not any(_matches(pattern, table) for pattern in self.leave)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A table that was meant and cannot be mirrored."""

    table: Table
    reason: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """The tables to publish, and the ones that cannot be."""

    tables: tuple[Table, ...]
    skipped: tuple[Skipped, ...]


def choose(catalog: Catalog, selection: Selection) -> Chosen:
    """Apply the patterns. A partitioned table stands for its leaves; one that matches nothing is an error."""
    for pattern in (*selection.take, *selection.leave):
        if not any(_matches(pattern, table) for table in catalog.tables):
            raise InvalidValue(
                f"no table matches {pattern!r}",
                "schema.table, with * and ? as in a shell; a pattern without a dot means the schema public",
            )
    meant = {table.oid: table for table in _with_leaves(catalog, selection)}
    wanted = [table for table in catalog.tables if table.oid in meant and table.kind is not Kind.PARTITIONED]
    skipped = tuple(Skipped(table, reason) for table in wanted if (reason := why_not(table)))
    return Chosen(tuple(table for table in wanted if not why_not(table)), skipped)


def why_not(table: Table) -> str | None:
    """Why this table's changes can never be streamed, if that is so."""
    if table.kind is Kind.FOREIGN:
        return "a foreign table: its rows live on another server"
    if table.persistence is Persistence.UNLOGGED:
        return "an unlogged table: its changes are not in the WAL"
    return None


def _with_leaves(catalog: Catalog, selection: Selection) -> Iterable[Table]:
    for table in catalog.tables:
        if selection.wants(table):
            yield table
            if table.kind is Kind.PARTITIONED:
                yield from (leaf for leaf in catalog.leaves(table) if not _left(selection, leaf))


def _left(selection: Selection, table: Table) -> bool:
    return any(_matches(pattern, table) for pattern in selection.leave)


def _matches(pattern: str, table: Table) -> bool:
    full = pattern if "." in pattern else f"public.{pattern}"
    return fnmatchcase(table.qualified, full)
