"""Copies one part of a table from server to server: the data of COPY … TO STDOUT is sent to COPY … FROM STDIN.

No value is decoded. The target writes a part, and the record of it, in one transaction: after a failure of either
server the part is not there, and is not recorded. Both sessions can be used afterwards, or are closed.

psycopg's connections are nonblocking, and libpq would then buffer without limit what the target has not read yet:
the connection to the target is blocking while data is sent. While it waits, other threads can run.
"""

from __future__ import annotations

import ctypes
import select
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
from psycopg import pq, sql

from tidemark.errors import (
    Blocker,
    NotPermitted,
    RowRejected,
    SourceError,
    TargetTableUnfit,
    TidemarkError,
    TimedOut,
    UntranslatableText,
)
from tidemark.pipeline.copy.parts import Part
from tidemark.pipeline.copy.reading import PartQuery
from tidemark.postgres.blockers import named
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.libpq import copy_pieces, libpq
from tidemark.postgres.quoted import statement
from tidemark.postgres.session import PINNED, Session, results_of
from tidemark.postgres.sqlstate import error_for, translated
from tidemark.target.columns import CarriedTable

CANCEL_S = 10.0
_BEGIN = """
    begin isolation level read committed, read write;
    set local synchronous_commit = on;
    set local client_min_messages = error
"""  # no notices: data from the target during a COPY is then an error
_PART = """
    savepoint part;
    set local synchronize_seqscans = off
"""  # rows in the order in which they are stored
_ABORTED = b"the source failed"
# Classes of SQLSTATEs with which a server rejects a value or a row: data, constraints, names and types, triggers.
_REJECTIONS = ("22", "23", "38", "39", "42", "44", "P0")
_CHANGE = "Change the table at the target, and retry the command."
_HOLDERS = """
    select a.pid, null, a.usename::text, a.xact_start, a.application_name
      from pg_locks l join pg_stat_activity a using (pid)
     where l.locktype = 'relation' and l.relation = %s and l.granted and l.pid <> pg_backend_pid()
       and l.database = (select oid from pg_database where datname = current_database())
     order by a.pid
"""


@dataclass(frozen=True, slots=True)
class SourceSide:
    """A session in a transaction with the snapshot of the copy, and its connection string."""

    session: Session
    dsn: Dsn


@dataclass(frozen=True, slots=True)
class PipedPart:
    """A part that the target has written, and its rows."""

    part: Part
    rows: int


def pipe_part(
    source: SourceSide,
    target: Session,
    table: CarriedTable,
    part: Part,
    record: Callable[[Session, PipedPart], None],
    empty: Callable[[Session], None] | None = None,
) -> PipedPart:
    """Copy one part of a table in one transaction of the target, which calls `record` before COMMIT.

    With `empty`, the part is the whole table: the transaction calls it first, and it must truncate the table. If COMMIT
    gets no answer, ConnectionLost is raised, and only a new session can find whether the part was recorded.
    """
    with _savepoint(source, table), target_transaction(target, table):
        if empty is not None:
            empty(target)
        piped = _piped(source, target, table, part, freeze=empty is not None)
        with at_target(table, target), translated("recording progress"):
            record(target, piped)
    return piped


@contextmanager
def _savepoint(source: SourceSide, table: CarriedTable) -> Iterator[None]:
    """Release the locks of a part at its end, and keep the transaction of the snapshot after an error."""
    with at_source(table):
        source.session.execute(sql.SQL(_PART).format(), "setting a savepoint")
    try:
        yield
    finally:
        try:
            source.session.connection.execute("rollback to savepoint part; release savepoint part")
        except psycopg.Error:
            source.session.close()


@contextmanager
def target_transaction(session: Session, table: CarriedTable) -> Iterator[None]:
    """A transaction of the target that writes a table; committed at the end, and rolled back after an error."""
    try:
        with at_target(table, session):
            session.execute(sql.SQL(_BEGIN).format(), "beginning a transaction")
        yield
        with at_target(table, session):
            _commit(session)
    except BaseException:
        _roll_back(session)
        raise


def _commit(session: Session) -> None:
    with translated("committing"):
        answer = session.connection.execute("commit").statusmessage
    if answer != "COMMIT":  # of a transaction that had failed
        raise SourceError(f"committing: the transaction was rolled back, and the server answered {answer}")


def _roll_back(session: Session) -> None:
    try:
        session.connection.execute("rollback")
    except psycopg.Error:
        session.close()


