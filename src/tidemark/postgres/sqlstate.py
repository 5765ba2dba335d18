"""Map SQLSTATEs to Tidemark's errors with one table. Message texts are never evaluated.

A row is a full code or a class (its first two characters); a full code takes precedence. A code that is not in the
table raises UnexpectedSourceError, which stops the command.
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


def rule_for(sqlstate: str) -> tuple[type[SourceError], str]:
    """Return the row for this code, else the one for its class, else UnexpectedSourceError."""
    unexpected = (errors.UnexpectedSourceError, "Report the error as a bug: Tidemark does not handle this SQLSTATE.")
    return RULES.get(sqlstate) or RULES.get(sqlstate[:2]) or unexpected


def error_for(sqlstate: str | None, doing: str, said: str) -> SourceError:
    """Build the error for a PostgreSQL error message. Without an SQLSTATE the connection was lost."""
    if sqlstate is None:
        return errors.ConnectionLost(f"{doing}: {said}", RULES["08"][1])
    kind, hint = rule_for(sqlstate)
    error = kind(f"{doing}: {said} (SQLSTATE {sqlstate})", hint)
    error.sqlstate = sqlstate
    return error


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Convert psycopg exceptions into Tidemark's errors; `doing` names the action and its object."""
    try:
        yield
    except psycopg.Error as error:
        said = error.diag.message_primary or " ".join(str(error).split()) or "the connection was closed"
        detail = f" ({error.diag.message_detail})" if error.diag.message_detail else ""
        if error.sqlstate is None and not isinstance(error, psycopg.OperationalError):
            raise errors.UnexpectedSourceError(f"{doing}: {said}") from error
        raise error_for(error.sqlstate, doing, said + detail) from error
