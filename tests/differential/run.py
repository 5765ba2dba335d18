"""`make sql-differential`: invented statements over invented tables, answered by PostgreSQL and by the mirror.

Each world is a database of tables with every type (`kinds`, `tables`), taken through phases (`story`). In each phase
statements (`statements`) run on PostgreSQL and on the mirror at one boundary, and their answers are compared
(`oracle`). A difference is made small (`shrink`) and printed with the seed of its world, and how to run that again.

Two threads run statements, since planning takes most of the time and one core. Ten filters run as one UNION ALL where
the plan of a table is a scan: each has a scan of its own, with its filter pushed to Parquet, for half the CPU time.
Where changes are laid over a scan, or with more filters at a time, this saves nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psycopg
from pyspark.sql import SparkSession

from harness.database import add_roles, create_database
from harness.postgres import Server, installs, start_server
from tests.differential.kinds import KINDS, Kind
from tests.differential.oracle import SETTINGS, Difference, Oracle
from tests.differential.shrink import Found, simplified, with_fewer_rows
from tests.differential.statements import Author, Statement
from tests.differential.story import Phase, told
from tests.differential.tables import ALTERED_FOLDED, COPIED, FOLDED, PHASES, Table, invent
from tidemark.pipeline.fold import layout
from tidemark.reads import places
from tidemark.reads.places import WORTH_ROWS
from tidemark.spark import SparkOptions, spark_session

STATEMENTS, WORLDS, THREADS, TOGETHER = 20_000, 8, 2, 10
ALONE_PER_CENT = 40  # of the statements, the same number in each phase; the others are filters that run together
SCANNED = (COPIED, FOLDED, ALTERED_FOLDED)  # phases in which a table is read by a scan and nothing else
BUCKET_BYTES = 20_000  # so that small tables have several files too
SHRUNK = 3
QUIET = {
    "spark.driver.memory": "3g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.files.minPartitionNum": "1",
}
# Plans that are run as they are cost less; plans that are compiled read Parquet by columns, and are what users have.
PLAIN = {"spark.sql.adaptive.enabled": "false", "spark.sql.codegen.wholeStage": "false"}
COMPILED = {"spark.sql.adaptive.enabled": "false", "spark.sql.codegen.wholeStage": "true"}


@dataclass
class Findings:
    """What a run has found so far."""

    statements: int = 0
    tables: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    rejected: list[str] = field(default_factory=list)
    differences: list[Found] = field(default_factory=list)

    def figures(self) -> dict[str, int]:
        return {
            "statements": self.statements,
            "differences": len(self.differences),
            "tables": self.tables,
            "phases": len(self.phases),
            "refused": self.refused,
        }


@dataclass(frozen=True)
class World:
    """One database, its lake, and how many statements run in each phase: alone, and as filters that run together."""

    seed: int
    alone: int
    together: int
    kinds: Sequence[Kind] = KINDS
    columns: int = 9
    most_rows: int = 250
    phases: Sequence[str] = PHASES

    def tables(self) -> list[Table]:
        return invent(Random(self.seed), self.kinds, self.columns, self.most_rows)  # noqa: S311 - to be repeated


def compare(server: Server, spark: SparkSession, world: World, findings: Findings) -> None:
    """Tell the story of a world, and ask in every phase."""
    tables = world.tables()
    findings.tables += len(tables)
    database = create_database(server)
    try:
        with tempfile.TemporaryDirectory() as folder, database.connect() as connection:
            connection.autocommit = True
            connection.execute(SETTINGS.encode())
            with closing(told(database, Path(folder), spark, tables, world.phases)) as phases:  # type: ignore[type-var]
                for phase in phases:
                    _compare(Oracle(connection, phase.moment), phase, world, tables, findings)
    finally:
        database.drop()


def _compare(oracle: Oracle, phase: Phase, world: World, tables: list[Table], findings: Findings) -> None:
    author, other = (
        Author(Random(f"{world.seed} {phase.name} {way}"), phase.relations)  # noqa: S311 - to be repeated
        for way in ("alone", "together")
    )
    together = world.together if phase.name in SCANNED else 0
    alone = [author.statement() for _ in range(world.alone)]
    filters = [other.filter() for _ in range(together)] + (other.edges() if together else [])
    lots = [filters[at : at + TOGETHER] for at in range(0, len(filters), TOGETHER)]
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda each: _asked(oracle, [each]), alone))
        found += list(pool.map(lambda lot: _asked(oracle, lot), lots))
    findings.phases[phase.name] += 1
    for differences, rejected in found:
        findings.rejected += rejected
        findings.refused += sum(difference.is_refusal for difference in differences)
        for difference in (each for each in differences if not each.is_refusal):
            smaller = simplified(oracle, difference)
            findings.differences.append(Found(smaller, world.seed, phase.name, tuple(tables), {}))
    findings.statements += len(alone) + len(filters) - sum(len(rejected) for _, rejected in found)
    findings.kinds.update(each.kind for each in alone + filters)
    _print(f"seed {world.seed}, {phase.name}: {findings.figures()}")


def _asked(oracle: Oracle, statements: list[Statement]) -> tuple[list[Difference], list[str]]:
    """The differences, and the statements that PostgreSQL rejects."""
    try:
        if len(statements) > 1:
            return oracle.differences(statements), []
        difference = oracle.difference(statements[0])
    except psycopg.Error as error:
        if len(statements) == 1:
            return [], [f"{error}: {statements[0].sql.postgres}"]
        each = [_asked(oracle, [statement]) for statement in statements]
        return [d for differences, _ in each for d in differences], [r for _, rejected in each for r in rejected]
    return [difference] if difference is not None else [], []


def set_in(spark: SparkSession, settings: dict[str, str]) -> None:
    for key, value in settings.items():
        spark.conf.set(key, value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--statements", type=int, default=STATEMENTS)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9), help="of the first world")
    parser.add_argument("--worlds", type=int, default=WORLDS, help="how many share the statements")
    options = parser.parse_args()
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:+UseSerialGC")  # G1 takes a tenth of the two cores
    spark = spark_session(SparkOptions(master="local[3]", conf=QUIET))
    spark.sparkContext.setLogLevel("OFF")
    layout.BUCKET_BYTES = BUCKET_BYTES
    server = start_server(list(installs().values())[-1])
    findings = Findings()
    each = -(-options.statements // options.worlds)
    alone = -(-each * ALONE_PER_CENT // (100 * len(PHASES)))
    together = -(-(each - alone * len(PHASES)) // len(SCANNED))
    again = f"STATEMENTS={each} ARGS='--worlds 1'"
    begin = time.monotonic()
    try:
        add_roles(server)
        for seed in range(options.seed, options.seed + options.worlds):
            set_in(spark, COMPILED if seed % 2 else PLAIN)
            places.WORTH_ROWS = 1 if seed // 2 % 2 else WORTH_ROWS
            known = len(findings.differences)
            compare(server, spark, World(seed, alone, together), findings)
            for number, found in enumerate(findings.differences[known:]):
                shrunk = with_fewer_rows(server, spark, found) if known + number < SHRUNK else found
                _print(f"{shrunk}\n  again: make sql-differential SEED={seed} {again}")
            _print(f"seed {seed}: {findings.figures()} after {time.monotonic() - begin:.0f} s")
    finally:
        server.remove()
        spark.stop()
    for rejected in findings.rejected[:5]:
        _print(f"PostgreSQL rejects: {rejected[:1000]}")
    _print(f"statements by kind: {dict(findings.kinds)}; rejected by PostgreSQL: {len(findings.rejected)}")
    _print(json.dumps({"bench": "sql-differential", "figures": findings.figures()}))
    sys.exit(1 if findings.differences or findings.rejected else 0)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
