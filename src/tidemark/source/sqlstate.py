"""What an SQLSTATE means to us: one table from PostgreSQL's codes to our errors. Message text decides nothing.

A row is a whole code or a class (its first two characters); a whole code wins. What is not in the table is an
UnexpectedSourceError: we stop and say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import psycopg

from tidemark import errors
from tidemark.errors import SourceError

RULES: Mapping[str, tuple[type[SourceError], str]] = MappingProxyType(
    {
        "08": (errors.ConnectionLost, "again: the connection ended"),
        "08P01": (
            errors.UnsupportedServer,
            "PostgreSQL's own host and port: a pooler in between does not understand us",
        ),
        "0A000": (errors.UnsupportedServer, "tidemark doctor, which says what this server can do"),
        "22021": (errors.UntranslatableText, "update or delete the value, or rename the object, at the source"),
        "22P05": (errors.UntranslatableText, "update or delete the value, or rename the object, at the source"),
        "25006": (errors.UnsupportedServer, "the primary: this server or transaction is read-only"),
        "25P03": (errors.TimedOut, "again: the transaction was idle for longer than we allow"),
        "25P04": (errors.TimedOut, "again, with a longer transaction_timeout for this role"),
        "28": (errors.AuthenticationRefused, "the user, the password and pg_hba.conf"),
        "3D000": (errors.ObjectMissing, "the database's name"),
        "3F000": (errors.ObjectMissing, "the schema's name"),
        "40001": (errors.Conflict, "again"),
        "40P01": (errors.Conflict, "again"),
        "42501": (errors.NotPermitted, "tidemark setup --print, which gives the SQL for the owner"),
        "42704": (errors.ObjectMissing, "tidemark doctor, which says what is missing"),
        "42P01": (errors.ObjectMissing, "the table's name"),
        "42710": (errors.ObjectExists, "another name, or drop the old one"),
        "42P07": (errors.ObjectExists, "another name, or drop the old one"),
        "53": (errors.SourceBusy, "again later, or raise the limit that the message names"),
        "55000": (errors.UnsupportedServer, "tidemark doctor, which says what the server is not set up for"),
        "55006": (errors.ObjectInUse, "stop the session that the message names"),
        "55P03": (errors.TimedOut, "again when whoever holds the lock is done"),
        "57014": (errors.TimedOut, "again; the statement was cancelled, by its timeout or by someone"),
        "57P01": (errors.ConnectionLost, "again: the session or the server was shut down"),
        "57P02": (errors.ConnectionLost, "again: the server crashed"),
        "57P03": (errors.SourceBusy, "again: the server is starting up or shutting down"),
        "57P04": (errors.ObjectMissing, "the database's name: it was dropped"),
        "57P05": (errors.ConnectionLost, "again, with a longer idle_session_timeout for this role"),
    }
)


def rule_for(sqlstate: str) -> tuple[type[SourceError], str]:
    """The row for this code, or for its class, or the one for the unexpected."""
    unexpected = (errors.UnexpectedSourceError, "nothing by itself: we stop because we do not know what this means")
    return RULES.get(sqlstate) or RULES.get(sqlstate[:2]) or unexpected


def error_for(sqlstate: str | None, doing: str, said: str) -> SourceError:
    """Our error for what PostgreSQL said. Without an SQLSTATE nothing was said: the connection is gone."""
    if sqlstate is None:
        return errors.ConnectionLost(f"{doing}: {said}", RULES["08"][1])
    kind, hint = rule_for(sqlstate)
    error = kind(f"{doing}: {said} (SQLSTATE {sqlstate})", hint)
    error.sqlstate = sqlstate
    return error


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn what psycopg raises inside into our tree; `doing` names the act and its object."""
    try:
        yield
    except psycopg.Error as error:
        said = error.diag.message_primary or " ".join(str(error).split()) or "the connection was closed"
        detail = f" ({error.diag.message_detail})" if error.diag.message_detail else ""
        if error.sqlstate is None and not isinstance(error, psycopg.OperationalError):
            raise errors.UnexpectedSourceError(f"{doing}: {said}") from error
        raise error_for(error.sqlstate, doing, said + detail) from error
