r"""A session on the source or the target: settings pinned and verified, every wait limited, every error converted.

Role and database settings change the text that PostgreSQL sends or reads (`datestyle`, `extra_float_digits`,
`array_nulls`, `search_path` inside a `regclass`), so every session sets them and reads them back. A transaction pooler
does not keep settings between transactions: there every transaction sets them again.

A database with encoding SQL_ASCII can contain any bytes, and the server raises an error for text that is not valid in
the client's encoding: one such value would end a COPY, a stream or a catalog read. With `as_stored` the server sends
text unchecked; bytes that are not UTF-8 become surrogates in names, and `\xff` in other texts.

The time to wait for a server is limited here, because its own timeouts have no effect if it is stopped or unreachable.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, LiteralString, Self

import psycopg
from psycopg import pq, sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from tidemark.errors import ObjectMissing, SettingsNotPinned, SourceError
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.sqlstate import Endpoint, refusal, translated

PINNED: Mapping[str, str] = MappingProxyType(
    {
        "DateStyle": "ISO, MDY",
        "IntervalStyle": "postgres",
        "TimeZone": "UTC",
        "array_nulls": "on",  # otherwise a NULL in the text of an array is read as the string
        "bytea_output": "hex",
        "client_encoding": "UTF8",
        "default_transaction_read_only": "off",
        "extra_float_digits": "1",
        "jit": "off",  # compiling the catalog queries took 0.7 s on PostgreSQL 15, and running them 0.01 s
        "lc_monetary": "C",
        "quote_all_identifiers": "off",
        "row_security": "off",
        "search_path": "",
        "standard_conforming_strings": "on",
        "xmloption": "content",
    }
)
# Only a superuser may set these, so they are only checked: if on, a damaged page reads as empty or as if it were valid.
REQUIRED: Mapping[str, str] = MappingProxyType({"ignore_checksum_failure": "off", "zero_damaged_pages": "off"})
NO_ENCODING = "SQL_ASCII"
_WAIT_S = 60.0
GRACE_S = 5.0  # time that a server may take beyond its own timeout to report it
_NOT_IMPORTED = (
    psycopg.errors.FeatureNotSupported,
    psycopg.errors.InvalidParameterValue,
    psycopg.errors.UndefinedObject,
)


def answered(pgconn: pq.abc.PGconn, wait_s: float) -> bool:
    """Read until the command has its result or the time has elapsed; return whether it has."""
    deadline = time.monotonic() + wait_s
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    pgconn.flush()
    pgconn.consume_input()
    while pgconn.is_busy():
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        if poll.poll(min(left_s, 1.0) * 1000):
            pgconn.consume_input()
    return True


def results_of(pgconn: pq.abc.PGconn) -> Iterator[pq.abc.PGresult]:
    """All results of a command; psycopg's `get_result` would keep other threads from running while it waits."""
    while True:
        with suppress(psycopg.Error):  # of a lost connection: the next result has it
            while not answered(pgconn, _WAIT_S):
                pass
        result = pgconn.get_result()
        if result is None or result.status in (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT):
            return
        yield result


@contextmanager
def bounded(pgconn: pq.abc.PGconn, limit_s: float) -> Iterator[None]:
    """Shut down the connection if the body takes longer, so that libpq reports it as closed; 0 means no limit."""
    if limit_s <= 0:
        yield
        return
    timer = threading.Timer(limit_s, _cut, [pgconn])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _cut(pgconn: pq.abc.PGconn) -> None:
    if pgconn.status == pq.ConnStatus.OK:
        with socket.socket(fileno=os.dup(pgconn.socket)) as connection:
            connection.shutdown(socket.SHUT_RDWR)


class _Printed(Loader):
    """Text for display: names of other databases' objects may be in another encoding than this database's."""

    def load(self, data: Buffer) -> str:
        return bytes(data).decode(errors="backslashreplace")


class _Stored(Loader):
    """Text as stored; bytes that are not UTF-8 become surrogates."""

    def load(self, data: Buffer) -> str:
        return bytes(data).decode(errors="surrogateescape")