def empty_table(session: Session, table: CarriedTable, *, copied_before: bool) -> None:
    """Truncate a table of the target, in a transaction.

    Rows are removed only if they are those of an earlier copy (`copied_before`): any other table must be empty.
    """
    with at_target(table, session):
        try:
            session.execute(sql.SQL("lock table only {} in access exclusive mode").format(table.name), "locking")
        except TimedOut as error:
            _roll_back(session)
            raise _naming_holders(session, table, error) from error
        if not copied_before and has_rows(session, table):
            fix = statement("truncate only {}", table.name)
            raise TargetTableUnfit(f"table {table.label} of the target is not empty", f"Run `{fix}` at the target.")
        session.execute(sql.SQL("truncate only {}").format(table.name), "truncating")


def _naming_holders(session: Session, table: CarriedTable, error: TimedOut) -> TimedOut:
    """A lock timeout error that also names the transactions that use the table."""
    with translated("reading locks"):
        found = [Blocker(*row) for row in session.connection.execute(_HOLDERS, [table.target_oid])]
    return TimedOut(f"{error.message}; it is in use by {named(found)}", error.hint, error.sqlstate) if found else error


def has_rows(session: Session, table: CarriedTable) -> bool:
    """Whether a table of the target has rows."""
    with translated("reading the table"):
        row = session.connection.execute(sql.SQL("select from only {} limit 1").format(table.name)).fetchone()
    return row is not None


@contextmanager
def at_source(table: CarriedTable) -> Iterator[None]:
    """Add the table and the server to the message of an error."""
    try:
        yield
    except SourceError as error:
        raise _placed(error, table, "source", error.hint) from error


@contextmanager
def at_target(table: CarriedTable, session: Session | None = None) -> Iterator[None]:
    """Add the table and the server to the message of an error, and replace hints that are about the source."""
    try:
        yield
    except NotPermitted as error:
        role = sql.Identifier(session.connection.info.user) if session is not None else sql.SQL("ROLE")
        grant = statement("grant select, insert, truncate on {} to {}", table.name, role)
        raise _placed(error, table, "target", f"Run `{grant}` at the target.") from error
    except SourceError as error:
        if (error.sqlstate or "")[:2] in _REJECTIONS and not isinstance(error, UntranslatableText):
            hint = "Change the value at the source, or the table at the target, and retry the command."
            raise RowRejected(f"copy of {table.label}, at the target: {error.message}", hint) from error
        hint = _CHANGE if "SOURCE" in error.hint else error.hint
        raise _placed(error, table, "target", hint) from error


def _placed(error: SourceError, table: CarriedTable, server: str, hint: str) -> SourceError:
    placed = type(error)(f"copy of {table.label}, at the {server}: {error.message}", hint)
    placed.sqlstate = error.sqlstate
    return placed


def _piped(source: SourceSide, target: Session, table: CarriedTable, part: Part, *, freeze: bool) -> PipedPart:
    with at_target(table, target):
        copy = _CopyIn(target, table.copy_in(freeze=freeze).as_bytes(target.connection))
    return PipedPart(part, _written(source, table.query(part).copied(source.session, source.dsn), copy, table))


def pipe_query(
    source: SourceSide, target: Session, table: CarriedTable, query: PartQuery, into: Callable[[], sql.Composed]
) -> int:
    """Copy the rows of a query within a transaction of the target; return their number.

    If there are any, `into` is called, and returns the COPY … FROM STDIN of the table that they are written to.
    """
    chunks = query.copied(source.session, source.dsn)
    try:
        with at_source(table):
            rows = _unless_empty(chunks)
        if rows is None:
            return 0
        with at_target(table, target):
            copy = _CopyIn(target, into().as_bytes(target.connection))
    except BaseException:
        _stop_reading(source.session, chunks)
        raise
    return _written(source, rows, copy, table)


def _unless_empty(chunks: Generator[memoryview, None, int]) -> Generator[memoryview, None, int] | None:
    """The same data; None if it has no rows, in which case there is one chunk."""
    read = [next(chunks)]
    try:
        read.append(next(chunks))
    except StopIteration as end:
        return _resumed(read, None, end.value) if end.value else None
    return _resumed(read, chunks, 0)


def _resumed(
    read: Sequence[memoryview], rest: Generator[memoryview, None, int] | None, rows: int
) -> Generator[memoryview, None, int]:
    yield from read
    return (yield from rest) if rest is not None else rows


