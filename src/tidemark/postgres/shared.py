"""Share one snapshot between several readers while a session holds it.

On a primary, every reader has its own session, which imports the snapshot. On a standby, PostgreSQL may lose the list
of running transactions when it exports a snapshot. A session that imports such a snapshot sees transactions that
committed later, and sets hint bits that mark rows of running transactions as dead in the standby's pages, for all
sessions (docs/decisions/018). Therefore, on a standby only the session that took the snapshot reads with it, unless no
transaction was running.

`require_same` locks a table and checks that it has not changed since the snapshot.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from psycopg import sql
from psycopg.pq import TransactionStatus

from tidemark.clock import Snapshot
from tidemark.errors import ObjectMissing, TableChanged
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.sqlstate import Endpoint, translated
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import PgType


class SharedSnapshot:
    """A shared snapshot. `name` is its export identifier; if None, readers take turns using the holder's session.

    The session that holds a snapshot with a name can be that of another process. `server` is the endpoint that errors
    name.
    """

    def __init__(self, dsn: Dsn, holder: Session | None, name: str | None, server: Endpoint = Endpoint.SOURCE) -> None:
        self.dsn, self.name, self.server, self._holder = dsn, name, server, holder
        self._one_at_a_time = threading.Lock()
        self._lost: Exception | None = None

    @classmethod
    def of(cls, dsn: Dsn, holder: Session, snapshot: Snapshot) -> Self:
        """Share the snapshot of a session; export it unless the export would lose its running transactions."""
        return cls(dsn, holder, None, holder.server) if snapshot.omits_running else cls.exported(dsn, holder)

    @classmethod
    def exported(cls, dsn: Dsn, holder: Session) -> Self:
        """Share a snapshot that can be exported without loss."""
        (name,) = holder.row("select pg_export_snapshot()")
        return cls(dsn, holder, name, holder.server)

    @contextmanager
    def session(self, purpose: str, timeouts: Timeouts | None = None) -> Iterator[Session]:
        """Provide a session with this snapshot for one reader; releases its locks at the end. Others may wait."""
        timeouts = timeouts or Timeouts()
        if self.name is not None:
            with (
                Session.open(self.dsn, purpose, timeouts, server=self.server) as session,
                session.transaction(snapshot_id=self.name),
            ):
                yield session
        else:
            with self._one_at_a_time:
                yield from self._read_by_holder(timeouts)

    def _read_by_holder(self, timeouts: Timeouts) -> Iterator[Session]:
        """Read in a savepoint of the holder's session.

        If an error ends the whole transaction, the snapshot is lost, and all later readers get the same error.
        """
        holder = self._holder
        if self._lost is not None:
            raise self._lost
        if holder is None or not _is_in_transaction(holder):
            raise RuntimeError("the session that holds a snapshot is in no transaction")
        limit = sql.SQL("set local statement_timeout = {}").format(round(timeouts.statement_s * 1000))
        try:
            with (
                translated(f"reading from {self.server}", self.server),
                holder.connection.transaction(force_rollback=True),
            ):
                holder.execute(limit, "setting statement_timeout")
                yield holder
        except Exception as error:
            if not _is_in_transaction(holder):
                self._lost = error
                holder.close()
            raise


def _is_in_transaction(session: Session) -> bool:
    return session.connection.info.transaction_status == TransactionStatus.INTRANS


def require_same(session: Session, table: Fingerprint) -> None:
    """Lock a table against ALTER and raise TableChanged if it differs from its definition in the snapshot."""
    name, label = sql.Identifier(table.schema, table.name), session.server.object(table.qualified)
    try:
        session.execute(sql.SQL("lock table only {} in access share mode").format(name), f"locking {label}")
    except ObjectMissing as error:
        raise _changed(label, "was dropped or renamed") from error
    with translated(f"reading the definition of {label}", session.server):
        quoted = name.as_string(session.connection)
        row = session.row("select to_regclass(%s)::oid, pg_relation_filenode(to_regclass(%s))", [quoted, quoted])
        shown = session.connection.execute(sql.SQL("select * from only {} limit 0").format(name)).pgresult
    oid, filenode = row
    if oid != table.oid:
        raise _changed(label, "was replaced by another table of the same name")
    if filenode != table.filenode:
        raise _changed(label, "was truncated or rewritten")
    assert shown is not None  # noqa: S101
    found = [
        ((shown.fname(n) or b"").decode(), shown.ftablecol(n), shown.ftype(n), shown.fmod(n))
        for n in range(shown.nfields)
    ]
    if found != [(column.name, column.attnum, *_described(column.type, column.typmod)) for column in table.columns]:
        raise _changed(label, "was altered")


def _described(kind: PgType, typmod: int) -> tuple[int, int]:
    """Return a type and modifier as the server reports them for result columns: a domain becomes its base type."""
    while kind.kind == "d":
        (base,) = kind.parts
        kind, typmod = base.type, base.typmod
    return kind.oid, typmod


def _changed(label: str, how: str) -> TableChanged:
    return TableChanged(f"table {label} {how} after the snapshot was taken", "Retry the command.")
