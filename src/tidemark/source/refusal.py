"""Why a connection was refused. libpq knows the SQLSTATE of a failed connection and prints it only when asked to.

psycopg has no switch for that, so a connection that failed is tried once more with libpq's error verbosity raised.
Without the code a wrong password and a full server would look the same, and one of them is worth trying again.
"""

from __future__ import annotations

import ctypes
import re
import select
import time
from typing import Any

from psycopg import pq

from tidemark.errors import AuthenticationRefused, SourceBusy, SourceError, SourceUnreachable
from tidemark.source.dsn import Dsn
from tidemark.source.libpq import libpq
from tidemark.source.sqlstate import error_for, rule_for

_VERBOSE = 2  # PQERRORS_VERBOSE of libpq-fe.h
_CODE = re.compile(r": {2}([0-9A-Z]{5}): (.*)")
_POLL = {pq.PollingStatus.READING: select.POLLIN, pq.PollingStatus.WRITING: select.POLLOUT}


def refusal(conninfo: str, dsn: Dsn, first_said: str, patience_s: float = 10.0) -> SourceError:
    """The error for a connection that psycopg could not make: `first_said` is what it said about it."""
    doing = f"cannot connect to {dsn}"
    first_said = dsn.redact(" ".join(first_said.split()))
    match pq.PGconn.ping(conninfo.encode()):
        case pq.Ping.REJECT:
            return SourceBusy(f"{doing}: the server is starting up or shutting down", rule_for("57P03")[1], "57P03")
        case pq.Ping.OK:
            return _said_no(conninfo, doing, first_said, patience_s)
        case _:
            return SourceUnreachable(f"{doing}: {first_said}", "the host, the port, and whether the server runs there")


def _said_no(conninfo: str, doing: str, first_said: str, patience_s: float) -> SourceError:
    attempt = pq.PGconn.connect_start(conninfo.encode())
    try:
        said = _failure(attempt, patience_s)
        if attempt.needs_password:
            return AuthenticationRefused(f"{doing}: the server asks for a password and none was given", "~/.pgpass")
        codes = _CODE.findall(said)
        if not codes:
            return SourceUnreachable(f"{doing}: {first_said}", "again; the server answers, and this connection failed")
        return error_for(codes[-1][0], doing, codes[-1][1])
    finally:
        attempt.finish()


def _failure(attempt: Any, patience_s: float) -> str:
    """What libpq says in full about this attempt; empty if it succeeds this time or takes too long."""
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
