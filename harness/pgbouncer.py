"""A real PgBouncer in transaction mode between a test and its server: the system's, or Debian's package unpacked.

Unpacked into the clone's `.cache` without installing anything; None where neither is to be had.
"""

from __future__ import annotations

import fcntl
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
from harness.postgres.server import free_port
from harness.postgres.workspace import workspace

CACHE = Path(__file__).parents[1] / ".cache" / "pgbouncer"
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
    """The folder that is the root of an installation: `usr/sbin/pgbouncer` lies below it."""
    if shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        return Path("/")
    if shutil.which("apt-get") and shutil.which("dpkg"):
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (CACHE / "usr/sbin/pgbouncer").exists():
                _unpack()
    return CACHE if (CACHE / "usr/sbin/pgbouncer").exists() else None


def _unpack() -> None:
    """Download and unpack; with package lists of our own if the machine's are missing."""
    lists = CACHE / "lists"
    lists.mkdir(exist_ok=True)
    private = ["-o", f"Dir::State::lists={lists}", "-o", "APT::Sandbox::User=root"]
    for options, update in (([], False), (private, True)):
        if update and subprocess.run(["apt-get", *options, "update"], capture_output=True, check=False).returncode:
            return
        if not subprocess.run(
            ["apt-get", *options, "download", *PACKAGES], cwd=CACHE, capture_output=True, check=False
        ).returncode:
            break
    partial = CACHE / "partial"
    for package in CACHE.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, partial], check=True)
    if partial.exists():
        (partial / "usr").rename(CACHE / "usr")


@contextmanager
def pooled(database: Database) -> Iterator[str]:
    """The connection string of the mirror's role through a pooler that changes servers at every transaction."""
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
    settings["env"] = settings["env"] | {"LD_LIBRARY_PATH": str(folder / "usr/lib/x86_64-linux-gnu")}
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
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError("PgBouncer did not start")
