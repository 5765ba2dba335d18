"""A difference made small: a simpler condition in the same lake, then fewer rows in lakes of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
from pyspark.sql import SparkSession

from harness.database import create_database
from harness.postgres import Server
from tests.differential.oracle import SETTINGS, Difference, Oracle
from tests.differential.statements import ALL
from tests.differential.story import Ids, told
from tests.differential.tables import FIRST, PHASES, Table

CONDITIONS, LAKES = 80, 12
ROWS_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Found:
    """A difference, where it was found, and the rows that are enough for it."""

    difference: Difference
    seed: int
    phase: str
    tables: tuple[Table, ...]
    ids: Ids

    def __str__(self) -> str:
        sql = self.difference.statement.sql
        lines = [f"difference (seed {self.seed}, phase '{self.phase}', {self.difference.statement.kind})"]
        lines += [f"  Spark SQL:  {_short(sql.spark)}", f"  PostgreSQL: {_short(sql.postgres)}", str(self.difference)]
        for table in self.tables:
            lines.append(f"  {table.definition};")
            for phase in PHASES[: PHASES.index(self.phase) + 1]:
                changes = list(table.changes(phase, self.ids.get(table.name)))
                lines += [f"    {phase}: {_short(change)};" for change in changes[:ROWS_SHOWN]]
                lines += [f"    {phase}: … {len(changes) - ROWS_SHOWN} more"] if len(changes) > ROWS_SHOWN else []
        return "\n".join(lines)


def simplified(oracle: Oracle, difference: Difference) -> Difference:
    """The simplest condition that was found under which the answers differ in the same way."""
    attempts, simpler = 0, True
    while simpler and attempts < CONDITIONS:
        simpler = False
        for predicate in (ALL, *difference.statement.predicate.simpler()):
            if predicate == difference.statement.predicate:
                continue
            attempts += 1
            try:
                found = oracle.difference(difference.statement.with_predicate(predicate))
            except psycopg.Error:
                continue
            if found is not None and difference.like(found):
                difference, simpler = found, True
                break
    return difference


def with_fewer_rows(server: Server, spark: SparkSession, found: Found) -> Found:
    """The same in a lake with the tables of the statement alone, and with as few rows as some attempts lead to."""
    names = found.difference.statement.tables
    tables = tuple(table for table in found.tables if table.name in names)
    again = _told_again(server, spark, found, tables, {})
    if again is None:
        return found
    smallest = Found(again, found.seed, found.phase, tables, {})
    for table in tables:
        smallest = _with_fewer(smallest, table, lambda ids: _told_again(server, spark, found, tables, ids))
    return smallest


def _with_fewer(found: Found, table: Table, again: Callable[[Ids], Difference | None]) -> Found:
    """Leave out ever smaller parts of the rows while the answers differ."""
    left = sorted(table.ids() - {FIRST})
    parts = 2
    for _ in range(LAKES):
        size = -(-len(left) // parts)
        if not left:
            break
        for at in range(0, len(left), size):
            fewer = left[:at] + left[at + size :]
            ids = {**found.ids, table.name: frozenset({FIRST, *fewer})}
            difference = again(ids)
            if difference is not None:
                found, left, parts = (
                    Found(difference, found.seed, found.phase, found.tables, ids),
                    fewer,
                    max(2, parts - 1),
                )
                break
        else:
            if size == 1:
                break
            parts *= 2
    return found


def _told_again(
    server: Server, spark: SparkSession, found: Found, tables: Sequence[Table], ids: Ids
) -> Difference | None:
    database = create_database(server)
    try:
        with tempfile.TemporaryDirectory() as folder, database.connect() as connection:
            connection.autocommit = True
            connection.execute(SETTINGS.encode())
            with closing(told(database, Path(folder), spark, tables, (found.phase,), ids)) as phases:  # type: ignore[type-var]
                difference = Oracle(connection, next(phases).moment).difference(found.difference.statement)
                return difference if difference is not None and found.difference.like(difference) else None
    except psycopg.Error:
        return None
    finally:
        database.drop()


def _short(text: str, most: int = 1500) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"
