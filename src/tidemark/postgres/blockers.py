"""Transactions that a slot, a lock or a copy must wait for, as far as the role can read them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from psycopg import sql

from tidemark.clock import Xid8
from tidemark.errors import Blocker, TimedOut
from tidemark.postgres.quoted import statement
from tidemark.postgres.session import Session

# A prepared transaction has no process: pg_blocking_pids returns 0 for it, and the row in pg_locks contains its xid.
_BLOCKING = """
    select a.pid, null, a.usename::text, a.xact_start, a.application_name
      from pg_stat_activity a where a.pid = any(pg_blocking_pids(%(pid)s))
    union all
    select null, p.gid, p.owner::text, p.prepared, null
      from pg_locks l join pg_prepared_xacts p on p.transaction = l.transactionid
     where l.pid = %(pid)s and l.locktype = 'transactionid' and not l.granted
"""

_RUNNING = """
    select a.backend_xid::text, a.pid, null, a.usename::text, a.xact_start, a.application_name
      from pg_stat_activity a where a.backend_xid is not null and a.pid <> pg_backend_pid()
    union all
    select p.transaction::text, null, p.gid, p.owner::text, p.prepared, null
      from pg_prepared_xacts p
"""

# A transaction that holds such a lock, or has requested one earlier, blocks reads of the table.
_LOCKING = """
    with locking as (
        select pid, virtualtransaction from pg_locks
         where locktype = 'relation' and relation = %(oid)s and mode = 'AccessExclusiveLock'
           and database = (select oid from pg_database where datname = current_database())
    )
    select a.pid, null, a.usename::text, a.xact_start, a.application_name
      from pg_stat_activity a where a.pid in (select pid from locking)
    union all
    select null, p.gid, p.owner::text, p.prepared, null
      from pg_prepared_xacts p where '-1/' || p.transaction in (select virtualtransaction from locking)
"""

# pg_locks shows every transaction that has an xid to every role.
_OLDER = """
    select a.pid, null, a.usename::text, a.xact_start, a.application_name
      from pg_locks l join pg_stat_activity a using (pid)
     where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted
       and age(l.transactionid) > age(%(xid)s::text::xid)
    union
    select null, p.gid, p.owner::text, p.prepared, null
      from pg_prepared_xacts p where age(p.transaction) > age(%(xid)s::text::xid)
    order by 1, 2
"""


def blockers_of(session: Session, pid: int) -> tuple[Blocker, ...]:
    """Return the transactions that the backend `pid` currently waits for."""
    return tuple(Blocker(*row) for row in session.rows(_BLOCKING, {"pid": pid}))


def described(session: Session, blockers: Sequence[Blocker]) -> str:
    """Describe all blockers, each with its age by the server's clock and the SQL that ends it."""
    (now,) = session.row("select clock_timestamp()")
    return "; ".join(f"{each}{_age(each, now)} (end it with: {ending(each)})" for each in blockers)


def ending(blocker: Blocker) -> str:
    """Return the SQL that ends a transaction."""
    if blocker.pid is None:
        return statement("rollback prepared {}; -- or commit prepared", sql.Literal(blocker.gid))
    return f"select pg_terminate_backend({blocker.pid});"


def _age(blocker: Blocker, now: datetime) -> str:
    if blocker.since is None:
        return ""
    seconds = int((now - blocker.since).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f", for {seconds // size} {unit}"
    return f", for {seconds} s"


def older_than(session: Session, xid: Xid8) -> tuple[Blocker, ...]:
    """Return the running transactions whose xid is older than this one."""
    return tuple(Blocker(*row) for row in session.rows(_OLDER, {"xid": str(xid.value % 2**32)}))


def naming_lockers(session: Session, oid: int, error: TimedOut) -> TimedOut:
    """Return a lock timeout error that also names the transactions that hold or wait for the lock, if any remain."""
    found = tuple(Blocker(*row) for row in session.rows(_LOCKING, {"oid": oid}))
    message = f"{error.message}; the lock is held by {named(found)}" if found else error.message
    return TimedOut(message, error.hint, error.sqlstate)


def named(blockers: Sequence[Blocker]) -> str:
    """Return all blockers as text."""
    return "; ".join(map(str, blockers))


def lasting_writers(session: Session, at_least_s: float) -> tuple[Blocker, ...]:
    """Return transactions that have been writing for a while: creating a slot now would wait for each of them.

    The list is read twice, because a role with few privileges cannot read when a transaction began. The caller must not
    be in a transaction, in which the second read would return the same result as the first.
    """
    before = {row[0] for row in session.rows(_RUNNING)}
    time.sleep(at_least_s if before else 0)
    return tuple(Blocker(*row) for xid, *row in session.rows(_RUNNING) if xid in before)
