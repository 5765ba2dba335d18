"""Replication slots: the mirror's permanent slot, and temporary ones whose snapshots are exact LSNs.

The snapshot of a slot shows every commit below its *consistent point* and none above: it is the only kind of snapshot
that is equivalent to an LSN. It is valid only until the next command on the connection that created it. Therefore an
ordinary transaction imports it and exports it again; then the slot, which would retain WAL for the whole copy, is
dropped.

Creating a slot waits for every running transaction. The blockers are logged after about a second, when they change,
and every minute: as warnings for the permanent slot, which may wait without limit, otherwise at level debug. The wait
ends at the limit, if there is one, or when a stop is requested; no slot remains then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any
from uuid import uuid4

from psycopg import pq, sql

from tidemark.clock import Lsn
from tidemark.errors import Blocker, Conflict, ObjectInUse, SlotBlocked, SourceError, Stopped, TidemarkError
from tidemark.logs import fields
from tidemark.postgres.blockers import blockers_of, described, named
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import PREFIX, require_ours
from tidemark.postgres.session import Session, Timeouts, answered
from tidemark.postgres.shared import SharedSnapshot
from tidemark.postgres.sqlstate import error_for, translated

PLUGIN = "pgoutput"
CANCEL_WAIT_S = 10.0
LOOK_S, REPORT_S = 1.0, 60.0  # interval of reading blockers, and of reporting the same ones again
_STOP_S = 0.2  # interval of checking for a stop request
_LOGGER = logging.getLogger("tidemark.postgres")


class SlotHealth(Enum):
    """Whether all WAL since the slot's position is still available (`wal_status`)."""

    RESERVED = "reserved"
    EXTENDED = "extended"
    UNRESERVED = "unreserved"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot as the server reports it."""

    name: str
    plugin: str | None
    database: str | None
    temporary: bool
    active_pid: int | None
    confirmed_flush: Lsn | None
    restart: Lsn | None
    health: SlotHealth | None
    retained_bytes: int | None
    two_phase: bool
    invalidation_reason: str | None


@dataclass(frozen=True, slots=True)
class Created:
    """A newly created slot: its start, and its snapshot if one was requested."""

    name: str
    consistent_point: Lsn
    snapshot_id: str | None


@dataclass(frozen=True, slots=True)
class SlotWait:
    """How slot creation waits for running transactions: at most `limit_s`, or without limit if that is None.

    The blockers are logged at `level`; when `stopping` returns true, the wait ends with `Stopped`.
    """

    limit_s: float | None = None
    stopping: Callable[[], bool] = lambda: False
    level: int = logging.WARNING


@dataclass(frozen=True, slots=True)
class ExactSnapshot:
    """A snapshot that shows the commits at or below `lsn` and no others; any session may import it."""

    lsn: Lsn
    shared: SharedSnapshot


_SLOT = """
    select slot_name::text, plugin::text, database::text, temporary, active_pid, confirmed_flush_lsn::text,
           restart_lsn::text, wal_status,
           case when not pg_is_in_recovery() then pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint end,
           two_phase,
           coalesce(to_jsonb(s) ->> 'invalidation_reason',
                    case when (to_jsonb(s) ->> 'conflicting')::bool then 'conflicting' end)
      from pg_replication_slots s
     where slot_name = %s
"""


def read_slot(session: Session, name: str) -> Slot | None:
    """Read the slot of this name; return None if it does not exist."""
    rows = session.rows(_SLOT, [name])
    if not rows:
        return None
    slot, plugin, database, temporary, pid, confirmed, restart, status, *rest = rows[0]
    return Slot(
        slot,
        plugin,
        database,
        temporary,
        pid,
        Lsn.parse(confirmed) if confirmed else None,
        Lsn.parse(restart) if restart else None,
        SlotHealth(status) if status else None,
        *rest,
    )


def create_slot(dsn: Dsn, name: str, wait: SlotWait) -> Created:
    """Create the mirror's permanent slot, with failover enabled if the server supports it (17 and later)."""
    with Session.open(dsn, "create slot", _UNBOUNDED, replication=True) as replication:
        return _create(dsn, replication, _command(replication, require_ours(name), temporary=False), wait)


