"""The identity of a server, and whether it is still the source of a mirror.

A cluster is identified by its system identifier, a database by its oid, and a line of WAL history by its timeline. When
a standby is promoted, it leaves its timeline at a *switch point* and starts a new one. The history file lists where
each earlier timeline was left:

    1 <tab> 0/5000060 <tab> no recovery target specified

A mirror with commits of timeline 1 above 0/5000060 has commits that this server never had, and must reject the server.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from psycopg import sql

from tidemark.clock import Lsn
from tidemark.errors import RESYNC_ALL, InvalidValue, NotTheSameSource, SourceForked
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session


@dataclass(frozen=True, slots=True)
class Switch:
    """The LSN at which a timeline was left for the next one."""

    timeline: int
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a source. `history` is sorted from the oldest, and None if the role may not read it."""

    system_identifier: int
    database_oid: int
    database: str
    timeline: int
    history: tuple[Switch, ...] | None

    def __str__(self) -> str:
        return f"system {self.system_identifier}, database {self.database!r}, timeline {self.timeline}"


@dataclass(frozen=True, slots=True)
class Located:
    """A source and its WAL position when it was read: the flush LSN of a primary, the replay LSN of a standby."""

    identity: Identity
    position: Lsn


def check_same(mirror: Identity, found: Located, durable: Lsn) -> None:
    """Reject a source that is not the mirror's, that left its history below `durable`, or is not yet at `durable`.

    Two servers promoted from one timeline at the same position cannot be distinguished, because they have the same
    history.
    """
    source = found.identity
    if mirror.system_identifier != source.system_identifier:
        raise NotTheSameSource(
            f"the mirror belongs to {mirror}; this server is {source}",
            "Connect to the source of the mirror, or create another lake with `tidemark sync SOURCE LAKE`.",
        )
    if mirror.database_oid != source.database_oid:
        raise NotTheSameSource(
            f"the mirror belongs to database {mirror.database!r} (oid {mirror.database_oid}); "
            f"{source.database!r} (oid {source.database_oid}) is another one, or was created again under that name",
            "Connect to the database of the mirror, or create another lake with `tidemark sync SOURCE LAKE`.",
        )
    if max(mirror.timeline, source.timeline) > 1 and None in (mirror.history, source.history):
        raise SourceForked(
            f"the mirror is on timeline {mirror.timeline} and the source on {source.timeline}, and the timeline "
            "history cannot be read",
            "Use a role that may replicate: `tidemark setup SOURCE --print` prints the SQL that grants the privilege.",
        )
    fork = fork_point(mirror, source)
    if fork is not None and fork < durable:
        raise SourceForked(
            f"the mirror has commits up to {durable} on timeline {mirror.timeline}, but the source, "
            f"on timeline {source.timeline}, left that history at {fork}",
            f"Connect to the server that has this history. {RESYNC_ALL}",
        )
    if found.position < durable:
        raise SourceForked(
            f"the mirror has commits up to {durable}, but the source is at {found.position}: "
            "it was restored to an earlier state, or is a standby that has not caught up",
            f"If the source is a standby, retry the command when it has caught up. {RESYNC_ALL}",
        )


def fork_point(one: Identity, other: Identity) -> Lsn | None:
    """Return the last position that both histories have in common, or None if they do not diverge."""
    common = Lsn.ZERO
    for left, right in zip(_line(one), _line(other), strict=False):
        if left.timeline != right.timeline:
            return common
        if left.lsn != right.lsn:
            return min(left.lsn, right.lsn)
        common = left.lsn
    return None


def _line(identity: Identity) -> tuple[Switch, ...]:
    """Return every timeline of a history with its end; the current one has no end yet."""
    return (*(identity.history or ()), Switch(identity.timeline, Lsn(2**64 - 1)))


def parse_history(text: str) -> tuple[Switch, ...]:
    """Parse a timeline history file."""
    switches = []
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = line.split(maxsplit=2)
        if len(fields) < 2 or not fields[0].isdecimal():
            raise InvalidValue(f"invalid line of a timeline history: {line!r}")
        switches.append(Switch(int(fields[0]), Lsn.parse(fields[1])))
    return tuple(switches)


def is_same_database(one: Session, other: Session) -> bool:
    """Return whether two sessions are connected to one database of one running server.

    An advisory lock of one session, with a random number, is visible to the other. No privilege is needed, and a copy
    of the server, which has the same system identifier, is another database.
    """
    number = secrets.randbits(63)
    with one.transaction():
        one.row("select pg_advisory_xact_lock(%s)::text", [number])
        (found,) = other.row(_LOCKED, [number >> 32, number & 0xFFFFFFFF])
    return bool(found)


_LOCKED = """
    select exists (select from pg_locks
                    where locktype = 'advisory' and classid = %s::bigint::oid and objid = %s::bigint::oid
                      and objsubid = 1 and database = (select oid from pg_database where datname = current_database()))
"""


def locate(session: Session, dsn: Dsn, *, may_replicate: bool) -> Located:
    """Read the identity of the server: over a replication connection if the role may open one, otherwise by SQL."""
    oid, name = session.row("select oid, datname from pg_database where datname = current_database()")
    if may_replicate:
        with Session.open(dsn, "identify", replication=True) as replication:
            return _identify(replication, oid, name)
    system, timeline, position = session.row(_BY_SQL)
    return Located(Identity(system, oid, name, timeline, () if timeline == 1 else None), Lsn.parse(position))


_BY_SQL = """
    select (pg_control_system()).system_identifier,
           case when pg_is_in_recovery()
                then greatest((select received_tli from pg_stat_wal_receiver),
                              nullif((pg_control_recovery()).min_recovery_end_timeline, 0),
                              (pg_control_checkpoint()).timeline_id)
                else ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int
           end,
           case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_flush_lsn() end::text
"""


def _identify(replication: Session, oid: int, name: str) -> Located:
    doing = "reading the identity of the server"
    system, timeline, position, *_ = replication.command(sql.SQL("IDENTIFY_SYSTEM"), doing)
    history: tuple[Switch, ...] = ()
    if timeline > 1:
        _, content = replication.command(sql.SQL("TIMELINE_HISTORY {}").format(sql.Literal(timeline)), doing)
        history = parse_history(content if isinstance(content, str) else bytes(content).decode())
    return Located(Identity(int(system), oid, name, timeline, history), Lsn.parse(position))
