"""Statements for the target that are sent together, because a round trip takes as long as a small statement.

They are one message of the simple query protocol, or several if many rows wait; the server requests the rows of each
COPY in turn. They run inside a transaction, which is rolled back if one of them fails or concerns another number of
rows than it must.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
from psycopg import pq, sql

from tidemark.errors import RowRejected, SourceError, TidemarkError, UnsupportedServer
from tidemark.postgres.libpq import copy_pieces, libpq
from tidemark.postgres.quoted import statement
from tidemark.postgres.session import PINNED, Session, answered
from tidemark.postgres.sqlstate import error_for
from tidemark.target.rows import HEADER, TRAILER
from tidemark.values.kernels import Bytes

MOST_HELD_BYTES = 32 << 20  # of rows; then the statements are sent
_WAIT_S = 60.0
_CONSTRAINTS = _NULL, _CHECK = "23502", "23514"  # not_null_violation, check_violation
_BROKEN_OFF = b"the rows could not be sent"
Require = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class _Step:
    """A statement, `doing` for errors, the rows of a COPY, and a check of the number of rows that it concerned."""

    statement: bytes
    doing: str
    rows: Bytes | None = None
    require: Require | None = None


# A server without an encoding would reject bytes that are not valid in that of the client.
_AS_STORED = _Step(b"set local client_encoding = 'SQL_ASCII'", "setting client_encoding")
_CONVERTED = _Step(f"set local client_encoding = '{PINNED['client_encoding']}'".encode(), "setting client_encoding")


class Script:
    """Statements that wait to be sent, for one session. Each gives one result: how many rows it concerned."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._steps: list[_Step] = []
        self._held_bytes = 0

    def add(self, statement: bytes, doing: str, require: Require | None = None) -> None:
        """Add a statement that returns no rows; `require` raises an error if it concerned a wrong number of rows."""
        self._steps.append(_Step(statement, doing, None, require))

    def copy(self, statement: bytes, rows: Bytes, doing: str, require: Require | None = None) -> None:
        """Add a COPY of rows in the binary format. If many bytes of rows wait, everything is sent."""
        self._steps.append(_Step(statement, doing, rows, require))
        self._held_bytes += len(rows)
        if self._held_bytes >= MOST_HELD_BYTES:
            self.run()

    def clear(self) -> None:
        """Leave out what was added, because the transaction is rolled back."""
        self._steps, self._held_bytes = [], 0

    def run(self) -> int:
        """Send what was added, in order; return how many rows the last statement concerned."""
        steps = self._steps
        self.clear()
        if not steps:
            return 0
        if not self._session.has_encoding:
            steps = [_AS_STORED, *steps, _CONVERTED]
        pgconn: Any = self._session.connection.pgconn
        pgconn.nonblocking = 0  # libpq would buffer everything otherwise
        try:
            return self._sent(pgconn, steps)
        finally:
            with suppress(psycopg.Error):  # of a lost connection
                pgconn.nonblocking = 1

    def _sent(self, pgconn: Any, steps: list[_Step]) -> int:
        try:
            pgconn.send_query(b";\n".join(step.statement for step in steps))
        except psycopg.Error as error:
            raise error_for(None, steps[0].doing, " ".join(str(error).split())) from error
        counts: list[int] = []
        failure = None
        for step in steps:
            result = _next(pgconn)
            if step.rows is not None and result is not None and result.status == pq.ExecStatus.COPY_IN:
                _send(pgconn, step.rows)
                result = _next(pgconn)
            failure = self._failure(result, step)
            if failure is not None or result is None:
                break
            counts.append(result.command_tuples or 0)
        while (result := _next(pgconn)) is not None:
            failure = failure or self._failure(result, steps[-1]) or _with_rows(steps[-1])
            if result.status == pq.ExecStatus.COPY_IN:
                _end_copy(pgconn, _BROKEN_OFF)
        for step, found in zip(steps, counts, strict=False):  # a wrong number is the reason of a later failure
            if step.require is not None:
                step.require(found)
        if failure is not None:
            raise failure
        return counts[-1 if steps[-1] is not _CONVERTED else -2]

    def _failure(self, result: pq.abc.PGresult | None, step: _Step) -> TidemarkError | None:
        if result is None:
            return error_for(None, step.doing, "the connection was closed")
        if result.status == pq.ExecStatus.COMMAND_OK:
            return None
        if result.status == pq.ExecStatus.TUPLES_OK:
            return _with_rows(step)
        state, primary, detail = (
            (result.error_field(field) or b"").decode(errors="replace")
            for field in (
                pq.DiagnosticField.SQLSTATE,
                pq.DiagnosticField.MESSAGE_PRIMARY,
                pq.DiagnosticField.MESSAGE_DETAIL,
            )
        )
        message = f"{primary} ({detail})" if detail else primary or " ".join(result.get_error_message().split())
        if state in _CONSTRAINTS:
            hint = f"If the source no longer has this constraint, run `{_dropped(result, state)}` at the target."
            return RowRejected(f"{step.doing}: {message} (SQLSTATE {state})", hint)
        return error_for(state or None, step.doing, message, self._session.server)


def _dropped(result: pq.abc.PGresult, state: str) -> str:
    """The statement that drops the constraint of a column, a table or a domain with which the server rejected a row."""
    field = pq.DiagnosticField
    schema, table, column, domain, constraint = (
        (result.error_field(each) or b"").decode(errors="replace")
        for each in (field.SCHEMA_NAME, field.TABLE_NAME, field.COLUMN_NAME, field.DATATYPE_NAME, field.CONSTRAINT_NAME)
    )
    name, part = sql.Identifier(schema, table or domain), sql.Identifier(column if state == _NULL else constraint)
    if not table and state == _NULL:
        return statement("alter domain {} drop not null", name)
    if not table:
        return statement("alter domain {} drop constraint {}", name, part)
    if state == _NULL:
        return statement("alter table {} alter column {} drop not null", name, part)
    return statement("alter table {} drop constraint {}", name, part)


def _with_rows(step: _Step) -> SourceError:
    return UnsupportedServer(
        f"{step.doing}: the statement has another result than a number of rows; a rule at the target may cause this",
        "Run `select * from pg_rules` at the target, and drop the rules of the tables that are cloned.",
    )


def _next(pgconn: Any) -> pq.abc.PGresult | None:
    """The next result; psycopg's `get_result` would keep other threads from running while it waits."""
    with suppress(psycopg.Error):  # of a lost connection: the result has it
        while not answered(pgconn, _WAIT_S):
            pass
    result: pq.abc.PGresult | None = pgconn.get_result()
    return result


def _send(pgconn: Any, rows: Bytes) -> None:
    """Send the rows of a COPY, by ctypes for the reason above. If the connection is lost, the next result has it."""
    library, connection = libpq(), ctypes.c_void_p(pgconn.pgconn_ptr)
    parts = (np.frombuffer(HEADER, np.uint8), rows, np.frombuffer(TRAILER, np.uint8))
    sent = all(
        library.PQputCopyData(connection, address, size) == 1 for part in parts for address, size in copy_pieces(part)
    )
    _end_copy(pgconn, None if sent else _BROKEN_OFF)


def _end_copy(pgconn: Any, reason: bytes | None) -> None:
    """End a COPY; with a reason, the server rejects it."""
    libpq().PQputCopyEnd(ctypes.c_void_p(pgconn.pgconn_ptr), reason)