def drop_slot(session: Session, name: str) -> None:
    """Drop one of Tidemark's slots; does nothing if it does not exist. If it is in use, the error names the process."""
    if read_slot(session, require_ours(name)) is not None:
        drop = sql.SQL("select pg_drop_replication_slot({})").format(sql.Literal(name))
        session.execute(drop, f"dropping slot {name}")


def end_creation(session: Session, name: str) -> None:
    """Terminate a server process that is still creating one of Tidemark's slots for a killed client; no slot remains.

    The process would otherwise not detect the client's exit until the transactions that it waits for have ended.
    """
    session.rows(_END_CREATION, [require_ours(name)])


_END_CREATION = """
    select pg_terminate_backend(a.pid, 5000)
      from pg_replication_slots s join pg_stat_activity a on a.pid = s.active_pid
     where s.slot_name = %s and s.confirmed_flush_lsn is null and a.usename = current_user
       and a.query ilike 'create_replication_slot%%'
"""


def drop_slot_when_free(session: Session, name: str, patience_s: float = 30.0) -> None:
    """Drop one of Tidemark's slots; wait for a walsender that has not yet detected that its client is gone."""
    end_creation(session, name)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return drop_slot(session, name)
        except ObjectInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@contextmanager
def exact_snapshot(dsn: Dsn, wait_s: float, timeouts: Timeouts | None = None) -> Iterator[ExactSnapshot]:
    """Provide a snapshot at an exact LSN for the duration of the context. No slot remains once the context is entered.

    If the holder's connection is lost, the snapshot can no longer be imported; sessions that imported it keep it.
    """
    holding = timeouts or Timeouts(idle_in_transaction_s=0)
    with Session.open(dsn, "snapshot", holding) as holder:
        lsn = _begin_exactly(dsn, holder, wait_s)
        yield ExactSnapshot(lsn, SharedSnapshot.exported(dsn, holder))


def _begin_exactly(dsn: Dsn, holder: Session, wait_s: float) -> Lsn:
    """Begin a transaction at the snapshot of a temporary slot; return its LSN.

    A snapshot that would have more transaction IDs than the server can export ("initial slot snapshot too large"), as
    after many savepoints were rolled back, is taken again.
    """
    deadline = time.monotonic() + wait_s
    while True:
        name, left_s = f"{PREFIX}snapshot_{uuid4().hex[:16]}", max(deadline - time.monotonic(), 0.1)
        with Session.open(dsn, "temporary slot", _UNBOUNDED, replication=True) as replication:
            command = _command(replication, name, temporary=True)
            try:
                created = _create(dsn, replication, command, SlotWait(left_s, level=logging.DEBUG))
            except Conflict:
                if time.monotonic() > deadline:
                    raise
            else:
                holder.begin(snapshot_id=created.snapshot_id)
                return created.consistent_point
        time.sleep(0.1)


_UNBOUNDED = Timeouts(lock_s=0, statement_s=0)  # the caller limits the wait for slot creation


def _command(replication: Session, name: str, *, temporary: bool) -> sql.Composed:
    head = sql.SQL("CREATE_REPLICATION_SLOT {} {}LOGICAL {} ").format(
        sql.Identifier(name), sql.SQL("TEMPORARY " if temporary else ""), sql.SQL(PLUGIN)
    )
    if replication.version_num < 150000:
        return head + sql.SQL("EXPORT_SNAPSHOT" if temporary else "NOEXPORT_SNAPSHOT")
    options = [sql.SQL("SNAPSHOT 'export'" if temporary else "SNAPSHOT 'nothing'")]
    if replication.version_num >= 170000 and not temporary:
        options.append(sql.SQL("FAILOVER true"))
    return head + sql.SQL("({})").format(sql.SQL(", ").join(options))


def _create(dsn: Dsn, replication: Session, command: sql.Composed, wait: SlotWait) -> Created:
    """Send the command and wait; on timeout or stop, cancel it, which leaves no slot behind.

    A command that completes although it was canceled counts as successful.
    """
    connection = replication.connection
    with translated("creating a replication slot"):
        connection.pgconn.send_query(command.as_bytes(connection))
        given_up: TidemarkError | None = None
        try:
            given_up = _awaited(dsn, replication, wait)
        except BaseException:
            connection.cancel_safe()
            raise
        if given_up is not None:
            connection.cancel_safe()
            if not answered(connection.pgconn, wait_s=CANCEL_WAIT_S):
                raise given_up
        row = _one_row(connection.pgconn, given_up)
    name, consistent_point, snapshot_id, _ = row
    return Created(name, Lsn.parse(consistent_point), snapshot_id)


