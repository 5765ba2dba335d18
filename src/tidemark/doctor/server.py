"""Checks of the server and of our role on it: pure functions from what was seen to lines."""

from __future__ import annotations

from collections.abc import Iterator

from psycopg import sql

from tidemark.doctor.check import Check, Seen, Status
from tidemark.source.facts import NEWEST, OLDEST
from tidemark.source.quoted import statement
from tidemark.source.rights import replication_grant


def server_checks(seen: Seen) -> Iterator[Check]:
    """In the order in which a person would mend things."""
    yield from _version(seen)
    yield from _pooler(seen)
    yield from _encryption(seen)
    yield from _encoding(seen)
    yield from _standby(seen)
    yield from _wal_level(seen)
    yield from _replication_right(seen)
    yield from _room(seen)
    yield from _retention(seen)
    yield from _activity(seen)
    yield from _messages(seen)


def _version(seen: Seen) -> Iterator[Check]:
    facts = seen.facts
    if facts.major < OLDEST:
        yield Check(
            "version",
            Status.FAIL,
            f"PostgreSQL {facts.version}",
            f"-- upgrade to PostgreSQL {OLDEST} or later",
            "nothing works: the stream of in-progress transactions is not there",
        )
    elif facts.major > NEWEST:
        yield Check(
            "version",
            Status.WARN,
            f"PostgreSQL {facts.version}, newer than this Tidemark was tested with ({OLDEST} to {NEWEST})",
            "-- a newer Tidemark",
            "what this version changed in its stream is refused when met, not guessed at",
        )
    else:
        yield Check("version", Status.PASS, f"PostgreSQL {facts.version}")


def _pooler(seen: Seen) -> Iterator[Check]:
    if seen.facts.pooled:
        yield Check(
            "pooler",
            Status.FAIL,
            "a connection pooler answers, not PostgreSQL itself",
            "-- give the host and port of PostgreSQL itself",
            "no replication connection can be made through it",
        )
    else:
        yield Check("pooler", Status.PASS, "a direct connection")


def _encryption(seen: Seen) -> Iterator[Check]:
    if seen.facts.encrypted or seen.facts.local:
        yield Check("encryption", Status.PASS, "encrypted" if seen.facts.encrypted else "not needed on this machine")
    else:
        yield Check(
            "encryption",
            Status.WARN,
            "the connection crosses a network in the clear",
            "-- add sslmode=verify-full to the connection string",
            "whoever is in between can read and alter every row",
        )


def _encoding(seen: Seen) -> Iterator[Check]:
    if seen.facts.encoding == "SQL_ASCII":
        yield Check(
            "encoding",
            Status.WARN,
            "the database is SQL_ASCII: its text may be bytes in any encoding",
            "-- dump and restore the database with an encoding of its own",
            "a table is refused at the first text value that is not valid UTF-8",
        )
    else:
        yield Check("encoding", Status.PASS, seen.facts.encoding)


def _standby(seen: Seen) -> Iterator[Check]:
    facts = seen.facts
    if not facts.in_recovery:
        yield Check("primary", Status.PASS, "a primary")
    elif facts.major < 16:
        yield Check(
            "primary",
            Status.FAIL,
            f"a standby of version {facts.major}, which cannot decode",
            "-- give the primary, or a standby of PostgreSQL 16 or later",
            "no slot can be created here",
        )
    elif not facts.hot_standby_feedback:
        yield Check(
            "primary",
            Status.WARN,
            "a standby without hot_standby_feedback",
            "alter system set hot_standby_feedback = on; select pg_reload_conf();",
            "the primary may remove catalogue rows that decoding needs, and the slot is then invalidated",
        )
    else:
        yield Check(
            "primary",
            Status.WARN,
            "a standby with hot_standby_feedback",
            "-- on the primary: show wal_level;",
            "if wal_level on its primary is not logical, which cannot be seen from here, no slot can be created",
        )


