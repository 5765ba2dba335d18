"""`make bench-replicate`: a table copied into another PostgreSQL and changes applied there, against other ways.

A table of 13 columns is copied first. Every way starts with an empty target and ends with the primary key. Alternately:
Tidemark's copy from the snapshot on, by threads of this process, as `tidemark clone` does without a Spark master, and
by Spark tasks; `psql` with binary COPY, piped into `psql`; `pg_dump -Fc` piped into `pg_restore`; and the initial copy
of a subscription with `binary = true`. The first turn is a warm-up.

`bench.following` describes how changes are applied. ROWS=, TRANSACTIONS=, BIG= and TURNS= make it smaller; ONLY=copy or
ONLY=follow runs one part.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from bench.backlog import SETTINGS
from bench.figures import report
from bench.following import follow_figures, lag_figures
from bench.lineitem import TABLE, VALUES
from harness.database import OWNER, Database, add_roles, create_database
from harness.postgres import Server, installs, start_server
from harness.recorder import TABLES, Recorder
from harness.standby import shared
from tidemark.postgres.catalog import read_catalog
from tidemark.schema.fingerprint import Fingerprint
from tidemark.spark import SparkOptions, spark_session
from tidemark.target.copying import TableFailed, copy_tables

ROWS = int(os.environ.get("ROWS", "3000000"))
TURNS = int(os.environ.get("TURNS", "5"))
ONLY = os.environ.get("ONLY")
JOBS, WARMING, REST_S = 4, 1, 1.0
DEFINITION = TABLE.replace(" primary key", " not null")
KEY = "alter table lineitem add primary key (id)"


def main() -> None:
    """Fill the source, and copy alternately."""
    spark = spark_session(SparkOptions(conf={"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}))
    spark.sparkContext.setLogLevel("ERROR")
    servers = [start_server(installs()[18], SETTINGS, own_identity=True) for _ in range(2)]
    for server in servers:
        add_roles(server)
    figures: dict[str, float] = {}
    if ONLY != "follow":
        figures |= copy_figures(spark, *servers)
    if ONLY != "copy":
        figures |= follow_figures(*servers) | lag_figures(*servers)
    report("replicate", figures)
    for server in servers:
        server.remove()
    spark.stop()


def copy_figures(spark: SparkSession, source: Server, target: Server) -> dict[str, float]:
    """The median seconds of each way, and Tidemark's over those of the others."""
    copies = Copies(create_database(source), create_database(target))
    copies.fill()
    ways: dict[str, Callable[[], object]] = {
        "copy": partial(copies.ours, None),
        "copy_by_tasks": partial(copies.ours, spark),
        "psql_binary": copies.psql_binary,
        "pg_dump_restore": copies.pg_dump_restore,
        "native_subscription": copies.native_subscription,
    }
    seconds = _by_turns(ways, copies)
    ours, by_tasks = seconds.pop("copy"), seconds.pop("copy_by_tasks")
    return {
        "rows": float(ROWS),
        "copy_s": ours,
        "copy_by_tasks_s": by_tasks,
        **{f"copy_over_{name}": ours / each for name, each in seconds.items()},
        **{f"{name}_s": each for name, each in seconds.items()},
    }


@dataclass(frozen=True)
class Copies:
    """The ways to copy the table from one database to the other."""

    source: Database
    target: Database

    def fill(self) -> None:
        """Write the rows at the source."""
        begin = time.monotonic()
        rows = f"insert into lineitem select {VALUES} from generate_series(1, {ROWS}) i"
        self.source.run(TABLE, rows, "vacuum analyze lineitem")
        self.source.admin("create publication every for table lineitem", "checkpoint")
        self.target.run(TABLES)
        print(f"{ROWS} rows written in {time.monotonic() - begin:.0f} s", flush=True)

    def empty(self) -> None:
        """Drop the table of the target."""
        self.target.admin("drop table if exists lineitem", "truncate tidemark.tables cascade", "checkpoint")

    def require_complete(self) -> None:
        """Check the number of rows, and that the table has its key."""
        keyed = "select from pg_constraint where conrelid = 'lineitem'::regclass and contype = 'p'"
        if not self.target.admin(keyed) or self.target.admin("select count(*) from lineitem") != [(ROWS,)]:
            raise SystemExit("the copy is not complete")

    def ours(self, spark: SparkSession | None) -> None:
        """Tidemark's copy, from the snapshot on, by threads or by Spark tasks."""
        self.target.run(DEFINITION)
        with shared(self.source) as (snapshot, session):
            tables = [Fingerprint.of(table, ()) for table in read_catalog(session).tables]
            for result in copy_tables(spark, snapshot, self.target.dsn(OWNER), tables, JOBS, Recorder()):
                if isinstance(result, TableFailed):
                    raise result.error
        self.target.run(KEY)

    def psql_binary(self) -> None:
        """Binary COPY from one psql to the other."""
        self.target.run(DEFINITION)
        command = "copy lineitem {} (format binary)"
        self._piped(
            ["psql", self._dsn(self.source), "--command", command.format("to stdout")],
            ["psql", self._dsn(self.target), "--quiet", "--command", command.format("from stdin")],
        )
        self.target.run(KEY)

    def pg_dump_restore(self) -> None:
        """pg_dump in custom format, piped into pg_restore."""
        self._piped(
            ["pg_dump", "--format=custom", "--table=lineitem", self._dsn(self.source)],
            ["pg_restore", "--no-privileges", f"--dbname={self._dsn(self.target)}"],
        )

    def native_subscription(self) -> None:
        """The initial copy of a subscription."""
        self.target.run(DEFINITION)
        connection = self.source.server.dsn(dbname=self.source.name)
        self.target.admin(
            f"create subscription copied connection '{connection}' publication every with (binary = true)"
        )
        try:
            while self.target.admin("select from pg_subscription_rel where srsubstate <> 'r'"):
                time.sleep(0.05)
            self.target.run(KEY)
        finally:
            self.target.admin("drop subscription copied")

    def _dsn(self, database: Database) -> str:
        return database.dsn(OWNER).reveal()

    def _piped(self, reading: list[str], writing: list[str]) -> None:
        program = self.target.server.install.program
        with subprocess.Popen([program(reading[0]), *reading[1:]], stdout=subprocess.PIPE) as reader:
            subprocess.run([program(writing[0]), *writing[1:]], stdin=reader.stdout, check=True)
        if reader.returncode:
            raise SystemExit(f"{reading[0]} ended with exit code {reader.returncode}")


def _by_turns(ways: Mapping[str, Callable[[], object]], copies: Copies) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-WARMING, TURNS):
        for name, way in ways.items():
            copies.empty()
            time.sleep(REST_S)
            begin = time.monotonic()
            way()
            taken[name].append(time.monotonic() - begin)
            copies.require_complete()
        line = ", ".join(f"{name} {seconds[-1]:.2f} s" for name, seconds in taken.items())
        print(f"  {line}" + (" (warm-up)" if turn < 0 else ""), flush=True)
    return {name: statistics.median(seconds[WARMING:]) for name, seconds in taken.items()}


if __name__ == "__main__":
    main()
