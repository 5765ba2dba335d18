"""A real PgBouncer in transaction mode between a test and its server: the system's, or Debian's package unpacked.

`find_pgbouncer` returns None if neither is available.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from harness.database import MIRROR, PASSWORD, Database
from harness.debian import unpacked
from harness.postgres.server import free_port
from harness.postgres.workspace import workspace

PACKAGES = ("pgbouncer", "libevent-2.1-7", "libc-ares2")

SETTINGS = """\
[databases]
* = host=127.0.0.1 port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = 3
"""


@cache
def find_pgbouncer() -> Path | None:
    """The root directory of an installation, which contains `usr/sbin/pgbouncer`."""
    if shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        return Path("/")
    return unpacked("pgbouncer", PACKAGES)


@contextmanager
def pooled(database: Database) -> Iterator[str]:
    """The mirror role's connection string through a pooler that may change servers at every transaction."""
    root = find_pgbouncer()
    assert root is not None
    space = workspace()
    folder = space.folder("pgbouncer")
    if root != Path("/"):
        shutil.copytree(root / "usr", folder / "usr", symlinks=True)
    port = free_port()
    (folder / "users").write_text(f'"{MIRROR}" "{PASSWORD}"\n')
    (folder / "ini").write_text(SETTINGS.format(port=port, server_port=database.server.port, users=folder / "users"))
    space.give(folder)
    settings = dict(space.as_user())
    libraries = ":".join(map(str, folder.glob("usr/lib/*-linux-gnu")))  # the name contains the architecture
    settings["env"] = settings["env"] | {"LD_LIBRARY_PATH": libraries}
    program = (folder if root != Path("/") else root) / "usr/sbin/pgbouncer"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, folder / "ini"], stdout=log, stderr=log, **settings)
    (folder / "pid").write_text(str(process.pid))
    try:
        _wait_for(port, process)
        yield f"host=127.0.0.1 port={port} user={MIRROR} dbname={database.name}"
    finally:
        process.terminate()
        process.wait(timeout=20)
        shutil.rmtree(folder)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError("PgBouncer did not start")