def _wal_level(seen: Seen) -> Iterator[Check]:
    facts = seen.facts
    if not facts.decodes:
        yield Check(
            "wal_level",
            Status.FAIL,
            f"wal_level is {facts.wal_level}",
            f"-- turn on {facts.switch_off} at the service that runs the server, then restart it"
            if facts.switch_off
            else "alter system set wal_level = logical; -- then restart the server",
            "the WAL does not carry what a stream of changes is made of",
        )
    elif facts.wal_level_pending:
        yield Check(
            "wal_level",
            Status.FAIL if seen.slot else Status.WARN,
            "wal_level is logical now and will be another value after a restart",
            "alter system set wal_level = logical;",
            "a server with a logical slot and a lower wal_level does not start at all",
        )
    else:
        logical = facts.wal_level == "logical"
        yield Check("wal_level", Status.PASS, "logical" if logical else "replica, and logical with the first slot")


def _replication_right(seen: Seen) -> Iterator[Check]:
    role = seen.facts.role
    if role.may_replicate:
        yield Check("replication right", Status.PASS, f"role {role.name} may open replication connections")
    else:
        yield Check(
            "replication right",
            Status.FAIL,
            f"role {role.name} may not open replication connections",
            f"{replication_grant(role.name, seen.facts.replication_group)};",
            "changes cannot be streamed to it",
        )


def _room(seen: Seen) -> Iterator[Check]:
    """One slot for good and one for a moment, when tables are copied; the same of senders."""
    facts = seen.facts
    need = 1 if seen.slot else 2
    for name, setting, most, used in (
        ("free slots", "max_replication_slots", facts.slots_max, facts.slots_used),
        ("free senders", "max_wal_senders", facts.senders_max, facts.senders_used),
    ):
        free = most - used
        finding = f"{free} of {most} free"
        if free >= need:
            yield Check(name, Status.PASS, finding)
        else:
            yield Check(
                name,
                Status.FAIL,
                f"{finding}, {need} needed",
                f"alter system set {setting} = {most + need - free}; -- then restart the server",
                "the mirror cannot start, or cannot bring a table in",
            )


def _retention(seen: Seen) -> Iterator[Check]:
    facts = seen.facts
    if facts.slot_wal_keep_mb < 0:
        yield Check(
            "retained WAL",
            Status.WARN,
            "max_slot_wal_keep_size is -1: a slot may hold any amount of WAL",
            "alter system set max_slot_wal_keep_size = '50GB'; select pg_reload_conf(); -- a size its disk can spare",
            "a mirror that is stopped for long can fill the source's disk",
        )
    else:
        yield Check("retained WAL", Status.PASS, f"at most {facts.slot_wal_keep_mb} MB for a slot")
    if facts.idle_slot_timeout_s > 0:
        yield Check(
            "idle slots",
            Status.WARN,
            f"a slot that is not used for {facts.idle_slot_timeout_s} s is invalidated",
            "alter system set idle_replication_slot_timeout = 0; select pg_reload_conf();",
            "after a longer stop the mirror must be started over (tidemark resync LAKE --all)",
        )


def _activity(seen: Seen) -> Iterator[Check]:
    role = seen.facts.role
    if role.sees_all_activity or role.superuser:
        yield Check("activity", Status.PASS, f"role {role.name} sees how long others' transactions run")
    else:
        yield Check(
            "activity",
            Status.WARN,
            f"role {role.name} does not see how long others' transactions run",
            statement("grant pg_read_all_stats to {};", sql.Identifier(role.name)),
            "a transaction that blocks a copy is named without its age",
        )


def _messages(seen: Seen) -> Iterator[Check]:
    role = sql.Identifier(seen.facts.role.name)
    if seen.facts.role.emits_messages:
        yield Check("messages", Status.PASS, f"role {seen.facts.role.name} may emit logical messages")
        return
    grant = (
        statement("grant execute on function pg_logical_emit_message(boolean, text, text, boolean) to {};", role)
        if seen.facts.major >= 17
        else statement("grant execute on function pg_logical_emit_message(boolean, text, text) to {};", role)
    )
    yield Check(
        "messages",
        Status.WARN,
        f"role {seen.facts.role.name} may not call pg_logical_emit_message",
        grant,
        "on a quiet server a read of 'now' may wait for seconds until the WAL moves by itself",
    )
