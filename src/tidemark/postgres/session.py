r"""A session on the source: settings pinned and asserted, every wait on the server bounded, every error ours.

Role and database settings change the text PostgreSQL sends (`datestyle`, `extra_float_digits`, `search_path` inside a
`regclass`), so they are set on every session and read back. Through a transaction pooler a setting does not stay with
us: there every transaction sets them for itself.

A database without an encoding (SQL_ASCII) holds any bytes, and the server refuses to send a text that is not valid in
the client's encoding: one such value would end a COPY, a stream or a look at the catalogue. `as_stored` has texts sent
unchecked; what is not UTF-8 comes with surrogates in names, and is printed as `\xff` elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, LiteralString, Self

import psycopg
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from tidemark.errors import ObjectMissing, SettingsNotPinned, SourceError
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.refusal import refusal
from tidemark.postgres.sqlstate import translated
from tidemark.postgres.waiting import bounded

PINNED: Mapping[str, str] = MappingProxyType(
    {
        "DateStyle": "ISO, MDY",
        "IntervalStyle": "postgres",
        "TimeZone": "UTC",
        "bytea_output": "hex",
        "client_encoding": "UTF8",
        "default_transaction_read_only": "off",
        "extra_float_digits": "1",
        "lc_monetary": "C",
        "quote_all_identifiers": "off",
        "row_security": "off",
        "search_path": "",
        "standard_conforming_strings": "on",
    }
)

# Only a superuser may set these, so they are looked at: with them on, a damaged page reads as an empty one.
REQUIRED: Mapping[str, str] = MappingProxyType({"ignore_checksum_failure": "off", "zero_damaged_pages": "off"})


NO_ENCODING = "SQL_ASCII"


class _Printed(Loader):
    """Text for people: names of other databases' objects may be in another encoding than this one's."""

    def load(self, data: Buffer) -> str:
        return bytes(data).decode(errors="backslashreplace")


class _Stored(Loader):
    """Text as it is stored; bytes that are not UTF-8 become surrogates."""

    def load(self, data: Buffer) -> str:
        return bytes(data).decode(errors="surrogateescape")


class _StoredJson(_Stored):
    def load(self, data: Buffer) -> Any:
        return json.loads(super().load(data))


GRACE_S = 5.0  # how long after its own timeout a server may take to say so


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long anything of ours may wait or hold on at the source; 0 means without limit, as it does for PostgreSQL."""

    connect_s: int = 10
    lock_s: float = 3.0
    statement_s: float = 60.0
    idle_in_transaction_s: float = 60.0

    def settings(self, version_num: int) -> dict[str, str]:
        """As settings of a session; the ones that could end a session we hold on purpose are switched off."""
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


