"""The requirements on a target: what the server and the role must have so that a source can be cloned into it.

A role that owns its database and has no other rights is sufficient. Rights that make a clone simpler, such as that of
setting `session_replication_role`, are advice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg import sql

from tidemark.errors import NotPermitted
from tidemark.postgres.doctor import Check, Status
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.facts import NEWEST, OLDEST
from tidemark.postgres.quoted import statement
from tidemark.postgres.requirements import Fix, Mode, Requirement, version_requirement
from tidemark.postgres.requirements.requirement import BOTH, LOGICAL, NEITHER
from tidemark.postgres.requirements.tables import bypass_grant
from tidemark.postgres.session import NO_ENCODING, Session
from tidemark.schema.selection import Selection
from tidemark.target.probes import LackingExtension, LimitedTable, TargetState, read_target_state

_LISTED = 5
_TABLES = ("table", "tables")
_ALL_FIXES = "Run `tidemark doctor SOURCE TARGET`, which prints the SQL."


@dataclass(frozen=True, slots=True)
class TargetReport:
    """All checks of a target. The target can be used unless one of them fails."""

    target: str
    checks: tuple[Check, ...]

    @property
    def status(self) -> Status:
        """The worst result."""
        found = {check.status for check in self.checks}
        return next((status for status in (Status.FAIL, Status.WARN) if status in found), Status.PASS)

    @property
    def failed(self) -> Check | None:
        """The first check that fails, or None."""
        return next((check for check in self.checks if check.status is Status.FAIL), None)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values, with the same texts as on a terminal."""
        checks = [check.as_json() for check in self.checks]
        for check in checks:
            del check["modes"]
        return {"target": self.target, "status": self.status.value, "checks": checks}


def examine_target(source: Dsn, target: Dsn, selection: Selection, mode: Mode | None = Mode.LOGICAL) -> TargetReport:
    """Check every requirement of a clone of the selected tables of a source in this mode. Nothing is created."""
    with Session.open(source, "doctor") as session:
        state = read_target_state(session, source, target, selection)
    checks = (Check(each, _status(each, mode)) for each in target_requirements(state))
    return TargetReport(str(target), tuple(checks))


def require_target(state: TargetState, mode: Mode = Mode.LOGICAL) -> None:
    """Raise the error of the first requirement of this mode that is not met, except advice."""
    unmet = next((each for each in target_requirements(state) if _status(each, mode) is Status.FAIL), None)
    if unmet is not None:
        raise unmet.error(f"{_ALL_FIXES} {unmet.remedy}".rstrip() if len(unmet.fixes) > 1 else None)


def _status(requirement: Requirement, mode: Mode | None) -> Status:
    if requirement.holds:
        return Status.PASS
    return Status.FAIL if requirement.modes == BOTH or mode in requirement.modes else Status.WARN


def target_requirements(state: TargetState) -> Iterator[Requirement]:
    """Yield the requirements in the order in which a user would fix them. Performs no I/O."""
    yield _version(state)
    yield _other_database(state)
    yield _direct_connection(state)
    yield _encoding(state)
    yield _writable(state)
    if not state.can_be_probed:
        return
    yield _schema_creation(state)
    yield _table_creation(state)
    yield from _table_privileges(state)
    yield from _extensions(state)
    yield _sequences(state)
    yield _extension_rows(state)
    yield _owners(state)
    yield _replica_identity(state)
    yield _replication_role(state)
    yield _origins(state)


def _version(state: TargetState) -> Requirement:
    if not OLDEST <= state.major <= NEWEST:
        found = version_requirement(state.major, state.version)
        return replace(found, consequence="this server cannot be a target" if found.modes else found.consequence)
    passed = Requirement("version", BOTH, holds=True, found=f"PostgreSQL {state.version}")
    if state.major >= state.needs.major:
        return passed
    return replace(
        passed,
        modes=NEITHER,
        holds=False,
        found=f"PostgreSQL {state.version} is older than the source, which is version {state.needs.major}",
        remedy=f"Use a target of version {state.needs.major} or later.",
        consequence="definitions that need the newer version cannot be created",
        advice=True,
    )


