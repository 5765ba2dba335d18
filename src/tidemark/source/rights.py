"""The grants that a role still needs to replicate and to read tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from psycopg import sql

from tidemark.schema.table import Table
from tidemark.source.quoted import statement, table_name


@dataclass(frozen=True, slots=True)
class Grant:
    """One statement, and whether the connected role may run it."""

    statement: str
    allowed: bool


def replication_grant(role: str, group: str | None) -> str:
    """The statement that lets a role replicate: by its attribute, or where a service has one, by the group's right."""
    if group is None:
        return statement("alter role {} replication", sql.Identifier(role))
    return statement("grant {} to {}", sql.Identifier(group), sql.Identifier(role))


def missing_grants(tables: Iterable[Table], role: str) -> Iterator[Grant]:
    """Schemas first, then tables; nothing that is there already."""
    listed = tuple(tables)
    to = sql.Identifier(role)
    schemas = {table.schema: table.schema_owned for table in listed if not table.schema_usable}
    for schema, owned in sorted(schemas.items()):
        yield Grant(statement("grant usage on schema {} to {}", sql.Identifier(schema), to), owned)
    for table in listed:
        if not table.selectable:
            yield Grant(statement("grant select on table {} to {}", table_name(table), to), table.owned)