def _written(source: SourceSide, chunks: Generator[memoryview, None, int], copy: _CopyIn, table: CarriedTable) -> int:
    """Send all data and end both COPYs; return the number of rows."""
    try:
        read = _transferred(chunks, copy, table)
    except BaseException:
        _stop_reading(source.session, chunks)
        copy.abort()
        raise
    with at_target(table, copy.session):
        written = copy.finish()
    if read != written:
        raise RowRejected(
            f"copy of {table.label}, at the target: {written} of {read} rows were stored",
            "Disable the triggers of the table at the target, and retry the command.",
        )
    return written


def _transferred(chunks: Generator[memoryview, None, int], copy: _CopyIn, table: CarriedTable) -> int:
    """Send all data; return the number of rows that the source has read."""
    while True:
        with at_source(table):
            try:
                chunk = next(chunks)
            except StopIteration as end:
                rows: int = end.value
                return rows
        with at_target(table, copy.session):
            copy.send(chunk)


def _stop_reading(session: Session, chunks: Generator[memoryview, None, int]) -> None:
    """Cancel a COPY that was not read to its end, and close the session if that fails."""
    connection = session.connection
    if connection.info.transaction_status == pq.TransactionStatus.ACTIVE:
        with suppress(psycopg.Error, TidemarkError):
            connection.cancel_safe(timeout=CANCEL_S)
            for _ in chunks:
                pass
    if connection.info.transaction_status in (pq.TransactionStatus.ACTIVE, pq.TransactionStatus.UNKNOWN):
        session.close()


class _CopyIn:
    """A COPY … FROM STDIN that has begun. Ends by `finish`, by `abort`, or by an error of `send`."""

    def __init__(self, session: Session, statement: bytes) -> None:
        self.session = session
        self._pgconn: Any = session.connection.pgconn
        self._running, self._rows = True, 0
        session.send_as_stored()
        result = self._pgconn.exec_(statement)
        if result.status != pq.ExecStatus.COPY_IN:
            raise _error(result)
        self._pgconn.nonblocking = 0

    def send(self, data: memoryview) -> None:
        """Send data; raise the error of the server as soon as it has sent one."""
        library, connection = libpq(), ctypes.c_void_p(self._pgconn.pgconn_ptr)
        for address, size in copy_pieces(np.frombuffer(data, np.uint8)):
            if self._has_input() or library.PQputCopyData(connection, address, size) != 1:
                raise self._ended(_ABORTED) or SourceError("the target ended the COPY without an error")

    def finish(self) -> int:
        """End the COPY; return the number of rows."""
        if error := self._ended(None):
            raise error
        if not self.session.has_encoding:
            encoding = sql.SQL("set local client_encoding = {}").format(PINNED["client_encoding"])
            self.session.execute(encoding, "setting client_encoding")
        return self._rows

    def abort(self) -> None:
        """End the COPY without its rows; close the session if that fails."""
        if self._running:
            self._ended(_ABORTED)

    def _has_input(self) -> bool:
        poll = select.poll()
        poll.register(self._pgconn.socket, select.POLLIN)
        return bool(poll.poll(0))

    def _ended(self, reason: bytes | None) -> SourceError | None:
        """End the COPY and read the answer; return the error of the server."""
        self._running = False
        libpq().PQputCopyEnd(ctypes.c_void_p(self._pgconn.pgconn_ptr), reason)
        found = self._answers()
        if self._pgconn.status == pq.ConnStatus.OK and self._pgconn.transaction_status != pq.TransactionStatus.ACTIVE:
            self._pgconn.nonblocking = 1
            return found
        self.session.close()
        return found or error_for(None, "copying", "the connection was closed")

    def _answers(self) -> SourceError | None:
        found: SourceError | None = None
        for result in results_of(self._pgconn):
            if result.status == pq.ExecStatus.COMMAND_OK:
                self._rows = result.command_tuples or 0
            else:
                found = found or _error(result)
        return found


def _error(result: pq.abc.PGresult) -> SourceError:
    state = result.error_field(pq.DiagnosticField.SQLSTATE)
    parts = (pq.DiagnosticField.MESSAGE_PRIMARY, pq.DiagnosticField.MESSAGE_DETAIL, pq.DiagnosticField.CONTEXT)
    primary, *more = (result.error_field(part) for part in parts)
    message = (primary or result.error_message).decode(errors="backslashreplace").strip()
    details = "; ".join(each.decode(errors="backslashreplace").splitlines()[0] for each in more if each)
    return error_for(state.decode() if state else None, "copying", f"{message} ({details})" if details else message)
