"""`python -m tests.sql_parity.regress`: PostgreSQL's own regression files, directly and through `tidemark serve`.

psql runs each file twice in databases that are copies of one another: at the source, and through a port. What it prints
must be the same, byte for byte. Whether it is what PostgreSQL's authors expect does not matter: the files are those of
one version, and the server may be another. The functions in C that some of them use are missing, and equally so.
"""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.figures import report
from harness.database import MIRROR, Database, add_roles
from harness.debian import source_tree
from harness.postgres import Install, Server, installs, start_server
from harness.postgres.workspace import workspace
from harness.served import served
from harness.syncing import syncing
from tidemark.spark import SparkOptions, spark_session

SOURCE, SUITE, BELOW = "postgresql-17", "trixie", "src/test/regress"
SETUP = ("test_setup", "create_misc", "create_operator", "create_type", "create_index", "create_aggregate")
FILES = (
    *("select", "aggregates", "join", "subselect", "numeric", "case", "union", "window", "date", "char", "text"),
    *("select_distinct", "select_distinct_on", "select_having", "select_implicit", "groupingsets", "random"),
    *("int2", "int4", "int8", "float8", "varchar", "timestamp", "timestamptz", "interval", "strings", "limit", "with"),
    *("prepare", "portals", "transactions", "copy2", "arrays", "plancache", "errors"),
)
TEMPLATE, NAME = "prepared", "regression"
LIMIT_S = 1800
SHOWN = 40
SETTINGS = {"autovacuum": False, "max_prepared_transactions": 0}
_TABLES = """select format('%I', c.relname) from pg_class c
    where c.relkind = 'r' and c.relnamespace = 'public'::regnamespace
    and not exists (select from pg_inherits i where c.oid in (i.inhrelid, i.inhparent)) order by 1"""
_KEYLESS = "select not exists (select from pg_index where indrelid = '{}'::regclass and indisprimary)"


@dataclass(frozen=True)
class Regression:
    """A server with a database in which the setup of the regression files has run."""

    server: Server
    files: Path
    tables: tuple[str, ...]

    def output(self, file: str, port: int, database: str = NAME) -> bytes:
        """What psql prints for a file."""
        psql = self.server.install.program("psql")
        settings = "-c intervalstyle=postgres_verbose -c tidemark.cost=0"
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("PG")},
            "PG_ABS_SRCDIR": str(self.files),
            "PG_ABS_BUILDDIR": str(self.files),
            "PG_LIBDIR": str(self.files),
            "PG_DLSUFFIX": ".so",
            "PGTZ": "America/Los_Angeles",
            "PGDATESTYLE": "Postgres, MDY",
            "PGOPTIONS": settings,
            "LC_ALL": "C",
        }
        where = f"host=127.0.0.1 port={port} user=postgres dbname={database}"
        command = [str(psql), "-X", "-a", "-q", "-d", where, "-v", "HIDE_TABLEAM=on", "-v", "HIDE_TOAST_COMPRESSION=on"]
        with (self.files / "sql" / f"{file}.sql").open("rb") as script:
            ended = subprocess.run(
                command,
                stdin=script,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                timeout=LIMIT_S,
                check=False,
            )
        return ended.stdout

    def again(self) -> Database:
        """Create the database as the setup left it, in place of that which is there."""
        self.server.sql(f"drop database if exists {NAME} with (force)")
        self.server.sql(f"create database {NAME} template {TEMPLATE}")
        self.server.sql(f"alter database {NAME} set bytea_output = 'hex'")
        return Database(self.server, NAME)

    def outputs(self, port: int, files: Sequence[str]) -> dict[str, bytes]:
        """What psql prints for every file, one after the other."""
        return {file: self.output(file, port) for file in files}


