"""Paths in a lake. A table's path contains its OID, which does not change when the table is renamed or dropped.

The catalog of the lake (`catalog`) maps names to tables.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path

from tidemark.errors import InvalidValue

CHANGES, VERSIONS = "changes", "versions"

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)")  # pathlib turns s3://bucket into s3:/bucket
_SOURCES = ("postgres", "postgresql")


def local_path(text: str | Path) -> Path:
    """Return the absolute path of a directory that exists or can be created. URIs and files are rejected."""
    if uri := _URI.match(str(text)):
        scheme, rest = uri[1].lower(), uri[2]
        if scheme in _SOURCES:  # the rest may contain a password
            raise InvalidValue(
                f"a path is expected, not a connection string: {scheme}://…",
                "Check the order of the arguments: SOURCE comes before LAKE.",
            )
        if scheme == "file":
            raise InvalidValue(f"a path is expected, not a URI: {scheme}:///{rest}", f"Use /{rest}.")
        raise InvalidValue(
            f"object storage is not supported: {scheme}://{rest}", "Use a path on a local or shared file system."
        )
    path = Path(text).absolute()
    for part in (path, *path.parents):
        try:
            mode = part.stat().st_mode
        except OSError:
            continue
        if not stat.S_ISDIR(mode):
            raise InvalidValue(f"{part} is a file, not a directory", "Use the path of a directory.")
        break
    return path


def directory_or_command(text: str | Path) -> str:
    """Return a shell command that contains %p unchanged, and anything else as the absolute path of a directory."""
    return str(text) if "%p" in str(text) else str(local_path(text))


def require_plain(path: Path) -> Path:
    """Return the path of a lake if both Delta and Spark take it literally; otherwise raise InvalidValue."""
    strange = sorted(set(str(path)) & set("%[]{}*?\\"))
    if strange:
        raise InvalidValue(
            f"invalid path for a lake: {path} contains {' '.join(strange)}", "Use a path without these characters."
        )
    return path
