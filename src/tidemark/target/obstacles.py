"""What prevents an exact copy of a table at the target: triggers, rules, foreign keys, and a connection pooler.

A trigger or a rule can change, drop or add rows for every row that is written. A foreign key is checked against tables
that may not be as of the same position yet, one with ON DELETE CASCADE deletes rows that the source has, and a table
that is referenced cannot be truncated. All of them are created when the clone is complete.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from psycopg import sql

from tidemark.errors import TargetTableUnfit, UnsupportedServer
from tidemark.postgres.quoted import statement
from tidemark.postgres.session import Session
from tidemark.postgres.sqlstate import translated

# Only those of the state R fire in a session with `session_replication_role = replica`, and only those of the state O
# in others; those of the state A fire in both. PostgreSQL 14 marks the triggers of a partition as internal.
_FIRES = "in ('A', case current_setting('session_replication_role') when 'replica' then 'R' else 'O' end)"
_TRIGGERS = f"""
    select t.tgrelid, t.tgname, n.nspname, c.relname
      from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
     where t.tgrelid = any(%s) and t.tgenabled::text {_FIRES}
       and (not t.tgisinternal or t.tgparentid <> 0 and not exists (
               select from pg_constraint k where k.oid = t.tgconstraint and k.contype = 'f'))
     order by t.tgrelid, t.tgname
"""  # noqa: S608
_RULES = f"""
    select r.ev_class, r.rulename, n.nspname, c.relname
      from pg_rewrite r join pg_class c on c.oid = r.ev_class join pg_namespace n on n.oid = c.relnamespace
     where r.ev_class = any(%s) and r.ev_type <> '1' and r.ev_enabled::text {_FIRES}
     order by r.ev_class, r.rulename
"""  # noqa: S608
# The constraint of a partition is dropped with that of its partitioned table, which has no parent.
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


def read_obstacles(session: Session, oids: Collection[int]) -> dict[int, TargetTableUnfit]:
    """The tables of which no exact copy is possible, and why. Must run in a transaction."""
    with translated("reading triggers, rules and foreign keys"), session.as_stored():
        triggers, rules, keys = (
            session.connection.execute(query, [list(oids)]).fetchall() for query in (_TRIGGERS, _RULES, _FOREIGN_KEYS)
        )
    found = [(row[0], _foreign_key(*row[1:])) for row in reversed(keys)]
    found += [(row[0], _rule(*row[1:])) for row in reversed(rules)]
    found += [(row[0], _trigger(*row[1:])) for row in reversed(triggers)]
    return dict(found)


def require_no_obstacles(session: Session, tables: Iterable[tuple[str, str]]) -> None:
    """Raise the error of the first obstacle of these tables, by schema and name. Must run in a transaction."""
    wanted = [list(each) for each in zip(*tables, strict=True)] or [[], []]
    obstacles = read_obstacles(session, [oid for (oid,) in session.rows(_OIDS, wanted)])
    for error in obstacles.values():
        raise error


def require_direct(session: Session) -> None:
    """Raise UnsupportedServer if a pooler is in between: locks and temporary tables are lost there."""
    if session.pooled:
        raise UnsupportedServer(
            "the target is behind a transaction pooler", "Connect to PostgreSQL directly, not through a pooler."
        )


def _trigger(name: str, schema: str, table: str) -> TargetTableUnfit:
    fix = statement("alter table {} disable trigger {}", sql.Identifier(schema, table), sql.Identifier(name))
    return TargetTableUnfit(
        f"trigger {name!r} of table {schema}.{table} of the target fires for rows that a clone writes",
        f"Run `{fix}` at the target, and enable it when the clone is complete.",
    )


def _rule(name: str, schema: str, table: str) -> TargetTableUnfit:
    fix = statement("alter table {} disable rule {}", sql.Identifier(schema, table), sql.Identifier(name))
    return TargetTableUnfit(
        f"rule {name!r} of table {schema}.{table} of the target rewrites what a clone writes",
        f"Run `{fix}` at the target, and enable it when the clone is complete.",
    )


def _foreign_key(name: str, schema: str, table: str) -> TargetTableUnfit:
    fix = statement("alter table {} drop constraint {}", sql.Identifier(schema, table), sql.Identifier(name))
    return TargetTableUnfit(
        f"foreign key {name!r} of table {schema}.{table} of the target is checked for rows that a clone writes",
        f"Run `{fix}` at the target, and create it when the clone is complete.",
    )
