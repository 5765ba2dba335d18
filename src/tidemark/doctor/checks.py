"""The checks themselves: pure functions from what was seen to one line each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from psycopg import sql

from tidemark.errors import Blocker
from tidemark.schema.table import Generated, Table
from tidemark.source.facts import NEWEST, OLDEST, Facts
from tidemark.source.names import MirrorNames
from tidemark.source.publication import Published, Wanted, differences, mending
from tidemark.source.quoted import statement, table_name
from tidemark.source.rights import missing_grants
from tidemark.source.selection import Chosen
from tidemark.source.slot import PLUGIN, Slot, SlotHealth

LONG_S = 1.0


class Status(Enum):
    """How a check came out. `warn` leaves the mirror exact and says what it costs; `fail` means it cannot be had."""

    PASS = "pass"  # noqa: S105
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line: what was looked at, what was found, what mends it, and what happens if it is left."""

    name: str
    status: Status
    finding: str
    mend: str = ""
    otherwise: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that the checks look at, read in one transaction."""

    facts: Facts
    names: MirrorNames
    chosen: Chosen
    publications: tuple[tuple[Wanted, Published | None], ...]
    slot: Slot | None
    writers: tuple[Blocker, ...]


def check_all(seen: Seen) -> tuple[Check, ...]:
    """Every check, in the order in which a person would mend things."""
    return tuple(line for check in CHECKS for line in check(seen))


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
            "alter system set wal_level = logical; -- then restart the server",
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
        yield Check("wal_level", Status.PASS, "logical")


def _replication_right(seen: Seen) -> Iterator[Check]:
    role = seen.facts.role
    if role.may_replicate:
        yield Check("replication right", Status.PASS, f"role {role.name} may open replication connections")
    else:
        yield Check(
            "replication right",
            Status.FAIL,
            f"role {role.name} may not open replication connections",
            statement("alter role {} replication;", sql.Identifier(role.name)),
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


def _readable(seen: Seen) -> Iterator[Check]:
    hidden = [table for table in seen.chosen.tables if not table.readable]
    if not hidden:
        yield Check("read rights", Status.PASS, f"all of {_count(seen.chosen.tables)}")
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
        yield Check("replica identity", Status.PASS, f"all of {_count(seen.chosen.tables)}")
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


def _publications(seen: Seen) -> Iterator[Check]:
    for want, found in seen.publications:
        wrong = differences(want, found)
        if wrong:
            yield Check(
                "publication",
                Status.FAIL,
                "; ".join(wrong),
                "\n".join(mend.as_string(None) + ";" for mend in mending(want, found)),
                "changes of the tables concerned are not sent",
            )
        elif want.tables:
            yield Check("publication", Status.PASS, f"{want.name} publishes {_count(want.tables)}")


def _slot(seen: Seen) -> Iterator[Check]:
    slot = seen.slot
    if slot is None:
        yield Check("slot", Status.PASS, f"{seen.names.slot} is not there yet; the mirror creates it")
    elif reason := _unusable(slot, seen.facts.database):
        yield Check(
            "slot",
            Status.FAIL,
            f"{slot.name} is there and {reason}",
            "-- another --name, or drop that slot if nobody needs it",
            "the mirror cannot use it and cannot create its own under this name",
        )
    elif slot.health is SlotHealth.LOST or slot.invalidation_reason:
        yield Check(
            "slot",
            Status.FAIL,
            f"{slot.name} is invalidated ({slot.invalidation_reason or 'WAL it needs was removed'})",
            statement("select pg_drop_replication_slot({});", sql.Literal(slot.name)),
            "the changes since it was lost cannot be had from this server: every table needs a resync",
        )
    elif slot.health is SlotHealth.UNRESERVED:
        yield Check(
            "slot",
            Status.FAIL,
            f"{slot.name} holds more WAL than max_slot_wal_keep_size and goes at the next checkpoint",
            "alter system set max_slot_wal_keep_size = -1; select pg_reload_conf(); -- and start the mirror",
            "the slot is invalidated and every table needs a resync",
        )
    else:
        held = f", holding {slot.retained_bytes / 2**20:.0f} MB of WAL" if slot.retained_bytes is not None else ""
        used = f"used by pid {slot.active_pid}" if slot.active_pid else "not in use"
        yield Check("slot", Status.PASS, f"{slot.name} is {used}{held}")


def _unusable(slot: Slot, database: str) -> str | None:
    if slot.plugin is None:
        return "is a physical slot"
    if slot.database != database:
        return f"belongs to database {slot.database!r}"
    if slot.plugin != PLUGIN:
        return f"uses the plugin {slot.plugin}, not {PLUGIN}"
    if slot.temporary:
        return "is temporary"
    return "decodes prepared transactions ahead of their commit" if slot.two_phase else None


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
            "after a longer stop of the mirror every table needs a resync",
        )


def _blockers(seen: Seen) -> Iterator[Check]:
    if not seen.writers:
        yield Check("running transactions", Status.PASS, f"none that has been writing for more than {LONG_S:g} s")
        return
    yield Check(
        "running transactions",
        Status.WARN,
        f"writing for more than {LONG_S:g} s: " + "; ".join(map(str, seen.writers)),
        "\n".join(_end_of(writer) for writer in seen.writers),
        "a copy cannot start before they have ended; a prepared transaction never ends by itself",
    )


def _end_of(writer: Blocker) -> str:
    if writer.pid is None:
        return statement("rollback prepared {}; -- or commit prepared", sql.Literal(writer.gid))
    return f"select pg_terminate_backend({writer.pid});"


CHECKS: tuple[Callable[[Seen], Iterator[Check]], ...] = (
    _version,
    _pooler,
    _encryption,
    _encoding,
    _standby,
    _wal_level,
    _replication_right,
    _room,
    _readable,
    _row_security,
    _identities,
    _generated,
    _following,
    _skipped,
    _publications,
    _slot,
    _retention,
    _blockers,
    _activity,
    _messages,
)


def _some(tables: list[Table], most: int = 5) -> str:
    names = ", ".join(table.qualified for table in tables[:most])
    return names if len(tables) <= most else f"{names} and {len(tables) - most} more"


def _count(tables: tuple[Table, ...]) -> str:
    return "1 table" if len(tables) == 1 else f"{len(tables)} tables"
