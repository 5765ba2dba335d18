"""Properties of the server and of the connected role, read once and passed as a value."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.postgres.session import Session

OLDEST, NEWEST = 14, 18

# Managed services that do not allow users to set wal_level have their own setting for it: Amazon RDS and Aurora, Google
# Cloud SQL, AlloyDB. Azure has wal_level itself among its server parameters.
SWITCHES = ("rds.logical_replication", "cloudsql.logical_decoding", "alloydb.logical_decoding")


@dataclass(frozen=True, slots=True)
class Role:
    """A role and its privileges. `replication` is the role attribute, or on Amazon RDS a membership."""

    name: str
    superuser: bool
    may_log_in: bool
    connects: bool
    replication: bool
    creates_in_database: bool
    sees_all_activity: bool
    emits_messages: bool
    reads_control_data: bool

    @property
    def may_replicate(self) -> bool:
        """Whether it may open a replication connection."""
        return self.replication or self.superuser


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The properties of a server, as read in one session.

    `wal_level` is the level in effect. If `turns_logical` is true (PostgreSQL 19), the first logical slot raises it
    without a restart. `switch_off` is the managed service's own setting that keeps it low, `replication_group` the role
    whose members may replicate, on services that grant the privilege in that way.
    """

    version_num: int
    version: str
    database: str
    encoding: str
    in_recovery: bool
    pooled: bool
    encrypted: bool
    local: bool
    wal_level: str
    wal_level_pending: bool
    turns_logical: bool
    switch_off: str | None
    replication_group: str | None
    slots_max: int
    slots_used: int
    senders_max: int
    senders_used: int
    slot_wal_keep_mb: int
    idle_slot_timeout_s: int
    role: Role

    @property
    def major(self) -> int:
        """The major version: 16 for 16.14."""
        return self.version_num // 10000

    @property
    def decodes(self) -> bool:
        """Whether the WAL contains the data for logical decoding, or will after the first slot is created."""
        return self.wal_level == "logical" or self.turns_logical


_FACTS = """
    select current_setting('server_version') as version,
           current_database() as database,
           current_setting('server_encoding') as encoding,
           pg_is_in_recovery() as in_recovery,
           coalesce(inet_client_addr() <<= '127.0.0.0/8' or inet_client_addr() = '::1', true) as local,
           coalesce(current_setting('effective_wal_level', true), current_setting('wal_level')) as wal_level,
           (select pending_restart from pg_settings where name = 'wal_level') as wal_level_pending,
           current_setting('effective_wal_level', true) is not null and current_setting('wal_level') = 'replica'
               as turns_logical,
           (select min(name) from pg_settings where name = any(%s) and setting = 'off') as switch_off,
           (select rolname::text from pg_roles where rolname = 'rds_replication') as replication_group,
           current_setting('max_replication_slots')::int as slots_max,
           (select count(*)::int from pg_replication_slots) as slots_used,
           current_setting('max_wal_senders')::int as senders_max,
           (select count(*)::int from pg_stat_replication) as senders_used,
           (select setting::int from pg_settings where name = 'max_slot_wal_keep_size') as slot_wal_keep_mb,
           coalesce((select setting::int from pg_settings where name = 'idle_replication_slot_timeout'), 0)
               as idle_slot_timeout_s
"""

_ROLE = """
    select rolname as name, rolsuper as superuser, rolcanlogin as may_log_in,
           rolreplication or exists (select from pg_roles given
                                      where given.rolname in ('rds_replication', 'rds_superuser')
                                        and pg_has_role(pg_roles.oid, given.oid, 'MEMBER')) as replication,
           has_database_privilege(oid, current_database(), 'CONNECT') as connects,
           has_database_privilege(oid, current_database(), 'CREATE') as creates_in_database,
           pg_has_role(oid, 'pg_read_all_stats', 'USAGE') as sees_all_activity,
           (select bool_or(has_function_privilege(pg_roles.oid, p.oid, 'EXECUTE'))
              from pg_proc p where proname = 'pg_logical_emit_message') as emits_messages,
           (select bool_and(has_function_privilege(pg_roles.oid, p.oid, 'EXECUTE')) from pg_proc p
             where proname in ('pg_control_system', 'pg_control_checkpoint', 'pg_control_recovery'))
               as reads_control_data
      from pg_roles where rolname = coalesce(%s, current_user)
"""


def read_facts(session: Session) -> ServerFacts:
    """Read all properties."""
    (seen,) = session.records(_FACTS, [list(SWITCHES)])
    encrypted = session.connection.pgconn.ssl_in_use
    return ServerFacts(
        version_num=session.version_num, pooled=session.pooled, encrypted=encrypted, role=own_role(session), **seen
    )


def own_role(session: Session) -> Role:
    """Read the connected role."""
    (role,) = session.records(_ROLE, [None])
    return Role(**role)


def read_role(session: Session, name: str) -> Role | None:
    """Read another role than the connected one; return None if it does not exist."""
    return next((Role(**record) for record in session.records(_ROLE, [name])), None)
