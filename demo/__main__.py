"""`make demo`: a busy database, examined, prepared, mirrored live and read at exact positions. Ends by itself."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo.mirror import ask_both, copy_live, follow_live, judge, mirroring, prepare, prove
from demo.saying import say
from demo.source import examine_and_prepare, tell_snapshots_from_positions
from harness.database import Database, add_roles, create_database
from harness.postgres import Server, installs, start_server
from tidemark.decode.warm import warm

CLIENTS, SCALE = 16, 5


def main() -> None:
    """Show one thing after another."""
    server = start_server(installs()[18], {"fsync": True})
    add_roles(server)
    database = create_database(server)
    say(f"A private PostgreSQL {server.install.version} on port {server.port}, and an application on it: pgbench")
    create_tables(server, database)
    warm()
    examine_and_prepare(database)
    with tempfile.TemporaryDirectory() as folder, load(server, database):
        tell_snapshots_from_positions(database)
        shown = prepare(database, Path(folder))
        with mirroring(shown) as running:
            copy_live(running)
            follow_live(shown, running, seconds=6)
            judge(shown)
            ask_both(shown, running)
            prove(shown, running)
        shown.spark.stop()
    if sys.stdin.isatty() and sys.stdout.isatty():
        say(f"The server runs until you press Enter: psql '{server.dsn('postgres', database.name)}'")
        input()


def create_tables(server: Server, database: Database) -> None:
    """pgbench's tables, full; the one without a key names its rows by all of their columns."""
    if pgbench(server, database, "--initialize", "--init-steps=dtGvp", "--quiet", f"--scale={SCALE}").wait() != 0:
        sys.exit(f"pgbench failed:\n{server.log.read_text()}")
    database.run("alter table pgbench_history replica identity full")


def pgbench(server: Server, database: Database, *options: str) -> subprocess.Popen[bytes]:
    """The application: pgbench as the owner of its tables."""
    return server.start_program("pgbench", *options, database.dsn("app").reveal())


@contextmanager
def load(server: Server, database: Database) -> Iterator[None]:
    """Clients that write until the context ends."""
    process = pgbench(server, database, f"--client={CLIENTS}", "--time=600", "--no-vacuum", "--rate=500")
    try:
        while not database.admin("select 1 from pgbench_history limit 1"):
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
