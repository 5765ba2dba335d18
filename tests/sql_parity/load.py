"""Statements while an application writes, by the mirror and by the source in one snapshot, in both isolation levels.

In REPEATABLE READ a session has its snapshot already: the statement runs at the source in the very transaction in which
the mirror answers it. In READ COMMITTED each statement has a snapshot of its own, and no other session can take it: so
either a second session holds the writers back with a lock, while all their traces stay as they are, or the statement is
one whose answer never changes, as the sum of all accounts between which money moves.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psycopg
from pyspark.sql import SparkSession

from harness.database import Database
from tests.differential.kinds import DECIMALS, Kind
from tests.differential.statements import Relation
from tests.differential.tables import Column
from tests.mirror.parity.following import commits_that_hang
from tests.mirror.parity.run import ACCOUNT, BURST, MONEY, TABLES, WRITERS, parity
from tests.pipeline.sync.load import ACCOUNTS, writing
from tests.sql_parity.comparison import Findings, Statement, compare
from tests.sql_parity.inside import Inside
from tests.sql_parity.lakes import Place, Routes, connected, database_at
from tests.sql_parity.routes import Route, SessionRoute
from tests.sql_parity.worlds import SMALL, tame

LEVELS = ("read committed", "repeatable read")
TEXTS = tame("text", "v1", "v2", "new", "back", "v100.")
MOMENTS = tame("timestamptz", "2024-01-01 12:00:00+00", "2024-01-03 00:00:00+00")
COLUMNS: tuple[tuple[str, Kind], ...] = (
    ("n", SMALL),
    ("q", DECIMALS[7]),
    ("v", TEXTS),
    ("large", TEXTS),
    ("moment", MOMENTS),
)
CONSTANT = (
    (f"select sum(n) from {ACCOUNT} where id <= {ACCOUNTS}", MONEY),
    (f"select count(*) from {ACCOUNT} where id between 1 and {ACCOUNTS}", ACCOUNTS),
    (f"select sum(a.n) from {ACCOUNT} a join {ACCOUNT} b on a.id = b.id where a.id <= {ACCOUNTS}", MONEY),
)
LOCK_S = 60


@dataclass
class Under:
    """Sessions that answer while writers write."""

    database: Database
    source: psycopg.Connection[Any]
    route: Route
    chance: Random
    findings: Findings = field(default_factory=Findings)

    def block(self, level: str, statements: Sequence[Statement], again: str) -> None:
        """A transaction of one level with some statements."""
        if level == "repeatable read":
            self._repeatable(statements, again)
            return
        with self._stopped() as source:
            self._in_block(level, statements, again, source)
        for sql, value in CONSTANT:
            self._constant(sql, value, again)

    def _repeatable(self, statements: Sequence[Statement], again: str) -> None:
        """The mirror's session exports its snapshot, and the source's imports it."""
        self.route.run("begin isolation level repeatable read")
        try:
            self.route.run(f"lock table {', '.join(TABLES)} in access share mode")  # nothing is truncated from here on
            (snapshot,) = self.route.run("select pg_export_snapshot()").rows[0]
            assert snapshot is not None
            with self.source.transaction():
                self.source.execute("set transaction isolation level repeatable read")
                self.source.execute(b"set transaction snapshot '" + snapshot + b"'")
                for at, statement in enumerate(statements):
                    self._one(statement, SessionRoute(self.source), f"{again}, repeatable read, statement {at}")
        finally:
            self.route.run("rollback")

    def _in_block(self, level: str, statements: Sequence[Statement], again: str, source: Route) -> None:
        self.route.run(f"begin isolation level {level}")
        try:
            for at, statement in enumerate(statements):
                self._one(statement, source, f"{again}, {level}, statement {at}")
        finally:
            self.route.run("rollback")

    def _one(self, statement: Statement, source: Route, again: str) -> None:
        compare(statement, source, self.route, again, self.findings)

    def _constant(self, sql: str, value: int, again: str) -> None:
        """A statement with the same answer in every snapshot, while nothing is held back."""
        found = self.route.run(sql)
        self.findings.statements += 1
        self.findings.by_mirror += found.by_mirror
        if found.passed:
            self.findings.reasons[found.reason] += 1
        elif found.error or found.rows != ((str(value).encode(),),):
            self.findings.differences.append(f"{again}: {sql} is {found} and not {value}")

    @contextmanager
    def _stopped(self) -> Iterator[Route]:
        """A session at the source, while all writers wait for its lock."""
        while not self._locked():
            self.source.execute("rollback")
        try:
            yield SessionRoute(self.source)
        finally:
            self.source.execute("rollback")

    def _locked(self) -> bool:
        """Begin a transaction with the lock; False after a deadlock with a writer."""
        self.source.execute(f"begin; set local lock_timeout = '{LOCK_S}s'".encode())
        try:
            self.source.execute(f"lock table {', '.join(TABLES)} in share mode".encode())
        except psycopg.errors.DeadlockDetected:
            return False
        return True


def compare_under_load(place: Place, spark: SparkSession, count: int, seed: int, routes: Routes) -> Findings:
    """So many statements in blocks of both levels, between bursts and during them."""
    relations = [Relation(table, tuple(Column(name, kind) for name, kind in COLUMNS)) for table in TABLES]
    chance = Random(seed)  # noqa: S311 - to be repeated
    author = Inside(chance, relations)
    with (
        tempfile.TemporaryDirectory() as folder,
        database_at(place) as database,
        parity(database, Path(folder), spark) as run,
        routes(database, run.mirror.options.lake) as opened,
        connected(database) as source,
    ):
        under = Under(database, source, opened(), chance)
        bursts = 0
        while under.findings.statements < count:
            bursts += 1
            run.mirror.require_well()
            with (
                writing(database, *TABLES[1:], writers=len(WRITERS), seed=bursts, manners=WRITERS),
                commits_that_hang(database.server),
            ):
                for number in range(BURST):
                    statements = [author.statement() for _ in range(chance.choice((1, 2, 4)))]
                    under.block(LEVELS[number % 2], statements, f"seed {seed}, burst {bursts}, block {number}")
        return under.findings