@contextmanager
def regression(install: Install) -> Iterator[Regression]:
    """Run the setup on a server of its own; the tables are published, and have identities, before any copy is made."""
    found = source_tree(SOURCE, SUITE, BELOW)
    if found is None:
        raise SystemExit(f"no regression files: apt-get cannot download the source of {SOURCE} of Debian {SUITE}")
    files = workspace().folder("regress") / "files"
    shutil.copytree(found, files)
    (files / "results").mkdir()
    workspace().give(files.parent)
    server = start_server(install, SETTINGS)
    try:
        add_roles(server)
        server.sql(f"grant pg_read_all_data to {MIRROR}", f"create database {TEMPLATE}")
        made = Regression(server, files, ())
        for file in SETUP:
            made.output(file, server.port, TEMPLATE)
        tables = tuple(str(name) for (name,) in server.sql(_TABLES, dbname=TEMPLATE))
        for table in tables:
            if server.sql(_KEYLESS.format(table), dbname=TEMPLATE)[0][0]:
                server.sql(f"alter table {table} replica identity full", dbname=TEMPLATE)
        names = Database(server, NAME).names
        generated = " with (publish_generated_columns = stored)" if install.major >= 18 else ""
        server.sql(f"create publication {names.publication} for table {', '.join(tables)}{generated}", dbname=TEMPLATE)
        yield Regression(server, files, tables)
    finally:
        server.remove()
        shutil.rmtree(files.parent)


def through_server(made: Regression, files: Sequence[str], engine: str) -> tuple[dict[str, bytes], int]:
    """What psql prints through `tidemark serve`, with a lake that follows; and how many answers were the mirror's."""
    spark = spark_session(SparkOptions(master="local[2]", conf={"spark.ui.enabled": "false"}))
    database = made.again()
    with tempfile.TemporaryDirectory() as folder, syncing(database, Path(folder), spark) as synced:
        synced.catch_up()
        synced.copy_all()
        synced.catch_up()
        with served(database.dsn("postgres"), synced.options.lake, "--engine", engine, "--route", "auto") as running:
            return made.outputs(running.port, files), running.answered()


def through_relay(made: Regression, files: Sequence[str]) -> dict[str, bytes]:
    """What psql prints through `tidemark serve` that only relays, for which a folder marked as a lake is enough."""
    database = made.again()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "_tidemark.json").write_text("{}")
        with served(database.dsn("postgres"), Path(folder), "--route", "source") as running:
            return made.outputs(running.port, files)


def differences(direct: dict[str, bytes], through: dict[str, bytes]) -> Iterator[str]:
    """The lines that differ, of each file."""
    for file, expected in direct.items():
        if expected != through[file]:
            before, after = (each.decode(errors="replace").splitlines() for each in (expected, through[file]))
            names = f"{file} at the source", f"{file} through the server"
            shown = list(difflib.unified_diff(before, after, *names, n=2))
            yield "\n".join(shown[:SHOWN])


def main() -> None:
    """Compare, on the newest server."""
    parser = argparse.ArgumentParser(prog="python -m tests.sql_parity.regress", description=__doc__)
    parser.add_argument("files", nargs="*", default=FILES, metavar="FILE", help="the files to run")
    parser.add_argument("--direct", action="store_true", help="run both times at the source, which must not differ")
    parser.add_argument("--engine", default="spark", help="what computes the part below")
    parser.add_argument("--relay", action="store_true", help="run through a server that only relays")
    options = parser.parse_args()
    with regression(list(installs().values())[-1]) as made:
        made.again()
        direct, by_mirror = made.outputs(made.server.port, options.files), 0
        if options.direct:
            made.again()
            through = made.outputs(made.server.port, options.files)
        elif options.relay:
            through = through_relay(made, options.files)
        else:
            through, by_mirror = through_server(made, options.files, options.engine)
    found = list(differences(direct, through))
    sys.stdout.writelines(f"{each}\n" for each in found)
    bytes_ = sum(map(len, direct.values()))
    report("sql-regress", {"files": len(direct), "bytes": bytes_, "by_mirror": by_mirror, "differences": len(found)})
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
