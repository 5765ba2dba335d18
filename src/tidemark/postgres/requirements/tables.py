"""Requirements on the selected tables. A table that does not meet one is left out; the others are mirrored.

If no table can be read, no mode works.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psycopg import sql

from tidemark.errors import NotPermitted
from tidemark.postgres.quoted import statement, table_name
from tidemark.postgres.requirements.requirement import BOTH, NEITHER, Fix, Mode, Requirement
from tidemark.postgres.requirements.state import SourceState
from tidemark.postgres.unmirrored import summarize
from tidemark.schema.table import Generated, Table


def table_requirements(state: SourceState) -> Iterator[Requirement]:
    """Yield the requirements in the order in which a user would fix them."""
    yield _select_privilege(state)
    yield _row_security(state)
    yield _replica_identity(state)
    yield from _generated(state)
    yield from _names_in_values(state)
    for line in summarize(state.unmirrored):
        yield Requirement(
            "not mirrored", NEITHER, holds=False, found=line, consequence="not in the mirror", advice=True
        )


def _modes(state: SourceState) -> frozenset[Mode]:
    """Return both modes if no table can be read; none if the mirror works with the other tables."""
    readable = any(table.readable and not table.row_security for table in state.chosen.tables)
    return NEITHER if readable else BOTH


def _left_out(tables: Sequence[Table], state: SourceState) -> str:
    if _modes(state):
        return "no selected table can be read, so there is nothing to mirror"
    return "this table is not copied" if len(tables) == 1 else "these tables are not copied"


def _select_privilege(state: SourceState) -> Requirement:
    hidden = [table for table in state.chosen.tables if not table.readable]
    name = "SELECT privilege"
    if not hidden:
        found = f"role {state.role_name} may read {counted(state.chosen.tables)}"
        return Requirement(name, NEITHER, holds=True, found=found)
    return Requirement(
        name,
        _modes(state),
        holds=False,
        found=f"role {state.role_name} may not read {_listed(hidden)}",
        fixes=tuple(missing_grants(hidden, state.role_name)),
        consequence=_left_out(hidden, state),
        kind=NotPermitted,
    )


def missing_grants(tables: Sequence[Table], role: str) -> Iterator[Fix]:
    """Yield the grants that a role lacks to read tables, on schemas first."""
    to = sql.Identifier(role)
    schemas = {table.schema: table.schema_owned for table in tables if not table.schema_usable}
    for schema, owned in sorted(schemas.items()):
        yield Fix(statement("grant usage on schema {} to {}", sql.Identifier(schema), to), "to read its tables", owned)
    for table in tables:
        if not table.selectable:
            grant = statement("grant select on table {} to {}", table_name(table), to)
            yield Fix(grant, "to copy the table", table.owned)


def bypass_grant(role: str) -> str:
    """Return the statement with which a role reads all rows of tables with row security."""
    return statement("alter role {} bypassrls", sql.Identifier(role))


def _row_security(state: SourceState) -> Requirement:
    filtered = [table for table in state.chosen.tables if table.row_security]
    name, role = "row security", state.role_name
    if not filtered:
        return Requirement(name, NEITHER, holds=True, found=f"no policy hides rows from role {role}")
    return Requirement(
        name,
        _modes(state),
        holds=False,
        found=f"row security policies hide rows of {_listed(filtered)} from role {role}",
        fixes=(Fix(bypass_grant(role), "to copy all rows of tables with row security", state.facts.role.superuser),),
        consequence=f"{_left_out(filtered, state)}: hidden rows would be missing from the copy",
        kind=NotPermitted,
    )


def _replica_identity(state: SourceState) -> Requirement:
    without = [table for table in state.chosen.tables if not table.identifies_rows]
    name = "replica identity"
    if not without:
        return Requirement(name, NEITHER, holds=True, found=f"{counted(state.chosen.tables)} checked")
    identities = (statement("alter table {} replica identity full", table_name(table)) for table in without)
    return Requirement(
        name,
        NEITHER,
        holds=False,
        found=f"{_listed(without)} {'has' if len(without) == 1 else 'have'} no primary key or other replica identity",
        fixes=tuple(
            Fix(each, "or add a primary key", table.owned) for each, table in zip(identities, without, strict=True)
        ),
        consequence="the stream contains only inserts and truncates of such a table, so it is not mirrored with "
        "logical decoding (`--mode poll` mirrors it)",
        advice=True,
    )


def _generated(state: SourceState) -> Iterator[Requirement]:
    left_out = "these columns are left out of the mirror"
    stored = _with_generated(state, Generated.STORED)
    if stored and state.facts.major < 18:
        yield Requirement(
            "generated columns",
            NEITHER,
            holds=False,
            found=f"stored generated columns in {_listed(stored)}, which are in the stream from PostgreSQL 18 on",
            remedy="Upgrade the server to PostgreSQL 18 or later.",
            consequence=left_out,
            advice=True,
        )
    virtual = _with_generated(state, Generated.VIRTUAL)
    if virtual:
        yield Requirement(
            "generated columns",
            NEITHER,
            holds=False,
            found=f"virtual generated columns in {_listed(virtual)}, which PostgreSQL does not store",
            remedy="Declare the columns as stored.",
            consequence=left_out,
            advice=True,
        )


def _with_generated(state: SourceState, kind: Generated) -> list[Table]:
    return [table for table in state.chosen.tables if any(column.generated is kind for column in table.columns)]


def _names_in_values(state: SourceState) -> Iterator[Requirement]:
    tables = [each for each in state.chosen.tables if any(column.type.follows_names for column in each.columns)]
    if tables:
        yield Requirement(
            "names in values",
            NEITHER,
            holds=False,
            found=f"columns of types such as regclass in {_listed(tables)}, which print the current name of an object",
            remedy="Store the name as text, or the oid as oid.",
            consequence="the mirror has the name that the object had when the row was written; "
            "a later rename is not in the stream",
            advice=True,
        )


def _listed(tables: Sequence[Table], most: int = 5) -> str:
    names = ", ".join(table.qualified for table in tables[:most])
    return names if len(tables) <= most else f"{names} and {len(tables) - most} more"


def counted(tables: Sequence[Table]) -> str:
    """Return the number of tables as text."""
    return "1 table" if len(tables) == 1 else f"{len(tables)} tables"