def _other_database(state: TargetState) -> Requirement:
    name = "another database"
    if not state.same:
        return Requirement(name, BOTH, holds=True, found=f"database {state.database} is not the source")
    return Requirement(
        name,
        BOTH,
        holds=False,
        found=f"database {state.database} is the source itself, or a copy or standby of its server",
        remedy="Name another database or another server as TARGET.",
        consequence="a clone would overwrite the tables that it reads",
    )


def _direct_connection(state: TargetState) -> Requirement:
    name = "direct connection"
    if not state.pooled:
        return Requirement(name, BOTH, holds=True, found="connected to PostgreSQL directly")
    return Requirement(
        name,
        BOTH,
        holds=False,
        found="the connection goes through a connection pooler",
        remedy="Give the host and port of PostgreSQL itself.",
        consequence="temporary tables and locks of a session are lost between its transactions",
    )


def _encoding(state: TargetState) -> Requirement:
    source, target = state.needs.encoding, state.encoding
    if source == target or (target == "UTF8" and source != NO_ENCODING):
        return Requirement("encoding", NEITHER, holds=True, found=f"the database encoding is {target}")
    lacking = "is not valid in" if source == NO_ENCODING else "has a character that is not in"
    return Requirement(
        "encoding",
        NEITHER,
        holds=False,
        found=f"the database encoding is {target}, and that of the source is {source}",
        remedy=f"Create the database with encoding {source if source == NO_ENCODING else 'UTF8'}.",
        consequence="text is stored unchecked"
        if target == NO_ENCODING
        else f"the clone stops at the first text that {lacking} {target}",
        advice=True,
    )


def _writable(state: TargetState) -> Requirement:
    name = "writable"
    if state.in_recovery:
        return Requirement(
            name,
            BOTH,
            holds=False,
            found="the server is a standby",
            remedy="Give the host and port of the primary.",
            consequence="nothing can be written to a standby",
        )
    if state.read_only_settings:
        own = Fix("set default_transaction_read_only = off", "to permit the next statement", allowed=False)
        fixes = (Fix(each, "to permit writing", allowed=False) for each in state.read_only_settings)
        return Requirement(
            name,
            BOTH,
            holds=False,
            found="default_transaction_read_only is on",
            fixes=(own, *fixes),
            consequence="sessions of pg_restore and of applications cannot write",
        )
    return Requirement(name, BOTH, holds=True, found="the server is a primary, and transactions can write")


def _schema_creation(state: TargetState) -> Requirement:
    name = "CREATE on the database"
    if state.creates_schemas is None:
        return Requirement(name, BOTH, holds=True, found=f"role {state.role} can create schemas")
    grant = statement("grant create on database {} to {}", sql.Identifier(state.database), sql.Identifier(state.role))
    return Requirement(
        name,
        BOTH,
        holds=False,
        found=f"role {state.role} cannot create schemas: {state.creates_schemas}",
        fixes=(Fix(grant, "to create schemas", allowed=False),),
        consequence="schema tidemark, which contains the progress of the clone, cannot be created",
        kind=NotPermitted,
    )


def _table_creation(state: TargetState) -> Requirement:
    name, role = "CREATE on schemas", sql.Identifier(state.role)
    if not state.closed_schemas:
        return Requirement(name, BOTH, holds=True, found=f"role {state.role} can create tables in existing schemas")
    create = "grant create, usage on schema {} to {}"
    grants = (statement(create, sql.Identifier(each), role) for each in state.closed_schemas)
    return Requirement(
        name,
        BOTH,
        holds=False,
        found=f"role {state.role} cannot create tables in {_listed(state.closed_schemas)}",
        fixes=tuple(Fix(each, "to create tables", allowed=False) for each in grants),
        consequence="the tables of these schemas cannot be created",
        kind=NotPermitted,
    )