class _StoredJson(_Stored):
    def load(self, data: Buffer) -> Any:
        return json.loads(super().load(data))


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The maximum time to wait or to hold resources at a server; 0 means no limit, as in PostgreSQL."""

    connect_s: int = 10
    lock_s: float = 3.0
    statement_s: float = 60.0
    idle_in_transaction_s: float = 60.0

    def settings(self, version_num: int) -> dict[str, str]:
        """Return the session settings; timeouts that could end a session kept open on purpose are turned off."""
        settings = {
            "lock_timeout": f"{self.lock_s * 1000:.0f}",
            "statement_timeout": f"{self.statement_s * 1000:.0f}",
            "idle_in_transaction_session_timeout": f"{self.idle_in_transaction_s * 1000:.0f}",
        }
        if version_num >= 140000:
            settings["idle_session_timeout"] = "0"
        if version_num >= 170000:
            settings["transaction_timeout"] = "0"
        return settings


def _connect(
    dsn: Dsn, purpose: str, timeouts: Timeouts, replication: bool, server: Endpoint
) -> psycopg.Connection[Any] | SourceError:
    """Connect, or return the error: raised here, its traceback would contain the full connection string."""
    options: dict[str, Any] = {"fallback_application_name": f"tidemark {purpose}"}
    if not dsn.has("connect_timeout") and "PGCONNECT_TIMEOUT" not in os.environ:
        options["connect_timeout"] = timeouts.connect_s
    if not dsn.has("tcp_user_timeout"):
        options["tcp_user_timeout"] = 30_000
    if not dsn.has("keepalives_idle"):  # a copy only receives, so only keepalives detect a lost network
        options |= {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
    if replication:
        options["replication"] = "database"
    conninfo = make_conninfo(dsn.reveal(), **options)
    try:
        return psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        return refusal(conninfo, dsn, str(error), server=server)


# A connection that is lost has status UNKNOWN: the next statement reports that.
_NOT_IN_TRANSACTION = (psycopg.pq.TransactionStatus.IDLE, psycopg.pq.TransactionStatus.UNKNOWN)


class Session:
    """A connection, in autocommit mode outside of `transaction()`. Not shared between threads or processes."""

    def __init__(
        self, connection: psycopg.Connection[Any], timeouts: Timeouts, server: Endpoint = Endpoint.SOURCE
    ) -> None:
        self._connection, self.server = connection, server
        self._settings = dict(PINNED) | timeouts.settings(connection.info.server_version)
        self._limit_s = timeouts.statement_s + GRACE_S if timeouts.statement_s else 0.0
        encoding = connection.info.parameter_status("server_encoding")
        self.has_encoding = encoding != NO_ENCODING
        self.stores_utf8 = encoding in ("UTF8", NO_ENCODING)
        connection.adapters.register_loader("text", _Printed)
        if not self.has_encoding:
            for name, loader in (("name", _Stored), ("varchar", _Stored), ("jsonb", _StoredJson)):
                connection.adapters.register_loader(name, loader)
        with translated("configuring the session", server), bounded(connection.pgconn, timeouts.connect_s):
            (backend_pid,) = self._connection.execute("select pg_backend_pid()").fetchone() or (None,)
            self.pooled = backend_pid != connection.pgconn.backend_pid
            if not self.pooled:
                self._set(local=False)
                self._assert_pinned()

    @classmethod
    def open(
        cls,
        dsn: Dsn,
        purpose: str,
        timeouts: Timeouts | None = None,
        *,
        replication: bool = False,
        server: Endpoint = Endpoint.SOURCE,
    ) -> Self:
        """Connect. `purpose` appears in pg_stat_activity as application_name unless the user has set another one.

        `server` is the endpoint that errors name.
        """
        timeouts = timeouts or Timeouts()
        connected = _connect(dsn, purpose, timeouts, replication, server)
        if isinstance(connected, SourceError):
            raise connected
        try:
            return cls(connected, timeouts, server)
        except BaseException:
            connected.close()
            raise

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """The psycopg connection, for operations other than SQL statements."""
        return self._connection

    @property
    def version_num(self) -> int:
        """The server version as a number: 160014 is 16.14."""
        return self._connection.info.server_version

    def rows(self, query: LiteralString, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> list[Any]:
        """Return all rows of a query as tuples."""
        with self._pinned_statement(), self._translated(f"reading from {self.server}"), self._bounded():
            return self._connection.execute(query, parameters).fetchall()

    def row(self, query: LiteralString, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> Any:
        """Return the row of a query that has exactly one."""
        (row,) = self.rows(query, parameters)
        return row

    def records(self, query: LiteralString, parameters: Sequence[Any] | None = None) -> list[dict[str, Any]]:
        """Return all rows of a query as dictionaries."""
        with self._pinned_statement(), self._translated(f"reading from {self.server}"), self._bounded():
            return self._connection.cursor(row_factory=dict_row).execute(query, parameters).fetchall()

    def execute(self, statement: sql.Composed, doing: str) -> None:
        """Run a statement that returns no rows; `doing` describes it in errors."""
        with self._pinned_statement(), self._translated(doing), self._bounded():
            self._connection.execute(statement)

    def command(self, command: sql.SQL | sql.Composed, doing: str) -> tuple[Any, ...]:
        """Return the first row of a replication command's result."""
        with self._translated(doing), self._bounded():
            return tuple(self._connection.execute(command).fetchone() or ())

    @contextmanager
    def transaction(self, *, read_only: bool = True, snapshot_id: str | None = None) -> Iterator[None]:
        """Run a REPEATABLE READ transaction: one snapshot for all statements, new or imported."""
        self.begin(read_only=read_only, snapshot_id=snapshot_id)
        with self._translated("ending a transaction"):
            try:
                yield
            except BaseException:
                self._end("rollback")
                raise
            self._end("commit")

    def begin(self, *, read_only: bool = True, snapshot_id: str | None = None) -> None:
        """Begin a transaction that lasts until `end()` or the end of the session, to hold a snapshot or a lock."""
        if self._connection.info.transaction_status not in _NOT_IN_TRANSACTION:
            raise RuntimeError("a transaction is open in this session already")
        mode = sql.SQL("read only" if read_only else "read write")
        with self._translated("beginning a transaction"):
            try:
                self._connection.execute(sql.SQL("begin isolation level repeatable read, {}").format(mode))
                if snapshot_id is not None:
                    self._import(snapshot_id)
                if self.pooled:
                    self._set(local=True)
                    self._assert_pinned()
            except BaseException:
                self._end("rollback")
                raise

    def send_as_stored(self, *, local: bool = True, always: bool = False) -> None:
        """Have the server send text unconverted, for this transaction (`local`) or for the rest of the session.

        This applies to databases with encoding SQL_ASCII; with `always`, also to all others.
        """
        if always or not self.has_encoding:
            self._encode_for_client(NO_ENCODING, local=local)

    @contextmanager
    def as_stored(self) -> Iterator[None]:
        """Like `send_as_stored`, for the duration of the context, which must be inside a transaction."""
        self.send_as_stored()
        yield
        if not self.has_encoding:
            self._encode_for_client(PINNED["client_encoding"], local=True)

    def _encode_for_client(self, encoding: str, *, local: bool) -> None:
        setting = sql.SQL("select set_config('client_encoding', {}, {})").format(encoding, local)
        self.execute(setting, "setting client_encoding")

    def end(self) -> None:
        """Roll back the transaction that `begin()` opened."""
        with self._translated("ending a transaction"):
            self._end("rollback")

    def _import(self, snapshot_id: str) -> None:
        try:
            self._connection.execute(sql.SQL("set transaction snapshot {}").format(sql.Literal(snapshot_id)))
        except _NOT_IMPORTED as error:
            hint = "Retry the command. The session that exported the snapshot has ended or uses another database."
            raise ObjectMissing(f"snapshot {snapshot_id} cannot be imported", hint, error.sqlstate) from error

    def _end(self, how: LiteralString) -> None:
        if not self._connection.closed:
            self._connection.execute(how)

    @contextmanager
    def _pinned_statement(self) -> Iterator[None]:
        idle = self._connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        if self.pooled and idle:
            with self.transaction(read_only=False):
                yield
        else:
            yield

    def _translated(self, doing: str) -> AbstractContextManager[None]:
        return translated(doing, self.server)

    def _bounded(self) -> AbstractContextManager[None]:
        """Limit statements that the server's statement_timeout does not end."""
        return bounded(self._connection.pgconn, self._limit_s)

    def _set(self, *, local: bool) -> None:
        """Set all settings in one statement without parameters, because a replication connection accepts none."""
        calls = [
            sql.SQL("set_config({}, {}, {})").format(sql.Literal(name), sql.Literal(value), sql.Literal(local))
            for name, value in self._settings.items()
        ]
        self._connection.execute(sql.SQL("select ") + sql.SQL(", ").join(calls))

    def _assert_pinned(self) -> None:
        expected = {**PINNED, **REQUIRED}
        calls = [sql.SQL("current_setting({})").format(sql.Literal(name)) for name in expected]
        found = self._connection.execute(sql.SQL("select ") + sql.SQL(", ").join(calls)).fetchone() or ()
        for (name, wanted), value in zip(expected.items(), found, strict=True):
            if value != wanted:
                raise SettingsNotPinned(
                    f"{name} is {value!r} but must be {wanted!r}",
                    f"Run `alter role ROLE reset {name}`."
                    if name in REQUIRED
                    else "Connect to PostgreSQL directly: a connection pooler or proxy may change settings.",
                )

    def close(self) -> None:
        """Close the session; does nothing if it is closed."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
