"""Where a table lies: `schema/table/changes`, in letters that Delta, Spark and every file system take as they are.

deltalake decodes `%` in paths and fails on brackets, Spark globs brackets and does not see what begins with `_` or `.`,
and `..` climbs. So all but ASCII letters, digits, `_` and `-` is written `~XX`, byte by byte, and so is a leading `_`.
"""

from __future__ import annotations

import re
from pathlib import Path

from tidemark.errors import InvalidValue

CHANGES = "changes"
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def escaped(name: str) -> str:
    """A name as a part of a path; no two names give the same."""
    letters = [chr(byte) if byte in _PLAIN else f"~{byte:02X}" for byte in name.encode()]
    if letters and letters[0] == "_":
        letters[0] = "~5F"
    return "".join(letters)


def unescaped(part: str) -> str:
    """The name that a part of a path stands for."""
    try:
        name = re.sub(r"~([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), part).encode("latin-1").decode()
    except UnicodeError:
        name = ""
    if escaped(name) != part:
        raise InvalidValue(f"{part!r} is not how a name is written in a lake")
    return name


def require_plain(path: Path) -> Path:
    """A lake's own path, if Delta and Spark both take it literally."""
    strange = sorted(set(str(path)) & set("%[]{}*?\\"))
    if strange:
        raise InvalidValue(
            f"a lake cannot lie at {path}: {' '.join(strange)} in it means something else", "another path"
        )
    return path


def table_path(schema: str, name: str, oid: int, taken: frozenset[str]) -> str:
    """Where a table lies in the lake: under its name, unless an earlier table of that name lies there."""
    path = f"{escaped(schema)}/{escaped(name)}"
    return f"{path}~~{oid}" if path in taken else path