def _table_privileges(state: TargetState) -> Iterator[Requirement]:
    name, role = "existing tables", state.role
    limited = [table for table in state.limited_tables if table.lacking]
    if limited:
        grants = (_grant(table, role) for table in limited)
        yield Requirement(
            name,
            BOTH,
            holds=False,
            found=f"role {role} may not write {_listed([f'{table.schema}.{table.name}' for table in limited])}",
            fixes=tuple(Fix(each, "to write its rows", allowed=False) for each in grants),
            consequence="these tables cannot be filled",
            kind=NotPermitted,
        )
    hidden = [f"{table.schema}.{table.name}" for table in state.limited_tables if table.row_security]
    if hidden:
        yield Requirement(
            name,
            BOTH,
            holds=False,
            found=f"row security policies restrict role {role} in {_listed(hidden)}",
            fixes=(Fix(bypass_grant(role), "to read and write all rows", allowed=False),),
            consequence="rows of these tables cannot be read or written",
            kind=NotPermitted,
        )
    if not limited and not hidden:
        count = state.existing_tables
        found = f"role {role} may write all {count:,} of the tables that exist" if count else "no table exists yet"
        yield Requirement(name, BOTH, holds=True, found=found)


def _grant(table: LimitedTable, role: str) -> str:
    privileges = sql.SQL(", ").join(map(sql.SQL, table.lacking))
    return statement(
        "grant {} on table {} to {}", privileges, sql.Identifier(table.schema, table.name), sql.Identifier(role)
    )


def _extensions(state: TargetState) -> Iterator[Requirement]:
    lacking = [each for each in state.lacking_extensions if not each.available or each.refusal]
    for each in lacking:
        yield _extension(each)
    if not lacking:
        count = len(state.needs.extensions)
        found = f"all {count} of the source exist or can be created" if count else "the source has none"
        yield Requirement("extensions", BOTH, holds=True, found=found)


def _extension(lacking: LackingExtension) -> Requirement:
    extension = lacking.extension
    consequence = f"objects that use the extension {extension.name} cannot be created"
    if not lacking.available:
        return Requirement(
            "extensions",
            BOTH,
            holds=False,
            found=f"extension {extension.name} {extension.version} is not installed on the server",
            remedy=f"Install the package of the extension {extension.name} on the server of the target.",
            consequence=consequence,
        )
    names = sql.Identifier(extension.schema), sql.Identifier(extension.name), sql.Identifier(extension.schema)
    schema, create = (
        statement("create schema if not exists {}", names[0]),
        statement("create extension {} with schema {}", *names[1:]),
    )
    return Requirement(
        "extensions",
        BOTH,
        holds=False,
        found=f"extension {extension.name} cannot be created: {lacking.refusal}",
        fixes=tuple(Fix(each, "as a superuser", allowed=False) for each in (schema, create)),
        consequence=consequence,
        kind=NotPermitted,
    )


def _sequences(state: TargetState) -> Requirement:
    name, role = "sequences of the source", state.needs.role
    hidden = state.needs.hidden_sequences
    if not hidden:
        return Requirement(name, BOTH, holds=True, found=f"role {role} may read all selected sequences")
    to = sql.Identifier(role)
    grants = (statement("grant select on sequence {} to {}", sql.Identifier(*each), to) for each in hidden)
    return Requirement(
        name,
        BOTH,
        holds=False,
        found=f"role {role} may not read {_listed(['.'.join(each) for each in hidden])} at the source",
        fixes=tuple(Fix(each, "to read its last value, at the source", allowed=False) for each in grants),
        consequence="the sequences of the target cannot be set",
        kind=NotPermitted,
    )


