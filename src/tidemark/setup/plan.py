"""The statements a source still needs, each with its reason and whether the connected role may run it. Pure.

Minimal: a statement is there only if something it brings about is not there yet. Complete: when all have been run, and
the server restarted where one asks for it, `doctor` has nothing left to fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from psycopg import sql

from tidemark.source.facts import Facts, Role
from tidemark.source.publication import Published, Wanted, mending
from tidemark.source.quoted import statement, table_name
from tidemark.source.rights import missing_grants, replication_grant
from tidemark.source.selection import Chosen

SLOTS_NEEDED = 2  # the mirror's own, and a temporary one while tables are copied


@dataclass(frozen=True, slots=True)
class Step:
    """One statement. `restart` means that it takes effect when the server is started again."""

    statement: str
    why: str
    allowed: bool
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What must be done, and what the owner may wish to do besides."""

    database: str
    role: str
    steps: tuple[Step, ...]
    advice: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Present:
    """What is there: the connected role's facts, the mirror's role if it exists, its view of the tables."""

    facts: Facts
    role_name: str
    role: Role | None
    chosen: Chosen
    publications: tuple[tuple[Wanted, Published | None], ...]
    has_slot: bool
    public_connects: bool
    database_owned: bool


def plan(present: Present) -> Plan:
    """Compare what is there with what a mirror needs."""
    steps = (*_server(present), *_role(present), *_rights(present), *_publications(present))
    return Plan(present.facts.database, present.role_name, steps, tuple(_advice(present)))


def _server(present: Present) -> Iterator[Step]:
    facts = present.facts
    superuser = facts.role.superuser
    if not facts.decodes:
        yield Step("alter system set wal_level = 'logical'", "to put row changes into the WAL", superuser, restart=True)
    need = SLOTS_NEEDED - present.has_slot
    for setting, most, used in (
        ("max_replication_slots", facts.slots_max, facts.slots_used),
        ("max_wal_senders", facts.senders_max, facts.senders_used),
    ):
        if most - used < need:
            yield Step(
                f"alter system set {setting} = {used + need}", f"for {need} more of them", superuser, restart=True
            )


def _role(present: Present) -> Iterator[Step]:
    superuser = present.facts.role.superuser
    name = sql.Identifier(present.role_name)
    hidden = any(table.row_security for table in present.chosen.tables)
    if present.role is None:
        create = statement("create role {} login replication", name)
        yield Step(create, "the mirror's role; give it a password", superuser)
    else:
        if not present.role.may_log_in:
            yield Step(statement("alter role {} login", name), "to connect", superuser)
        if not present.role.may_replicate:
            grant = replication_grant(present.role_name, present.facts.replication_group)
            yield Step(grant, "to receive the stream of changes", superuser)
    if not (present.role.connects if present.role else present.public_connects):
        grant = statement("grant connect on database {} to {}", sql.Identifier(present.facts.database), name)
        yield Step(grant, "to connect to it", present.database_owned)
    if hidden:
        yield Step(statement("alter role {} bypassrls", name), "to copy all rows in spite of row security", superuser)


def _rights(present: Present) -> Iterator[Step]:
    for grant in missing_grants(present.chosen.tables, present.role_name):
        yield Step(grant.statement, "to copy what is in it", grant.allowed)


def _publications(present: Present) -> Iterator[Step]:
    for want, found in present.publications:
        may_create = present.facts.role.creates_in_database
        allowed = (may_create if found is None else found.owned) and all(table.owned for table in want.tables)
        what = "tables whose rows have an identity" if "update" in want.operations else "inserts of the other tables"
        for mend in mending(want, found):
            yield Step(mend.as_string(None), f"to stream {what}", allowed)


def _advice(present: Present) -> Iterator[str]:
    for table in present.chosen.tables:
        if not table.identifies_rows:
            yield (
                f"{table.qualified} has no replica identity: only its inserts and truncates can be mirrored. Either:\n"
                + statement("  alter table {} add primary key (…);\n", table_name(table))
                + statement("  alter table {} replica identity full;", table_name(table))
            )
    if present.role is None or not (present.role.sees_all_activity or present.role.superuser):
        grant = statement("grant pg_read_all_stats to {};", sql.Identifier(present.role_name))
        yield f"To let it say how long a transaction that blocks a copy has been running:\n  {grant}"
