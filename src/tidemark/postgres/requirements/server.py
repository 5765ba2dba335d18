"""Requirements on the server and on the mirror's role. Performs no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from psycopg import sql

from tidemark.errors import NotPermitted, SourceBusy, UnsupportedServer
from tidemark.postgres.facts import NEWEST, OLDEST
from tidemark.postgres.quoted import statement
from tidemark.postgres.requirements.requirement import (
    BOTH,
    LOGICAL,
    NEITHER,
    POLL,
    POLLS,
    PRIVILEGE,
    WAL_LEVEL,
    Fix,
    Mode,
    Requirement,
    size,
)
from tidemark.postgres.requirements.state import SourceState

# The first minor release in which DDL that does not wait for writers loses no changes: see "Avoid data loss when DDL
# operations that don't take a strong lock affect tables that are being logically replicated" in the notes of 17.5.
_COMPLETE_FROM = {14: 18, 15: 13, 16: 9, 17: 5}


def version_requirement(major: int, version: str) -> Requirement:
    """Return the version requirement, which is checked before reading anything that older servers do not have."""
    passed = Requirement("version", BOTH, holds=True, found=f"PostgreSQL {version}")
    if major < OLDEST:
        return replace(
            passed,
            holds=False,
            found=f"the server is PostgreSQL {version}; Tidemark supports version {OLDEST} and later",
            remedy=f"Upgrade the server to PostgreSQL {OLDEST} or later.",
            consequence="this server cannot be mirrored",
        )
    fixed, minor = _COMPLETE_FROM.get(major), re.match(r"\d+\.(\d+)", version)
    if fixed is not None and minor is not None and int(minor[1]) < fixed:
        return replace(
            passed,
            modes=LOGICAL,
            holds=False,
            found=f"PostgreSQL {version} can omit changes from the stream if a table is published, or a type altered, "
            "while transactions write",
            remedy=f"Upgrade the server to PostgreSQL {major}.{fixed} or later.",
            consequence=POLLS,
        )
    if major > NEWEST:
        return replace(
            passed,
            modes=NEITHER,
            holds=False,
            found=f"PostgreSQL {version} is newer than the versions that this Tidemark was tested with "
            f"({OLDEST} to {NEWEST})",
            remedy="Upgrade Tidemark.",
            consequence="Tidemark stops with an error if the replication protocol of this version differs",
            advice=True,
        )
    return passed


def server_requirements(state: SourceState) -> Iterator[Requirement]:
    """Yield the requirements in the order in which a user would fix them."""
    yield version_requirement(state.facts.major, state.facts.version)
    yield _direct_connection(state)
    yield _encryption(state)
    yield _encoding(state)
    yield _primary(state)
    yield _wal_level(state)
    if state.facts.wal_level_pending:
        yield _pending_wal_level(state)
    yield from _role(state)
    yield _retained_wal(state)
    if state.facts.idle_slot_timeout_s > 0:
        yield _idle_timeout(state)
    yield _activity(state)
    yield _messages(state)


def capacity_requirements(state: SourceState) -> Iterator[Requirement]:
    """Yield the requirements of free slots and WAL senders for a mirror that is about to start."""
    yield _slots(state)
    yield _senders(state)


def _direct_connection(state: SourceState) -> Requirement:
    if not state.facts.pooled:
        return Requirement("direct connection", LOGICAL, holds=True, found="connected to PostgreSQL directly")
    return Requirement(
        "direct connection",
        LOGICAL,
        holds=False,
        found="the connection goes through a connection pooler, and logical decoding needs a direct one",
        remedy="Give the host and port of PostgreSQL itself.",
        consequence=f"no replication connection can be opened through a pooler, and {POLLS}",
    )


def _encryption(state: SourceState) -> Requirement:
    facts = state.facts
    if facts.encrypted or facts.local:
        found = "the connection is encrypted" if facts.encrypted else "not needed for a connection on this machine"
        return Requirement("encryption", NEITHER, holds=True, found=found)
    return Requirement(
        "encryption",
        NEITHER,
        holds=False,
        found="the connection is not encrypted and uses a network",
        remedy="Add sslmode=verify-full to the connection string.",
        consequence="anyone with access to the network can read and change the rows that are sent",
        advice=True,
    )


def _encoding(state: SourceState) -> Requirement:
    encoding = state.facts.encoding
    if encoding != "SQL_ASCII":
        return Requirement("encoding", NEITHER, holds=True, found=f"the database encoding is {encoding}")
    return Requirement(
        "encoding",
        NEITHER,
        holds=False,
        found="the database encoding is SQL_ASCII, so text may be in any encoding",
        remedy="Dump the database and restore it into one with the encoding UTF8.",
        consequence="a table stops being mirrored at the first text value that is not valid UTF-8",
        advice=True,
    )


def _primary(state: SourceState) -> Requirement:
    """Require the primary for logical mirroring, even where a standby supports logical decoding.

    From version 17, Tidemark's slot has failover enabled, which a standby rejects (`slot.py`). A copy whose slot is
    blocked takes an ordinary snapshot and needs an insert LSN, which a standby does not have
    (`pipeline/copy/snapshots.py`).
    """
    facts = state.facts
    if not facts.in_recovery:
        return Requirement("primary", LOGICAL, holds=True, found="the server is a primary")
    able = "" if facts.major >= 16 else f" of PostgreSQL {facts.major}, which does not support logical decoding"
    return Requirement(
        "primary",
        LOGICAL,
        holds=False,
        found=f"the server is a standby{able}; logical mirroring needs the primary",
        remedy="Give the host and port of the primary.",
        consequence=f"no replication slot is created on a standby, and {POLLS}",
    )


def _wal_level(state: SourceState) -> Requirement:
    facts = state.facts
    if facts.wal_level == "logical":
        return Requirement(WAL_LEVEL, LOGICAL, holds=True, found="wal_level is logical")
    if facts.decodes:
        found = f"wal_level is {facts.wal_level} and becomes logical with the first logical slot"
        return Requirement(WAL_LEVEL, LOGICAL, holds=True, found=found)
    consequence = f"the WAL does not contain the changes of rows, and {POLLS}"
    found = f"wal_level is {facts.wal_level}; logical decoding needs wal_level = logical"
    missing = Requirement(WAL_LEVEL, LOGICAL, holds=False, found=found, consequence=consequence)
    if facts.switch_off:
        return replace(
            missing,
            found=f"{found} (turn on {facts.switch_off})",
            remedy=f"Turn on {facts.switch_off} in the settings of the service that runs the server, and restart it.",
        )
    fix = Fix("alter system set wal_level = logical", "to write row changes to the WAL", _superuser(state), True)
    return replace(missing, fixes=(fix,))


def _pending_wal_level(state: SourceState) -> Requirement:
    return Requirement(
        "wal_level after a restart",
        NEITHER,
        holds=False,
        found="wal_level was changed in the configuration, and the change takes effect when the server is restarted",
        fixes=(Fix("alter system set wal_level = logical", "to keep wal_level as it is", _superuser(state)),),
        consequence="a server with a logical replication slot does not start with wal_level below logical",
        advice=True,
    )


def _role(state: SourceState) -> Iterator[Requirement]:
    facts, role, name = state.facts, state.role, state.role_name
    if role is None:
        yield _shut_out("role", f"role {name} does not exist", *_created(state))
    elif not role.may_log_in:
        login = statement("alter role {} login", sql.Identifier(name))
        yield _shut_out("login", f"role {name} may not log in", Fix(login, "to connect", _superuser(state)))
    if not (role.connects if role is not None else state.public_connects):
        database = sql.Identifier(facts.database)
        grant = statement("grant connect on database {} to {}", database, sql.Identifier(name))
        found = f"role {name} does not have the CONNECT privilege on database {facts.database}"
        yield _shut_out("CONNECT privilege", found, Fix(grant, "to connect to the database", state.database_owned))
    if role is not None:
        yield _replication_privilege(state)
        if not role.reads_control_data:
            yield _control_data(state)


def _shut_out(name: str, found: str, *fixes: Fix) -> Requirement:
    consequence = "the mirror cannot connect"
    return Requirement(name, BOTH, False, found, fixes, consequence=consequence, kind=NotPermitted)


def _created(state: SourceState) -> Iterator[Fix]:
    name, group = sql.Identifier(state.role_name), state.facts.replication_group
    how = statement("create role {} login", name) if group else statement("create role {} login replication", name)
    yield Fix(how, "the role that the mirror connects as; give it a password", _superuser(state))
    if group is not None:
        yield Fix(_replication_grant(state), _TO_REPLICATE, _superuser(state))


_TO_REPLICATE = "to open replication connections"


def _replication_grant(state: SourceState) -> str:
    """Return the statement that grants replication: the role attribute, or membership in the service's group."""
    role, group = sql.Identifier(state.role_name), state.facts.replication_group
    if group is None:
        return statement("alter role {} replication", role)
    return statement("grant {} to {}", sql.Identifier(group), role)