def _connect(dsn: Dsn, purpose: str, timeouts: Timeouts, replication: bool) -> psycopg.Connection[Any] | SourceError:
    """Connect or say why not; returned and not raised, so that no traceback holds the whole connection string."""
    options: dict[str, Any] = {"fallback_application_name": f"tidemark {purpose}"}
    if not dsn.has("connect_timeout") and "PGCONNECT_TIMEOUT" not in os.environ:
        options["connect_timeout"] = timeouts.connect_s
    if not dsn.has("tcp_user_timeout"):
        options["tcp_user_timeout"] = 30_000
    if not dsn.has("keepalives_idle"):  # a copy only receives: nothing else would tell that the network is gone
        options |= {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
    if replication:
        options["replication"] = "database"
    conninfo = make_conninfo(dsn.reveal(), **options)
    try:
        return psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        return refusal(conninfo, dsn, str(error))


_NOT_IMPORTED = (
    psycopg.errors.FeatureNotSupported,
    psycopg.errors.InvalidParameterValue,
    psycopg.errors.UndefinedObject,
)


class Session:
    """One connection, in autocommit until a `transaction()` is opened. Not shared between threads or processes."""

    def __init__(self, connection: psycopg.Connection[Any], timeouts: Timeouts) -> None:
        self._connection = connection
        self._settings = dict(PINNED) | timeouts.settings(connection.info.server_version)
        self._limit_s = timeouts.statement_s + GRACE_S if timeouts.statement_s else 0.0
        encoding = connection.info.parameter_status("server_encoding")
        self.has_encoding = encoding != NO_ENCODING
        self.stores_utf8 = encoding in ("UTF8", NO_ENCODING)
        connection.adapters.register_loader("text", _Printed)
        if not self.has_encoding:
            for name, loader in (("name", _Stored), ("varchar", _Stored), ("jsonb", _StoredJson)):
                connection.adapters.register_loader(name, loader)
        with translated("configuring the session"), bounded(connection.pgconn, timeouts.connect_s):
            (backend_pid,) = self._connection.execute("select pg_backend_pid()").fetchone() or (None,)
            self.pooled = backend_pid != connection.pgconn.backend_pid
            if not self.pooled:
                self._set(local=False)
                self._assert_pinned()

    @classmethod
    def open(cls, dsn: Dsn, purpose: str, timeouts: Timeouts | None = None, *, replication: bool = False) -> Self:
        """Connect. `purpose` is what pg_stat_activity shows as ours unless the user named the application."""
        timeouts = timeouts or Timeouts()
        connected = _connect(dsn, purpose, timeouts, replication)
        if isinstance(connected, SourceError):
            raise connected
        try:
            return cls(connected, timeouts)
        except BaseException:
            connected.close()
            raise

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """psycopg's own connection, for what goes beyond SQL."""
        return self._connection

    @property
    def version_num(self) -> int:
        """The server's version as a number: 160014 is 16.14."""
        return self._connection.info.server_version

    def rows(self, query: LiteralString, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> list[Any]:
        """All rows of a query, as tuples."""
        with self._pinned_statement(), translated("reading from the source"), self._bounded():
            return self._connection.execute(query, parameters).fetchall()

    def row(self, query: LiteralString, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> Any:
        """The one row of a query that has exactly one."""
        (row,) = self.rows(query, parameters)
        return row

    def records(self, query: LiteralString, parameters: Sequence[Any] | None = None) -> list[dict[str, Any]]:
        """All rows of a query, by column name."""
        with self._pinned_statement(), translated("reading from the source"), self._bounded():
            return self._connection.cursor(row_factory=dict_row).execute(query, parameters).fetchall()

    def execute(self, statement: sql.Composed, doing: str) -> None:
        """Run a statement that returns nothing; `doing` says what for."""
        with self._pinned_statement(), translated(doing), self._bounded():
            self._connection.execute(statement)

    def command(self, command: sql.SQL | sql.Composed, doing: str) -> tuple[Any, ...]:
        """The first row that a replication command answers with."""
        with translated(doing), self._bounded():
            return tuple(self._connection.execute(command).fetchone() or ())

    @contextmanager
    def transaction(self, *, read_only: bool = True, snapshot_id: str | None = None) -> Iterator[None]:
        """A REPEATABLE READ transaction: one snapshot for everything inside, ours or the exported one named."""
        self.begin(read_only=read_only, snapshot_id=snapshot_id)
        with translated("ending a transaction"):
            try:
                yield
            except BaseException:
                self._end("rollback")
                raise
            self._end("commit")

    def begin(self, *, read_only: bool = True, snapshot_id: str | None = None) -> None:
        """Open a transaction that lasts until it is ended or the session closed, for holding a snapshot or a lock."""
        if self._connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            raise RuntimeError("a transaction is open in this session already")
        mode = sql.SQL("read only" if read_only else "read write")
        with translated("beginning a transaction"):
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
        """Have the server send texts unconverted, for this transaction or from now on.

        This is for databases without an encoding; `always` is for those with an encoding, too.
        """
        if always or not self.has_encoding:
            self._encode_for_client(NO_ENCODING, local=local)

    @contextmanager
    def as_stored(self) -> Iterator[None]:
        """The same for as long as the context lasts, inside a transaction."""
        self.send_as_stored()
        yield
        if not self.has_encoding:
            self._encode_for_client(PINNED["client_encoding"], local=True)

    def _encode_for_client(self, encoding: str, *, local: bool) -> None:
        setting = sql.SQL("select set_config('client_encoding', {}, {})").format(encoding, local)
        self.execute(setting, "setting client_encoding")

    def end(self) -> None:
        """Give up the transaction that was begun."""
        with translated("ending a transaction"):
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

    def _bounded(self) -> AbstractContextManager[None]:
        """The server's statement_timeout ends what takes too long; this ends what the server does not."""
        return bounded(self._connection.pgconn, self._limit_s)

    def _set(self, *, local: bool) -> None:
        """One statement without parameters, because a replication connection takes no others."""
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
        """End the session; harmless if it has ended."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
