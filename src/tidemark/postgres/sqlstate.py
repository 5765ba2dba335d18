"""Map SQLSTATEs to Tidemark's errors with one table. Message texts are never evaluated.

A row is a full code or a class (its first two characters); a full code takes precedence. A code that is not in the
table raises UnexpectedSourceError, which stops the command. The classes are the same for a target; messages and hints
name the right server.

libpq prints the SQLSTATE of a failed connection only in verbose errors. psycopg has no option for that, so a failed
connection is attempted once more with a higher error verbosity. Without the code a wrong password could not be
distinguished from a server without free connections, for which a retry makes sense.
"""

from __future__ import annotations

import ctypes
import re
import select
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from types import MappingProxyType
from typing import Any

import psycopg
from psycopg import pq

from tidemark import errors
from tidemark.errors import AuthenticationRefused, SourceBusy, SourceError, SourceUnreachable
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.libpq import libpq


class Endpoint(Enum):
    """Which server of a command a session is connected to, as messages name it."""

    SOURCE = "the source"
    TARGET = "the target"

    def __str__(self) -> str:
        return self.value

    def object(self, name: str) -> str:
        """Return the name of an object for messages, with the server unless that is the source."""
        return name if self is Endpoint.SOURCE else f"{name} at {self}"


RULES: Mapping[str, tuple[type[SourceError], str]] = MappingProxyType(
    {
        "08": (errors.ConnectionLost, "Retry the command: the connection was lost."),
        "08P01": (
            errors.UnsupportedServer,
            "Connect to PostgreSQL directly, not through a connection pooler.",
        ),
        "0A000": (errors.UnsupportedServer, "Run `tidemark doctor SOURCE` to list what the server supports."),
        "22021": (errors.UntranslatableText, "Update or delete the value, or rename the object, at the source."),
        "22P05": (errors.UntranslatableText, "Update or delete the value, or rename the object, at the source."),
        "25006": (errors.UnsupportedServer, "Connect to the primary: this server or transaction is read-only."),
        "25P03": (errors.TimedOut, "Retry the command: the transaction was idle for too long."),
        "25P04": (errors.TimedOut, "Raise transaction_timeout for this role and retry the command."),
        "28": (errors.AuthenticationRefused, "Check the user name, the password and pg_hba.conf."),
        "3D000": (errors.ObjectMissing, "Check the name of the database."),
        "3F000": (errors.ObjectMissing, "Check the name of the schema."),
        "40001": (errors.Conflict, "Retry the command."),
        "40P01": (errors.Conflict, "Retry the command."),
        "42501": (
            errors.NotPermitted,
            "Run `tidemark setup SOURCE --print` and have the owner run the SQL that it prints.",
        ),
        "42704": (errors.ObjectMissing, "Run `tidemark doctor SOURCE` to list what is missing."),
        "42P01": (errors.ObjectMissing, "Check the name of the table."),
        "42710": (errors.ObjectExists, "Use another name, or drop the existing object."),
        "42P07": (errors.ObjectExists, "Use another name, or drop the existing object."),
        "53": (errors.SourceBusy, "Retry the command later, or raise the limit that the message names."),
        "55000": (
            errors.UnsupportedServer,
            "Run `tidemark doctor SOURCE` to list the requirements that the server does not meet.",
        ),
        "55006": (errors.ObjectInUse, "Stop the session that the message names and retry the command."),
        "55P03": (errors.TimedOut, "Retry the command when the lock is released."),
        "57014": (errors.TimedOut, "Retry the command: the statement was canceled by a timeout or by a user."),
        "57P01": (errors.ConnectionLost, "Retry the command: the session or the server was shut down."),
        "57P02": (errors.ConnectionLost, "Retry the command: the server crashed."),
        "57P03": (errors.SourceBusy, "Retry the command: the server is starting up or shutting down."),
        "57P04": (errors.ObjectMissing, "Check the name of the database, which was dropped."),
        "57P05": (errors.ConnectionLost, "Raise idle_session_timeout for this role and retry the command."),
    }
)
# The hints that are different at the target.
_TARGET_HINTS: Mapping[str, str] = MappingProxyType(
    {
        "0A000": "Run `tidemark doctor SOURCE TARGET` to list what the server supports.",
        "22021": "Update or delete the value, or rename the object, at the target.",
        "22P05": "Update or delete the value, or rename the object, at the target.",
        "42501": "Run `tidemark doctor SOURCE TARGET` and have the owner run the SQL that it prints.",
        "42704": "Run `tidemark doctor SOURCE TARGET` to list what is missing.",
        "55000": "Run `tidemark doctor SOURCE TARGET` to list the requirements that the server does not meet.",
    }
)
_TLS = "Check the certificates of the server and of this client, and sslmode and sslrootcert of the connection string."
_ADDRESS = "Check the host and the port, and that the server is running."
_AGAIN = "Retry the command: the server accepts connections."
_VERBOSE = 2  # PQERRORS_VERBOSE of libpq-fe.h
_CODE = re.compile(r": {2}([0-9A-Z]{5}): (.*)")
_POLL = {pq.PollingStatus.READING: select.POLLIN, pq.PollingStatus.WRITING: select.POLLOUT}


