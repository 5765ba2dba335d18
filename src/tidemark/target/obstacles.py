"""What prevents an exact copy of a table at the target: triggers, rules, foreign keys, and a connection pooler.

A trigger or a rule can change, drop or add rows for every row that is written. A foreign key is checked against tables
that may not be as of the same position yet, one with ON DELETE CASCADE deletes rows that the source has, and a table
that is referenced cannot be truncated. All of them are created when the clone is complete.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from psycopg import sql

from tidemark.errors import TargetTableUnfit, UnsupportedServer
from tidemark.postgres.session import Session
from tidemark.postgres.sqlstate import translated

# Only those of the state R fire in a session with `session_replication_role = replica`, and only those of the state O
# in others; those of the state A fire in both. PostgreSQL 14 marks the triggers of a partition as internal.
_FIRES = "in ('A', case current_setting('session_replication_role') when 'replica' then 'R' else 'O' end)"
_TRIGGERS = f"""
    with recursive firing as (
        select t.oid, t.tgparentid, t.tgrelid as relid
          from pg_trigger t where t.tgrelid = any(%s) and t.tgenabled::text {_FIRES}
           and (not t.tgisinternal or t.tgparentid <> 0 and not exists (
                   select from pg_constraint k where k.oid = t.tgconstraint and k.contype = 'f'))
        union
        select t.oid, t.tgparentid, f.relid from firing f join pg_trigger t on t.oid = f.tgparentid
    )
    select f.relid, t.tgname, n.nspname, c.relname
      from firing f join pg_trigger t on t.oid = f.oid
           join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
     where f.tgparentid = 0
     order by f.relid, t.tgname
"""  # noqa: S608
_RULES = f"""
    select r.ev_class, r.rulename, n.nspname, c.relname
      from pg_rewrite r join pg_class c on c.oid = r.ev_class join pg_namespace n on n.oid = c.relnamespace
     where r.ev_class = any(%s) and r.ev_type <> '1' and r.ev_enabled::text {_FIRES}
     order by r.ev_class, r.rulename
"""  # noqa: S608
# The constraint of a partition is dropped with that of its partitioned table, which has no parent; so is its trigger.
_FOREIGN_KEYS = """
    with recursive keys as (
        select k.oid, k.conparentid, t.relid
          from pg_constraint k cross join lateral (values (k.conrelid), (k.confrelid)) t(relid)
         where k.contype = 'f' and t.relid = any(%s)
        union
        select k.oid, k.conparentid, keys.relid from keys join pg_constraint k on k.oid = keys.conparentid
    )
    select keys.relid, k.conname, n.nspname, c.relname
      from keys join pg_constraint k on k.oid = keys.oid
           join pg_class c on c.oid = k.conrelid join pg_namespace n on n.oid = c.relnamespace
     where keys.conparentid = 0
     order by keys.relid, n.nspname, c.relname, k.conname
"""
_OIDS = """
    select c.oid from unnest(%s::text[], %s::text[]) as wanted(schema, name)
    join pg_namespace n on n.nspname = wanted.schema
    join pg_class c on c.relnamespace = n.oid and c.relname = wanted.name
"""


class ObstacleKind(Enum):
    """What an obstacle is, what it does, and the statements that end it until the clone is complete, and remove it."""

    FOREIGN_KEY = (
        "foreign key", "is checked for rows that a clone writes",
        "alter table {table} drop constraint {name}", "alter table {table} drop constraint {name}", "create",
    )  # fmt: skip
    RULE = (
        "rule", "rewrites what a clone writes",
        "alter table {table} disable rule {name}", "drop rule {name} on {table}", "enable",
    )  # fmt: skip
    TRIGGER = (
        "trigger", "fires for rows that a clone writes",
        "alter table {table} disable trigger {name}", "drop trigger {name} on {table}", "enable",
    )  # fmt: skip


_QUERIES = {ObstacleKind.FOREIGN_KEY: _FOREIGN_KEYS, ObstacleKind.RULE: _RULES, ObstacleKind.TRIGGER: _TRIGGERS}


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A trigger, rule or foreign key, and the table that it belongs to."""

    kind: ObstacleKind
    name: str
    schema: str
    table: str

    def error(self) -> TargetTableUnfit:
        """Return the error for a table that it concerns."""
        kind, does, ended, _, again = self.kind.value
        return TargetTableUnfit(
            f"{kind} {self.name!r} of table {self.schema}.{self.table} of the target {does}",
            f"Run `{self._statement(ended)}` at the target, and {again} it when the clone is complete.",
        )

    def drop(self, session: Session) -> None:
        """Drop it."""
        *_, dropped, _ = self.kind.value
        session.execute(sql.SQL("{}").format(sql.SQL(self._statement(dropped))), f"dropping {self.name}")

    def _statement(self, template: str) -> str:
        names = {"table": sql.Identifier(self.schema, self.table), "name": sql.Identifier(self.name)}
        return sql.SQL(template).format(**names).as_string(None)


def read_obstacles(session: Session, oids: Collection[int]) -> dict[int, list[Obstacle]]:
    """The tables of which no exact copy is possible, and why. Must run in a transaction."""
    found: dict[int, list[Obstacle]] = {}
    with translated("reading triggers, rules and foreign keys"), session.as_stored():
        for kind, query in reversed(_QUERIES.items()):
            for oid, *names in session.connection.execute(query.encode(), [list(oids)]).fetchall():
                found.setdefault(oid, []).append(Obstacle(kind, *names))
    return found


def obstacles_of(session: Session, tables: Iterable[tuple[str, str]]) -> list[Obstacle]:
    """The obstacles of these tables, by schema and name, each once. Must run in a transaction."""
    wanted = [list(each) for each in zip(*tables, strict=True)] or [[], []]
    found = read_obstacles(session, [oid for (oid,) in session.rows(_OIDS, wanted)])
    return list(dict.fromkeys(each for obstacles in found.values() for each in obstacles))


def require_no_obstacles(session: Session, tables: Iterable[tuple[str, str]]) -> None:
    """Raise the error of the first obstacle of these tables, by schema and name. Must run in a transaction."""
    for obstacle in obstacles_of(session, tables):
        raise obstacle.error()


def require_direct(session: Session) -> None:
    """Raise UnsupportedServer if a pooler is in between: locks and temporary tables are lost there."""
    if session.pooled:
        raise UnsupportedServer(
            "the target is behind a transaction pooler", "Connect to PostgreSQL directly, not through a pooler."
        )