def _extension_rows(state: TargetState) -> Requirement:
    name, tables = "rows of extensions", [f"{table} ({rows} rows)" for table, rows in state.needs.extension_rows]
    if not tables:
        return Requirement(name, NEITHER, holds=True, found="no table of an extension has rows")
    return Requirement(
        name,
        NEITHER,
        holds=False,
        found=f"tables of extensions have rows: {_listed(tables)}",
        remedy="Copy the rows that CREATE EXTENSION does not create when the clone is complete.",
        consequence="these rows are not cloned, and their changes are not followed",
        advice=True,
    )


def _owners(state: TargetState) -> Requirement:
    name, role = "owners", sql.Identifier(state.role)
    owners = [f"{owner} ({tables:,} {_TABLES[tables > 1]})" for owner, tables in state.strange_owners]
    if not owners:
        return Requirement(name, NEITHER, holds=True, found=f"role {state.role} can give tables to their owners")
    grants = (statement("grant {} to {}", sql.Identifier(owner), role) for owner, _ in state.strange_owners)
    return Requirement(
        name,
        NEITHER,
        holds=False,
        found=f"role {state.role} cannot give tables to {_listed(owners)}",
        fixes=tuple(Fix(each, "after the role was created", allowed=False) for each in grants),
        consequence=f"all objects belong to role {state.role}",
        advice=True,
    )


def not_cloned(state: TargetState) -> Iterator[str]:
    """Yield what a clone does not have, for the log and the plan."""
    requirement = _extension_rows(state)
    if not requirement.holds:
        yield f"{requirement.found}; {requirement.consequence}"


def _replica_identity(state: TargetState) -> Requirement:
    """Without a replica identity, the stream of a table has only inserts and truncates."""
    name, without = "replica identity at the source", state.needs.without_identity
    if not without:
        return Requirement(name, LOGICAL, holds=True, found="every selected table has one")
    identities = [statement("alter table {} replica identity full", sql.Identifier(*each)) for each in without]
    return Requirement(
        name,
        LOGICAL,
        holds=False,
        found=f"{_listed(['.'.join(each) for each in without])} {'has' if len(without) == 1 else 'have'} no primary "
        "key or other replica identity",
        fixes=tuple(Fix(each, "or a primary key, at the source", allowed=False) for each in identities),
        remedy="Run it at the source, leave such a table out with `--exclude`, or use `--mode poll`.",
        consequence="the stream has no UPDATE and DELETE of such a table, so it cannot be cloned in mode logical",
    )


def _replication_role(state: TargetState) -> Requirement:
    name, role = "session_replication_role", state.role
    if state.sets_replication_role is None:
        return Requirement(name, NEITHER, holds=True, found=f"role {role} can set it to replica")
    missing = Requirement(
        name,
        NEITHER,
        holds=False,
        found=f"role {role} cannot set it to replica",
        consequence="triggers and foreign keys are created at the end of a clone and not before",
        advice=True,
    )
    if state.major < 15:
        return replace(missing, remedy="Use a superuser, or PostgreSQL 15 or later, which can grant this right.")
    grant = statement("grant set on parameter session_replication_role to {}", sql.Identifier(role))
    return replace(missing, fixes=(Fix(grant, "to write without triggers", allowed=False),))


def _origins(state: TargetState) -> Requirement:
    name, role = "replication origin", state.role
    if state.uses_origins is None and not state.closed_functions:
        return Requirement(name, NEITHER, holds=True, found=f"role {role} can use replication origins")
    to = sql.Identifier(role)
    grants = (statement("grant execute on function {} to {}", sql.SQL(each), to) for each in state.closed_functions)
    cause = "" if state.closed_functions else f": {state.uses_origins}"
    return Requirement(
        name,
        NEITHER,
        holds=False,
        found=f"role {role} cannot use replication origins{cause}",
        fixes=tuple(Fix(each, "to mark what a clone writes", allowed=False) for each in grants),
        remedy="" if state.closed_functions else "Raise max_replication_slots, or use another role.",
        consequence="rows that a clone writes cannot be distinguished from others in the target's own replication",
        advice=True,
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
