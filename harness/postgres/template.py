"""A new cluster per version, cached in the clone's `.cache`: initdb takes seconds, and a copy does not."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

from harness.postgres.install import Install
from harness.postgres.workspace import Workspace

CACHE = Path(__file__).parents[2] / ".cache" / "postgres"

OPTIONS = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")

HBA = """\
local all         all                    trust
host  all         postgres 127.0.0.1/32  trust
host  replication postgres 127.0.0.1/32  trust
host  all         all      127.0.0.1/32  scram-sha-256
host  replication all      127.0.0.1/32  scram-sha-256
"""


def fill_from_template(install: Install, data: Path, workspace: Workspace) -> None:
    """Copy the cached cluster to `data`; servers created this way share a system identifier."""
    key = hashlib.sha256(repr((install.version, OPTIONS, HBA)).encode()).hexdigest()[:12]
    cached = CACHE / f"{install.version}-{key}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not cached.exists():
            made = workspace.folder("initdb") / "data"
            initdb(install, made, workspace)
            partial = cached.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            shutil.move(made, partial)
            partial.rename(cached)
            made.parent.rmdir()
    shutil.copytree(cached, data, symlinks=True)
    data.chmod(0o700)
    workspace.give(data)


def initdb(install: Install, data: Path, workspace: Workspace) -> None:
    """Create a cluster with its own system identifier."""
    program = workspace.reachable(install).program("initdb")
    subprocess.run([program, *OPTIONS, "--pgdata", data], check=True, capture_output=True, **workspace.as_user())
    (data / "pg_hba.conf").write_text(HBA)
    workspace.give(data)