def rule_for(sqlstate: str, server: Endpoint = Endpoint.SOURCE) -> tuple[type[SourceError], str]:
    """Return the row for this code, else the one for its class, else UnexpectedSourceError."""
    unexpected = (errors.UnexpectedSourceError, "Report the error as a bug: Tidemark does not handle this SQLSTATE.")
    kind, hint = RULES.get(sqlstate) or RULES.get(sqlstate[:2]) or unexpected
    return kind, _TARGET_HINTS.get(sqlstate, hint) if server is Endpoint.TARGET else hint


def error_for(sqlstate: str | None, doing: str, message: str, server: Endpoint = Endpoint.SOURCE) -> SourceError:
    """Build the error for a PostgreSQL error message. Without an SQLSTATE the connection was lost."""
    if sqlstate is None:
        return errors.ConnectionLost(f"{doing}: {message}", RULES["08"][1])
    kind, hint = rule_for(sqlstate, server)
    return kind(f"{doing}: {message} (SQLSTATE {sqlstate})", hint, sqlstate)


@contextmanager
def translated(doing: str, server: Endpoint = Endpoint.SOURCE) -> Iterator[None]:
    """Convert psycopg exceptions into Tidemark's errors; `doing` names the action and its object."""
    try:
        yield
    except psycopg.Error as error:
        message = error.diag.message_primary or " ".join(str(error).split()) or "the connection was closed"
        detail = f" ({error.diag.message_detail})" if error.diag.message_detail else ""
        if error.sqlstate is None and not isinstance(error, psycopg.OperationalError):
            raise errors.UnexpectedSourceError(f"{doing}: {message}") from error
        raise error_for(error.sqlstate, doing, message + detail, server) from error


def refusal(
    conninfo: str, dsn: Dsn, message: str, patience_s: float = 10.0, server: Endpoint = Endpoint.SOURCE
) -> SourceError:
    """Return the error for a connection that psycopg could not open; `message` is psycopg's."""
    doing = f"cannot connect to {dsn}" if server is Endpoint.SOURCE else f"cannot connect to {server}, {dsn}"
    message = dsn.redact(" ".join(message.split()))
    match pq.PGconn.ping(conninfo.encode()):
        case pq.Ping.REJECT:
            return SourceBusy(f"{doing}: the server is starting up or shutting down", rule_for("57P03")[1], "57P03")
        case pq.Ping.OK:
            return _refused(conninfo, doing, message, patience_s)
        case _:
            return SourceUnreachable(f"{doing}: {message}", _TLS if _is_about_tls(message) else _ADDRESS)


def _refused(conninfo: str, doing: str, message: str, patience_s: float) -> SourceError:
    attempt = pq.PGconn.connect_start(conninfo.encode())
    try:
        failure = _failure(attempt, patience_s)
        if attempt.needs_password:
            return AuthenticationRefused(
                f"{doing}: the server requires a password, and none was given",
                "Put the password into ~/.pgpass or into the environment variable PGPASSWORD.",
            )
        codes = _CODE.findall(failure)
        if not codes:
            return SourceUnreachable(f"{doing}: {message}", _TLS if _is_about_tls(message) else _AGAIN)
        return error_for(codes[-1][0], doing, codes[-1][1])
    finally:
        attempt.finish()


def _is_about_tls(message: str) -> bool:
    return "SSL" in message or "certificate" in message


def _failure(attempt: Any, patience_s: float) -> str:
    """Return the verbose error of this attempt; empty if it succeeds this time or takes too long."""
    libpq().PQsetErrorVerbosity(ctypes.c_void_p(attempt.pgconn_ptr), _VERBOSE)
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        status = pq.PollingStatus(attempt.connect_poll())
        if status not in _POLL:
            return str(attempt.get_error_message()) if status == pq.PollingStatus.FAILED else ""
        poll = select.poll()
        poll.register(attempt.socket, _POLL[status])
        poll.poll(200)
    return ""
