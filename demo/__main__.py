"""`make demo`: a busy database, examined, prepared, mirrored live and read at exact positions. Ends by itself."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo.mirror import apply_live, ask_both, begin_lake, judge, prepare, receive_live, received
from demo.saying import say
from demo.source import examine_and_prepare, tell_snapshots_from_positions
from harness.database import Database, add_roles, create_database
from harness.postgres import Server, installs, start_server
from tidemark.decode.warm import warm

CLIENTS, SCALE = 16, 2


def main() -> None:
    """Show one thing after another."""
    server = start_server(installs()[18], {"fsync": True})
    add_roles(server)
    database = create_database(server)
    say(f"A private PostgreSQL {server.install.version} on port {server.port}, and an application on it: pgbench")
    create_tables(server, database)
    warm()
    examine_and_prepare(database)
    with tempfile.TemporaryDirectory() as folder:
        side = prepare(database, Path(folder))
        begin_lake(side)
        with load(server, database):
            receive_live(side)
            with received(side):
                apply_live(side, seconds=5)
                ask_both(side)
            judge(side)
            tell_snapshots_from_positions(database)
        side.spark.stop()
    if sys.stdin.isatty() and sys.stdout.isatty():
        say(f"The server runs until you press Enter: psql '{server.dsn('postgres', database.name)}'")
        input()


def create_tables(server: Server, database: Database) -> None:
    """pgbench's tables, empty; the one without a key names its rows by all of their columns."""
    if pgbench(server, database, "--initialize", "--init-steps=dtp", "--quiet", f"--scale={SCALE}").wait() != 0:
        sys.exit(f"pgbench failed:\n{server.log.read_text()}")
    database.run("alter table pgbench_history replica identity full")


def pgbench(server: Server, database: Database, *options: str) -> subprocess.Popen[bytes]:
    """The application: pgbench as the owner of its tables."""
    return server.start_program("pgbench", *options, database.dsn("app").reveal())


@contextmanager
def load(server: Server, database: Database) -> Iterator[None]:
    """Data, and clients that write until the context ends."""
    pgbench(server, database, "--initialize", "--init-steps=G", "--quiet", f"--scale={SCALE}").wait()
    process = pgbench(server, database, f"--client={CLIENTS}", "--time=600", "--no-vacuum", "--rate=1000")
    try:
        while not database.admin("select 1 from pgbench_history limit 1"):
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
