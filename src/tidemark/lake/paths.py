"""Where things lie in a lake: a table under its oid, which stays what it is when the table is renamed or dropped.

Which table has which name is said by the lake's catalog (`catalog`).
"""

from __future__ import annotations

from pathlib import Path

from tidemark.errors import InvalidValue

CHANGES = "changes"


def table_path(oid: int) -> str:
    """Where a table lies in the lake."""
    return f"tables/{oid}"


def require_plain(path: Path) -> Path:
    """A lake's own path, if Delta and Spark both take it literally."""
    strange = sorted(set(str(path)) & set("%[]{}*?\\"))
    if strange:
        raise InvalidValue(
            f"invalid path for a lake: {path} contains {' '.join(strange)}", "Use a path without these characters."
        )
    return path
