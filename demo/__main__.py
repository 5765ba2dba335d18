"""`make demo`: a database under load is checked, prepared, mirrored, read at exact positions, compared and cloned."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo.clone import clone_live
from demo.heading import print_heading
from demo.mirror import check_log, compare_answers, copy_live, follow_live, mirroring, prepare, prove
from demo.source import check_and_prepare, compare_snapshots_with_lsns
from harness.database import Database, add_roles, create_database
from harness.postgres import Server, installs, start_server
from harness.warming import warm

CLIENTS, SCALE = 16, 5


def main() -> None:
    """Run all steps."""
    server = start_server(installs()[18], {"fsync": True})
    add_roles(server)
    database = create_database(server)
    print_heading(
        f"A private PostgreSQL {server.install.version} on port {server.port}, with pgbench as its application"
    )
    create_tables(server, database)
    warm()
    check_and_prepare(database)
    with tempfile.TemporaryDirectory() as directory, load(server, database):
        compare_snapshots_with_lsns(database)
        shown = prepare(database, Path(directory))
        with mirroring(shown) as running:
            copy_live(running)
            follow_live(shown, running, seconds=6)
            check_log(shown)
            compare_answers(shown, running)
            prove(shown, running)
        clone_live(database, Path(directory), shown.spark)
        shown.spark.stop()
    if sys.stdin.isatty() and sys.stdout.isatty():
        print_heading(f"The server runs until you press Enter: psql '{server.dsn('postgres', database.name)}'")
        input()


def create_tables(server: Server, database: Database) -> None:
    """Create and fill the tables of pgbench; the one without a key gets replica identity full."""
    if pgbench(server, database, "--initialize", "--init-steps=dtGvp", "--quiet", f"--scale={SCALE}").wait() != 0:
        sys.exit(f"pgbench failed:\n{server.log.read_text()}")
    database.run("alter table pgbench_history replica identity full")


def pgbench(server: Server, database: Database, *options: str) -> subprocess.Popen[bytes]:
    """Start pgbench as the owner of its tables."""
    return server.start_program("pgbench", *options, database.dsn("app").reveal())


@contextmanager
def load(server: Server, database: Database) -> Iterator[None]:
    """Run clients that write until the context ends."""
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
