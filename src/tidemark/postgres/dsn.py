"""A libpq connection string that is never printed or logged in full and cannot be pickled.

The string is passed to libpq unchanged: URIs, keywords, `PGSERVICE`, `.pgpass` and environment variables have the same
meaning as in psql. libpq quotes the part of a string that it cannot parse, which may be part of the password. Therefore
an error about the string never repeats libpq's message; it describes the problem without quoting the input.
"""

from __future__ import annotations

import re
from typing import NoReturn

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tidemark.errors import InvalidValue

_TLS_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SHOWN = ("service", "host", "hostaddr", "port", "dbname", "user")
_URI = re.compile(r"postgres(?:ql)?://")
_HINT = (
    "Use a URI (postgresql://user@host/dbname) or keywords (host=… dbname=… user=…). In a URI, write the characters "
    "@ : / ? % # of a user name or password as %40 %3A %2F %3F %25 %23, or store the password in ~/.pgpass."
)
_REASONS = (
    (r"invalid percent-encoded token", "it has a % that is not followed by two hexadecimal digits"),
    (r"missing \"=\" after", "a keyword has no = after it"),
    (r"unterminated quoted string", "a quote is not closed"),
    (r"missing key/value separator", "a parameter after the ? has no ="),
    (r"extra key/value separator", "a parameter after the ? has two ="),
    (r"invalid (connection option|URI query parameter)", "it has an unknown keyword"),
    (r"IPv6 host address", "an IPv6 address that begins with [ is not closed"),
)


class Dsn:
    """A connection string that hides its password. Only `reveal()` returns the full string, for libpq."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        if reason := _misread(text):
            raise InvalidValue(f"invalid connection string: {reason}", _HINT)
        self._text = text

    def reveal(self) -> str:
        """Return the full string. It must be passed only to libpq."""
        return self._text

    def has(self, keyword: str) -> bool:
        """Whether the string itself sets this libpq keyword."""
        return keyword in conninfo_to_dict(self._text)

    def __str__(self) -> str:
        options = conninfo_to_dict(self._text)
        shown = " ".join(f"{key}={options[key]}" for key in _SHOWN if key in options)
        return shown or "libpq defaults"

    def __repr__(self) -> str:
        return f"Dsn({self})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Dsn contains a password and cannot be pickled")

    def __getstate__(self) -> NoReturn:
        self.__reduce__()

    def redact(self, text: str) -> str:
        """Remove option values from a libpq message, which may quote them, except those that `str()` shows.

        The modes of TLS are no secrets, and words of messages: "SSL was required".
        """
        options = conninfo_to_dict(self._text)
        for key, value in sorted(options.items(), key=lambda item: -len(str(item[1]))):
            if key not in _SHOWN and value and not (key == "sslmode" and value in _TLS_MODES):
                text = text.replace(str(value), "…")
        return text


def _misread(text: str) -> str | None:
    """Return why libpq would reject this string, or would parse part of the password as something else."""
    if "\0" in text:
        return "it has a NUL character"
    try:
        text.encode()
        options = {key: str(value) for key, value in conninfo_to_dict(text).items()}
    except UnicodeError:
        return "it is not valid UTF-8"
    except psycopg.Error as error:
        text = str(error)
        return next((why for pattern, why in _REASONS if re.search(pattern, text)), "libpq cannot read it")
    if not re.fullmatch(r"[0-9]{0,5}(,[0-9]{0,5})*", options.get("port", ""), re.ASCII):
        return "its port is not a number"
    if any("://" in options.get(key, "") for key in _SHOWN):
        return "it has a URI in place of a name"
    if any("@" in options.get(key, "") for key in ("host", "hostaddr", "service")):
        return "its host has an @"
    if "=" in options.get("dbname", "") or (_URI.match(text) and "@" in _URI.sub("", text).partition("/")[2]):
        return "it has an @ or = after the host that is not written as %40 or %3D"
    return None
