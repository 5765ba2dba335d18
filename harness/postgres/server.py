"""A private server: start, stop, crash and restart, its settings, and connections to it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, LiteralString

import psycopg
from psycopg.conninfo import make_conninfo

from harness.postgres.install import Install
from harness.postgres.template import fill_from_template, initdb
from harness.postgres.workspace import Workspace, workspace

Settings = Mapping[str, str | int | bool]
Mode = Literal["smart", "fast", "immediate", "crash"]

SIGNALS: Mapping[Mode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
    "crash": signal.SIGKILL,
}

DEFAULTS: Settings = {
    "listen_addresses": "127.0.0.1",
    "wal_level": "logical",
    "fsync": False,  # a killed postmaster loses nothing without it; tests of power loss turn it on
    "max_prepared_transactions": 20,
    "max_connections": 100,
    "shared_buffers": "32MB",
    "log_min_messages": "warning",
    "log_replication_commands": False,
}

START_LIMIT_S = 120.0


class ServerFailed(Exception):
    """The server did not start; the message contains the end of its log."""


class Server:
    """A PostgreSQL server in its own directory, on a free port of 127.0.0.1."""

    def __init__(self, install: Install, folder: Path, space: Workspace) -> None:
        self.install = install
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "log"
        self.port = 0
        self._space = space
        self._settings: dict[str, str | int | bool] = dict(DEFAULTS)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, settings: Settings | None = None) -> None:
        """Start with all settings so far and these, on the last or a free port; return when it accepts connections."""
        self._settings.update(settings or {})
        for attempt in range(3):
            self.port = self.port if self.port and attempt == 0 else free_port()
            try:
                self._start_once()
            except ServerFailed as error:
                if "Address already in use" not in str(error) or attempt == 2:
                    raise
            else:
                return

    def _start_once(self) -> None:
        lines = [f"{name} = {_quoted(value)}" for name, value in self._settings.items()]
        lines += [f"port = {self.port}", f"unix_socket_directories = {_quoted(str(self.folder))}"]
        (self.data / "tidemark.conf").write_text("\n".join(lines) + "\n")
        main = self.data / "postgresql.conf"
        if "tidemark.conf" not in main.read_text():
            with main.open("a") as file:
                file.write("include 'tidemark.conf'\n")
        self._space.give(self.data)
        program = self._space.reachable(self.install).program("postgres")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [program, "-D", self.data], stdout=log, stderr=log, stdin=subprocess.DEVNULL, **self._space.as_user()
            )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            status = _status(self.data / "postmaster.pid", self._process.pid)
            if status in ("ready", "standby"):
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.01)
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
        raise ServerFailed(f"PostgreSQL {self.install.version} did not start:\n{tail}")

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        assert self._process is not None
        return self._process.pid

    def stop(self, mode: Mode = "fast") -> None:
        """Stop the server and wait for its end; `crash` kills the postmaster with SIGKILL."""
        if self._process is None:
            return
        os.kill(self._process.pid, SIGNALS[mode])
        self._process.wait(timeout=60)
        self._process = None
        if mode == "crash":
            self._wait_for_orphans()

    def _wait_for_orphans(self) -> None:
        """Wait for the backends, which end on their own; until then a new postmaster refuses to start."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if not any(_works_in(process) == self.data for process in Path("/proc").glob("[0-9]*")):
                break
            time.sleep(0.02)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def restart(self, mode: Mode = "fast", settings: Settings | None = None) -> None:
        """Stop, and start again on the same port with these settings added."""
        self.stop(mode)
        self.start(settings)

    def forget(self, *settings: str) -> None:
        """Remove settings, so that at its next start the server uses its own files, as after an ALTER SYSTEM."""
        for name in settings:
            self._settings.pop(name, None)

    def remove(self) -> None:
        """Stop the server and delete its directory."""
        self.stop("immediate")
        shutil.rmtree(self.folder)

    def dsn(self, user: str = "postgres", dbname: str = "postgres", **options: Any) -> str:
        """A libpq connection string to this server."""
        return make_conninfo("", host="127.0.0.1", port=self.port, user=user, dbname=dbname, **options)

    def connect(self, dbname: str = "postgres", user: str = "postgres", **options: Any) -> psycopg.Connection[Any]:
        """A plain connection for a test, by default as the superuser, in autocommit mode."""
        return psycopg.connect(self.dsn(user, dbname, **options), autocommit=True, client_encoding="UTF8")

    def sql(self, *statements: LiteralString | str, dbname: str = "postgres") -> list[tuple[Any, ...]]:
        """Run statements as the superuser; return the rows of the last one that has any."""
        with self.connect(dbname) as connection:
            rows: list[tuple[Any, ...]] = []
            for statement in statements:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description is not None else rows
            return rows

    def put(self, source: Path, name: str) -> None:
        """Copy a file into the data directory, readable by the server alone."""
        copied = self.data / name
        copied.write_bytes(source.read_bytes())
        copied.chmod(0o600)
        self._space.give(self.data)

    def move_wal(self, folder: Path) -> None:
        """Stop the server, move its WAL to a new directory, and start it again."""
        self.stop()
        shutil.move(self.data / "pg_wal", folder)
        self._space.give(folder)
        (self.data / "pg_wal").symlink_to(folder)
        self.start()

    def program(self, name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run one of the installation's programs as the servers' user."""
        program = self._space.reachable(self.install).program(name)
        return subprocess.run(
            [program, *arguments], capture_output=True, text=True, check=True, **self._space.as_user()
        )

    def start_program(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one of the installation's programs as the servers' user; its output is appended to the log."""
        program = self._space.reachable(self.install).program(name)
        with self.log.open("ab") as log:
            return subprocess.Popen([program, *arguments], stdout=log, stderr=log, **self._space.as_user())

    def standby(self, settings: Settings | None = None) -> Server:
        """Create a hot standby with pg_basebackup, which streams from this server."""
        standby = Server(self.install, self._space.folder(f"standby-{self.install.major}"), self._space)
        self.program(
            "pg_basebackup", "--dbname", self.dsn(), "--pgdata", standby.data,
            "--write-recovery-conf", "--checkpoint=fast", "--no-sync",
        )  # fmt: skip
        standby._settings.update(self._settings)
        standby.start(settings)
        return standby

    def promote(self) -> None:
        """Promote a standby to a primary, on a new timeline."""
        self.sql("select pg_promote(wait => true)")


def start_server(install: Install, settings: Settings | None = None, *, own_identity: bool = False) -> Server:
    """Start a new, empty server; servers share a system identifier unless `own_identity`."""
    space = workspace()
    server = Server(install, space.folder(f"server-{install.major}"), space)
    if own_identity:
        initdb(install, server.data, space)
    else:
        fill_from_template(install, server.data, space)
    server.start(settings)
    return server


def _quoted(value: str | int | bool) -> str:
    text = ("on" if value else "off") if isinstance(value, bool) else str(value)
    return "'" + text.replace("'", "''") + "'"


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _status(file: Path, pid: int) -> str:
    """The status in postmaster.pid, for which pg_ctl waits as well; empty while the file is another process's."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return ""
    return lines[7].strip() if len(lines) > 7 and lines[0] == str(pid) else ""


def _works_in(process: Path) -> Path | None:
    try:
        return (process / "cwd").readlink()
    except OSError:
        return None
