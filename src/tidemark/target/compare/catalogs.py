"""The tables of two servers side by side: how their definitions differ, and which columns and keys are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidemark.errors import InvalidValue, NotPermitted, UnsupportedServer
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.requirements.tables import bypass_grant, missing_grants
from tidemark.postgres.session import Session
from tidemark.postgres.sqlstate import Endpoint
from tidemark.reads.canonical import ComparedColumn
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.selection import STATE_SCHEMA, Pattern, matched
from tidemark.schema.table import Catalog, Column, PgType, RelationKind, Table

_STORED: Mapping[str, pa.DataType] = {
    "pg_catalog.int2": pa.int16(),
    "pg_catalog.int4": pa.int32(),
    "pg_catalog.int8": pa.int64(),
    "pg_catalog.char": pa.binary(1),  # the type "char", not char(n)
}
_KINDS = {
    RelationKind.TABLE: "a table",
    RelationKind.PARTITIONED: "a partitioned table",
    RelationKind.FOREIGN: "a foreign table",
}
_PRINTED = r"""
    select row(0.1::float8, '-0'::float8, 2e23::float8, 0.1::float4, 1.50::numeric, '1234.5'::money, '\xff'::bytea,
               interval '1 year -2 days 03:04:05.6', timestamptz '0044-03-15 12:00+00 BC', time '24:00', 'a b'::text,
               '{"a b",NULL,"null"}'::text[], point '(0.1,-0)', int4range '[1,5)', 'pg_class'::regclass)::text
"""
_PRINTED_SPACES = r"select row(U&'\0085', U&'\00a0')::text"  # some C libraries count these bytes as white space


@dataclass(frozen=True, slots=True)
class ServerTables:
    """The tables of a server as its snapshot shows them, and the role that reads them.

    `printed` are texts that the server generates for some values.
    """

    server: Endpoint
    role: str
    catalog: Catalog
    printed: tuple[str, ...]

    @classmethod
    def read(cls, session: Session) -> ServerTables:
        """Read the catalog in the transaction of a session."""
        (role,) = session.row("select current_user::text")
        printed = [*session.row(_PRINTED)]
        if session.connection.info.parameter_status("server_encoding") == "UTF8":
            printed += session.row(_PRINTED_SPACES)
        return cls(session.server, role, read_catalog(session), tuple(printed))

    def chosen(self, patterns: Sequence[Pattern]) -> dict[tuple[str, str], Table]:
        """The tables that match a pattern, with their partitions and the tables that inherit from them."""
        taken = matched(self.catalog, patterns, inheriting=True) if patterns else self.catalog.by_oid.keys()
        return {
            (table.schema, table.name): table
            for table in self.catalog.tables
            if table.oid in taken and table.kind is not RelationKind.FOREIGN and table.schema != STATE_SCHEMA
        }

    def parents(self, table: Table) -> list[str]:
        """The names of the tables above it: its partitioned table, or those that it inherits from."""
        above = [table.parent] if table.parent is not None else table.inherits
        return [self.catalog.by_oid[oid].qualified for oid in above]

    def require_readable(self, table: Table) -> None:
        """Raise an error with the statement that permits reading all rows of a table."""
        label = self.server.object(table.qualified)
        if table.flaw is not None:
            raise InvalidValue(f"{label}: {table.flaw}", "Rename the object in a session with its encoding.")
        if not table.readable:
            grants = "; ".join(fix.statement for fix in missing_grants([table], self.role))
            raise NotPermitted(f"role {self.role} may not read {label}", f"Run `{grants}`.")
        if table.row_security:
            message = f"row security policies hide rows of {label} from role {self.role}"
            raise NotPermitted(message, f"Run `{bypass_grant(self.role)}`.")


def require_same_texts(source: ServerTables, target: ServerTables) -> None:
    """Refuse servers that print the same values differently."""
    for one, other in zip(source.printed, target.printed, strict=False):  # one more with encoding UTF8
        if one != other:
            raise UnsupportedServer(
                f"the servers print the same values differently: {one!r} at the source, {other!r} at the target",
                "Compare servers that run on the same operating system.",
            )


def paired(
    source: ServerTables, target: ServerTables, patterns: Sequence[Pattern]
) -> list[tuple[Table | None, Table | None]]:
    """Return the chosen tables of both servers by name; None where a server does not have the table."""
    for pattern in patterns:
        if not any(pattern.matches(table) for side in (source, target) for table in side.catalog.tables):
            raise InvalidValue(
                f"neither the source nor the target has a table that matches {pattern.text!r}",
                "Use SCHEMA.TABLE with the wildcards * and ?; without a schema, the pattern applies to schema public.",
            )
    there, here = source.chosen(patterns), target.chosen(patterns)
    if not there and not here:
        raise InvalidValue("there is no table to compare", "Check the names of the databases.")
    return [(there.get(name), here.get(name)) for name in sorted(there.keys() | here.keys())]


def definition_differences(source: ServerTables, target: ServerTables, one: Table, other: Table) -> Iterator[str]:
    """Yield how the definitions of a table differ, as far as its rows depend on them."""
    if one.kind is not other.kind:
        yield f"{_KINDS[one.kind]} at the source, {_KINDS[other.kind]} at the target"
    above, below = source.parents(one), target.parents(other)
    if above != below:
        yield f"its parents are {_listed(above)} at the source, {_listed(below)} at the target"
    names, others = ([column.name for column in table.columns] for table in (one, other))
    yield from (f"column {name} exists only at the source" for name in names if name not in others)
    yield from (f"column {name} exists only at the target" for name in others if name not in names)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def compared_columns(one: Table, other: Table) -> tuple[tuple[ComparedColumn, ...], tuple[ComparedColumn, ...]]:
    """Return the columns that both tables have, in the order of the source, and those of them that are the key.

    If the source has no key of these columns, it is that of the target.
    """
    others = {column.name: column for column in other.columns}
    columns = {
        column.name: ComparedColumn(column.name, column.name, _stored(column, others[column.name]), None)
        for column in one.columns
        if column.name in others
    }
    keys = (_key_names(table) for table in (one, other))
    key = next((names for names in keys if names and columns.keys() >= set(names)), ())
    return tuple(columns.values()), tuple(columns[name] for name in key)


def _key_names(table: Table) -> tuple[str, ...]:
    names = {column.attnum: column.name for column in table.columns}
    return tuple(names[attnum] for attnum in Fingerprint.of(table, ()).key)


def _stored(one: Column, other: Column) -> pa.DataType:
    """Return how a column is compared: as text, or by its own type if both servers have the same.

    A column with nulls is not compared as an integer, because a null has no position among the rows.
    """
    kinds = {_STORED.get(_base(column.type).name, pa.string()) for column in (one, other)}
    nullable = not (one.not_null and other.not_null)
    kind = kinds.pop() if len(kinds) == 1 else pa.string()
    return pa.string() if pa.types.is_integer(kind) and nullable else kind


def _base(kind: PgType) -> PgType:
    while kind.kind == "d":
        (part,) = kind.parts
        kind = part.type
    return kind
