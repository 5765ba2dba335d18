"""Checks of the tables that are to be mirrored: pure functions from what was seen to lines."""

from __future__ import annotations

from collections.abc import Iterator

from psycopg import sql

from tidemark.doctor.check import Check, Seen, Status
from tidemark.schema.table import Generated, Table
from tidemark.source.quoted import statement, table_name
from tidemark.source.rights import missing_grants


def table_checks(seen: Seen) -> Iterator[Check]:
    """In the order in which a person would mend things."""
    yield from _readable(seen)
    yield from _row_security(seen)
    yield from _identities(seen)
    yield from _generated(seen)
    yield from _following(seen)
    yield from _skipped(seen)


def _readable(seen: Seen) -> Iterator[Check]:
    hidden = [table for table in seen.chosen.tables if not table.readable]
    if not hidden:
        yield Check("read rights", Status.PASS, f"all of {count(seen.chosen.tables)}")
        return
    yield Check(
        "read rights",
        Status.FAIL,
        f"{_some(hidden)} cannot be read",
        "\n".join(f"{grant.statement};" for grant in missing_grants(hidden, seen.facts.role.name)),
        "these tables cannot be copied, although the stream would carry their changes",
    )


def _row_security(seen: Seen) -> Iterator[Check]:
    filtered = [table for table in seen.chosen.tables if table.row_security]
    if not filtered:
        yield Check("row security", Status.PASS, "no policy hides rows from us")
        return
    yield Check(
        "row security",
        Status.FAIL,
        f"policies on {_some(filtered)} hide rows from role {seen.facts.role.name}",
        statement("alter role {} bypassrls;", sql.Identifier(seen.facts.role.name)),
        "a copy of these tables is refused: rows it does not see would look deleted",
    )


def _identities(seen: Seen) -> Iterator[Check]:
    without = [table for table in seen.chosen.tables if not table.identifies_rows]
    if not without:
        yield Check("replica identity", Status.PASS, f"all of {count(seen.chosen.tables)}")
        return
    yield Check(
        "replica identity",
        Status.WARN,
        f"{_some(without)} cannot name the rows that are updated and deleted",
        "\n".join(
            statement("alter table {} replica identity full; -- or give it a primary key", table_name(t))
            for t in without
        ),
        "only their inserts and truncates are in the stream, so they cannot be mirrored exactly",
    )


def _generated(seen: Seen) -> Iterator[Check]:
    stored = [t for t in seen.chosen.tables if any(c.generated is Generated.STORED for c in t.columns)]
    if stored and seen.facts.major < 18:
        yield Check(
            "generated columns",
            Status.WARN,
            f"{_some(stored)} have stored generated columns, which the stream carries from PostgreSQL 18 on",
            "-- upgrade to PostgreSQL 18 or later",
            "these columns are left out of the mirror",
        )
    virtual = [t for t in seen.chosen.tables if any(c.generated is Generated.VIRTUAL for c in t.columns)]
    if virtual:
        yield Check(
            "generated columns",
            Status.WARN,
            f"{_some(virtual)} have virtual generated columns, which are stored nowhere",
            "-- declare them as stored",
            "these columns are left out of the mirror",
        )


def _following(seen: Seen) -> Iterator[Check]:
    following = [t for t in seen.chosen.tables if any(c.type.follows_names for c in t.columns)]
    if following:
        yield Check(
            "names in values",
            Status.WARN,
            f"{_some(following)} have columns such as regclass, which print the present name of another object",
            "-- store the name as text or the oid as oid",
            "the mirror keeps the name as it was when the row was written; a later rename is not in the stream",
        )


def _skipped(seen: Seen) -> Iterator[Check]:
    for skipped in seen.chosen.skipped:
        yield Check(
            "skipped",
            Status.WARN,
            f"{skipped.table.qualified}: {skipped.reason}",
            otherwise="it is not mirrored",
        )


def _some(tables: list[Table], most: int = 5) -> str:
    names = ", ".join(table.qualified for table in tables[:most])
    return names if len(tables) <= most else f"{names} and {len(tables) - most} more"


def count(tables: tuple[Table, ...]) -> str:
    """How many tables, in words."""
    return "1 table" if len(tables) == 1 else f"{len(tables)} tables"