def _replication_privilege(state: SourceState) -> Requirement:
    name = state.role_name
    if state.role is not None and state.role.may_replicate:
        return Requirement(PRIVILEGE, LOGICAL, holds=True, found=f"role {name} may open replication connections")
    return Requirement(
        PRIVILEGE,
        LOGICAL,
        holds=False,
        found=f"role {name} may not open replication connections",
        fixes=(Fix(_replication_grant(state), _TO_REPLICATE, _superuser(state)),),
        consequence=f"changes cannot be streamed to role {name}, and {POLLS}",
        kind=NotPermitted,
    )


def _control_data(state: SourceState) -> Requirement:
    functions = ("pg_control_system", "pg_control_checkpoint", "pg_control_recovery")
    role = sql.Identifier(state.role_name)
    grants = (statement("grant execute on function {}() to {}", sql.Identifier(each), role) for each in functions)
    return Requirement(
        "control data",
        POLL,
        holds=False,
        found=f"role {state.role_name} may not execute {', '.join(functions)}",
        fixes=tuple(Fix(grant, "to identify the server when polling", _superuser(state)) for grant in grants),
        consequence="the server cannot be polled, because polling cannot identify it",
        kind=NotPermitted,
    )


def _slots(state: SourceState) -> Requirement:
    """Require one permanent slot. A copy briefly uses a second slot if one is free, and otherwise none."""
    limit = state.facts.slots_max, state.facts.slots_used
    needed = 1 if state.own_slot is None else 0
    return _room(state, "max_replication_slots", "replication slot", LOGICAL, limit, needed)


