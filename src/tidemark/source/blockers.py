"""Who makes others wait: the transactions a new slot has to outlive, named as far as the role may see them."""

from __future__ import annotations

import time

from tidemark.errors import Blocker
from tidemark.source.session import Session

# A prepared transaction has no process: pg_blocking_pids gives 0 for it, and its id stands in the lock's row.
_BLOCKING = """
    select a.pid, null, a.usename::text, extract(epoch from clock_timestamp() - a.xact_start)::float8
      from pg_stat_activity a where a.pid = any(pg_blocking_pids(%(pid)s))
    union all
    select null, p.gid, p.owner::text, extract(epoch from clock_timestamp() - p.prepared)::float8
      from pg_locks l join pg_prepared_xacts p on p.transaction = l.transactionid
     where l.pid = %(pid)s and l.locktype = 'transactionid' and not l.granted
"""

_RUNNING = """
    select a.backend_xid::text, a.pid, null, a.usename::text,
           extract(epoch from clock_timestamp() - a.xact_start)::float8
      from pg_stat_activity a where a.backend_xid is not null and a.pid <> pg_backend_pid()
    union all
    select p.transaction::text, null, p.gid, p.owner::text,
           extract(epoch from clock_timestamp() - p.prepared)::float8
      from pg_prepared_xacts p
"""


def blockers_of(session: Session, pid: int) -> tuple[Blocker, ...]:
    """The transactions that the backend `pid` is waiting for now."""
    return tuple(Blocker(*row) for row in session.rows(_BLOCKING, {"pid": pid}))


def lasting_writers(session: Session, at_least_s: float) -> tuple[Blocker, ...]:
    """Transactions that have been writing for a while: a slot created now would wait for each of them.

    Looked at twice, because a role with few rights does not see when a transaction began. Not inside a transaction of
    ours, in which the second look would show what the first one did.
    """
    before = {row[0] for row in session.rows(_RUNNING)}
    time.sleep(at_least_s if before else 0)
    return tuple(Blocker(*row) for xid, *row in session.rows(_RUNNING) if xid in before)