def _awaited(dsn: Dsn, replication: Session, wait: SlotWait) -> TidemarkError | None:
    """Wait for the result; return None when the server has replied, or the error with which to cancel."""
    begin = time.monotonic()
    deadline = begin + wait.limit_s if wait.limit_s is not None else None
    reports = _BlockerReports(dsn, replication.connection.info.backend_pid, wait.level)
    try:
        while True:
            now = time.monotonic()
            left_s = deadline - now if deadline is not None else LOOK_S
            if answered(replication.connection.pgconn, min(_STOP_S, max(0.0, left_s))):
                return None
            if wait.stopping():
                return Stopped("stopped while waiting for a replication slot, which was not created")
            if deadline is not None and time.monotonic() >= deadline:
                return _blocked(dsn, replication, wait.limit_s or 0.0)
            if now - begin >= LOOK_S:
                reports.step(now)
    finally:
        reports.close()


class _BlockerReports:
    """Logs the blockers of slot creation when they change, and every minute while they do not."""

    def __init__(self, dsn: Dsn, pid: int, level: int) -> None:
        self._dsn, self._pid, self._level = dsn, pid, level
        self._session: Session | None = None
        self._reported: tuple[Blocker, ...] | None = None
        self._looked_at = self._reported_at = float("-inf")

    def step(self, now: float) -> None:
        """Read the blockers if the interval has elapsed. After an error, try again at the next interval."""
        if now - self._looked_at < LOOK_S or not _LOGGER.isEnabledFor(self._level):
            return
        self._looked_at = now
        try:
            if self._session is None:
                self._session = Session.open(self._dsn, "find blockers")
            found = blockers_of(self._session, self._pid)
            if found == self._reported and now - self._reported_at < REPORT_S:
                return
            if found:
                waited = f"running transactions: {described(self._session, found)}"
                self._log(waited, found)
            elif _is_standby(self._session):
                self._log(f"{_PRIMARY} (on the primary, run: {_LOG_SNAPSHOT})", found)
            self._reported, self._reported_at = found, now
        except SourceError:
            self.close()

    def _log(self, waited: str, found: tuple[Blocker, ...]) -> None:
        extra = fields(blockers=[str(blocker) for blocker in found])
        _LOGGER.log(self._level, "slot creation is waiting for %s", waited, extra=extra)

    def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            self._session.close()
            self._session = None


def _blocked(dsn: Dsn, replication: Session, wait_s: float) -> SourceError:
    with Session.open(dsn, "find blockers") as session:
        found = blockers_of(session, replication.connection.info.backend_pid)
        standby = _is_standby(session)
    if found:
        waited = named(found)
        hint = "End these transactions, with COMMIT PREPARED or ROLLBACK PREPARED if prepared, and retry."
    elif standby:
        waited, hint = _PRIMARY, f"Run `{_LOG_SNAPSHOT}` on the primary."
    else:
        waited, hint = "transactions that have just ended", "Retry the command."
    return SlotBlocked(f"could not create a replication slot within {wait_s:g} s: it waits for {waited}", hint, found)


def _is_standby(session: Session) -> bool:
    return bool(session.row("select pg_is_in_recovery()")[0])


_PRIMARY = "a list of running transactions from the primary"
_LOG_SNAPSHOT = "select pg_log_standby_snapshot()"


def _one_row(pgconn: pq.abc.PGconn, given_up: TidemarkError | None) -> list[Any]:
    """Return the single row of the command's result. If the command was canceled, its failure raises `given_up`."""
    result = pgconn.get_result()
    if result is None or result.status != pq.ExecStatus.TUPLES_OK:
        if given_up is not None:
            raise given_up
        state = result.error_field(pq.DiagnosticField.SQLSTATE) if result else None
        message = result.get_error_message() if result else "the connection was closed"
        raise error_for(state.decode() if state else None, "creating a replication slot", message)
    values = [result.get_value(0, column) for column in range(result.nfields)]
    return [None if value is None else value.decode() for value in values]