def _senders(state: SourceState) -> Requirement:
    """Require one WAL sender unless the mirror's slot has one; a mirror with a slot waits for it instead of polling."""
    facts, own = state.facts, state.own_slot
    modes = BOTH if own is not None and facts.senders_max > 0 else LOGICAL
    needed = 0 if own is not None and own.active_pid is not None else 1
    return _room(state, "max_wal_senders", "WAL sender", modes, (facts.senders_max, facts.senders_used), needed)


def _room(
    state: SourceState, setting: str, what: str, modes: frozenset[Mode], limit: tuple[int, int], needed: int
) -> Requirement:
    """Require `needed` free slots or senders, and advise one more, which copies use.

    `limit` contains how many the server has, and how many of them are in use.
    """
    most, used = limit
    free = f"{most - used} of {most} {what}s {'is' if most - used == 1 else 'are'} free"
    if most - used > needed:
        return Requirement(setting, modes, holds=True, found=free)
    wanted = needed + 1
    fix = Fix(
        f"alter system set {setting} = {used + wanted}",
        f"for {wanted} free {what}{'s' if wanted > 1 else ''}",
        _superuser(state),
        restart=True,
    )
    if most - used == needed:
        return Requirement(
            setting,
            NEITHER,
            holds=False,
            found=f"{free}, and copies use one more",
            fixes=(fix,),
            consequence="a copy reads an ordinary snapshot, for which it waits until the log has reached it, and a "
            "mirror that polls cannot change to logical decoding",
            advice=True,
        )
    in_use = f"no {what} is free: {setting} is {most}, and all are in use"
    return Requirement(
        setting,
        modes,
        holds=False,
        found=in_use if most else f"{setting} is 0, and logical decoding needs a {what}",
        fixes=(fix,),
        consequence=f"changes cannot be streamed, and {POLLS if modes == LOGICAL else 'the mirror waits for one'}",
        kind=SourceBusy if most else UnsupportedServer,
    )


