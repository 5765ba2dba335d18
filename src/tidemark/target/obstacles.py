"""What prevents an exact copy into a table of the target: triggers and foreign keys.

A trigger can change or drop the rows that COPY writes. A foreign key is checked against tables that may not be copied
yet, and a table that is referenced cannot be truncated. Both are created after the data.
"""

from __future__ import annotations

from collections.abc import Collection

from psycopg import sql

from tidemark.errors import TargetTableUnfit
from tidemark.postgres.quoted import statement
from tidemark.postgres.session import Session
from tidemark.postgres.sqlstate import translated

# The bits of pg_trigger.tgtype for INSERT and TRUNCATE. Triggers of the state R fire only for replication.
_TRIGGERS = """
    select t.tgrelid, t.tgname, n.nspname, c.relname
      from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
     where t.tgrelid = any(%s) and not t.tgisinternal and t.tgenabled in ('O', 'A')
       and (t.tgtype & 4 <> 0 or t.tgtype & 32 <> 0)
     order by t.tgrelid, t.tgname
"""
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


def read_obstacles(session: Session, oids: Collection[int]) -> dict[int, TargetTableUnfit]:
    """The tables into which no exact copy is possible, and why. Must run in a transaction."""
    with translated("reading triggers and foreign keys"), session.as_stored():
        triggers = session.connection.execute(_TRIGGERS, [list(oids)]).fetchall()
        keys = session.connection.execute(_FOREIGN_KEYS, [list(oids)]).fetchall()
    return {row[0]: _foreign_key(*row[1:]) for row in reversed(keys)} | {
        row[0]: _trigger(*row[1:]) for row in reversed(triggers)
    }


def _trigger(name: str, schema: str, table: str) -> TargetTableUnfit:
    fix = statement("alter table {} disable trigger {}", sql.Identifier(schema, table), sql.Identifier(name))
    return TargetTableUnfit(
        f"trigger {name!r} of table {schema}.{table} of the target fires for rows that are copied",
        f"Run `{fix}` at the target, and enable it after the copy.",
    )


def _foreign_key(name: str, schema: str, table: str) -> TargetTableUnfit:
    fix = statement("alter table {} drop constraint {}", sql.Identifier(schema, table), sql.Identifier(name))
    return TargetTableUnfit(
        f"foreign key {name!r} of table {schema}.{table} of the target is checked while tables are copied",
        f"Run `{fix}` at the target, and create it after the copy.",
    )
