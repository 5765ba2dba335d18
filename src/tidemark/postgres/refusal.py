"""The reason why a connection failed. libpq prints the SQLSTATE of a failed connection only in verbose errors.

psycopg has no option for that, so a failed connection is attempted once more with a higher error verbosity. Without the
code a wrong password could not be distinguished from a server without free connections, for which a retry makes sense.
"""

from __future__ import annotations

import ctypes
import re
import select
import time
from typing import Any

from psycopg import pq

from tidemark.errors import AuthenticationRefused, SourceBusy, SourceError, SourceUnreachable
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.libpq import libpq
from tidemark.postgres.sqlstate import error_for, rule_for

_VERBOSE = 2  # PQERRORS_VERBOSE of libpq-fe.h
_CODE = re.compile(r": {2}([0-9A-Z]{5}): (.*)")
_POLL = {pq.PollingStatus.READING: select.POLLIN, pq.PollingStatus.WRITING: select.POLLOUT}


def refusal(conninfo: str, dsn: Dsn, message: str, patience_s: float = 10.0) -> SourceError:
    """Return the error for a connection that psycopg could not open; `message` is psycopg's."""
    doing = f"cannot connect to {dsn}"
    message = dsn.redact(" ".join(message.split()))
    match pq.PGconn.ping(conninfo.encode()):
        case pq.Ping.REJECT:
            return SourceBusy(f"{doing}: the server is starting up or shutting down", rule_for("57P03")[1], "57P03")
        case pq.Ping.OK:
            return _refused(conninfo, doing, message, patience_s)
        case _:
            hint = "Check the host and the port, and that the server is running."
            return SourceUnreachable(f"{doing}: {message}", hint)


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
            return SourceUnreachable(f"{doing}: {message}", "Retry the command: the server accepts connections.")
        return error_for(codes[-1][0], doing, codes[-1][1])
    finally:
        attempt.finish()


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