def _retained_wal(state: SourceState) -> Requirement:
    megabytes = state.facts.slot_wal_keep_mb
    if megabytes >= 0:
        found = f"a slot retains at most {size(megabytes)} of WAL"
        return Requirement("retained WAL", NEITHER, holds=True, found=found)
    return Requirement(
        "retained WAL",
        NEITHER,
        holds=False,
        found="max_slot_wal_keep_size is -1, so a slot can retain any amount of WAL",
        fixes=_reloaded(state, "alter system set max_slot_wal_keep_size = '50GB'", "a size that the disk can spare"),
        consequence="a mirror that is stopped for a long time can fill the disk of the server",
        advice=True,
    )


def _idle_timeout(state: SourceState) -> Requirement:
    return Requirement(
        "idle_replication_slot_timeout",
        NEITHER,
        holds=False,
        found=f"a slot that is idle for {state.facts.idle_slot_timeout_s} s is invalidated",
        fixes=_reloaded(state, "alter system set idle_replication_slot_timeout = 0", "to keep idle slots"),
        consequence="a mirror that is stopped for longer must copy all tables again (`tidemark resync LAKE --all`)",
        advice=True,
    )


def _reloaded(state: SourceState, setting: str, purpose: str) -> tuple[Fix, Fix]:
    allowed = _superuser(state)
    return Fix(setting, purpose, allowed), Fix("select pg_reload_conf()", "to apply the setting", allowed)


def _activity(state: SourceState) -> Requirement:
    name, role = state.role_name, state.role
    if role is not None and (role.sees_all_activity or role.superuser):
        found = f"role {name} can read the start time of all transactions"
        return Requirement("pg_read_all_stats", NEITHER, holds=True, found=found)
    grant = statement("grant pg_read_all_stats to {}", sql.Identifier(name))
    return Requirement(
        "pg_read_all_stats",
        NEITHER,
        holds=False,
        found=f"role {name} cannot read the start time of other roles' transactions",
        fixes=(Fix(grant, "to report how long a transaction has blocked a copy", _superuser(state)),),
        consequence="a transaction that blocks a copy is reported without its age",
        advice=True,
    )


def _messages(state: SourceState) -> Requirement:
    facts, name, role = state.facts, state.role_name, state.role
    if role is None or role.emits_messages:
        found = f"role {name} may execute pg_logical_emit_message"
        return Requirement("pg_logical_emit_message", NEITHER, holds=True, found=found)
    to = sql.Identifier(name)
    grant = (
        statement("grant execute on function pg_logical_emit_message(boolean, text, text, boolean) to {}", to)
        if facts.major >= 17
        else statement("grant execute on function pg_logical_emit_message(boolean, text, text) to {}", to)
    )
    return Requirement(
        "pg_logical_emit_message",
        NEITHER,
        holds=False,
        found=f"role {name} may not execute pg_logical_emit_message",
        fixes=(Fix(grant, "to read 'now' without waiting", _superuser(state)),),
        consequence="on an idle server a read at 'now' can wait for several seconds until other WAL is written",
        advice=True,
    )


def _superuser(state: SourceState) -> bool:
    return state.facts.role.superuser
