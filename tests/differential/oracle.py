"""The answers of PostgreSQL and of the mirror to one statement, as PostgreSQL prints them, and where they differ."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from harness.printed import printed
from tests.differential.kinds import Sql
from tests.differential.statements import Form, Statement
from tidemark.errors import TidemarkError
from tidemark.mirror.moment import Moment
from tidemark.values.cells import DecodedColumn

SETTINGS = "set datestyle = 'ISO'; set timezone = 'UTC'; set intervalstyle = 'postgres'; set bytea_output = 'hex'"
NO_ROOM = "cannot hold: "
SHOWN = 5
Row = tuple[str | None, ...]
_PLAIN_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_NEGATIVE_ZERO = re.compile(r"(?<![^{,])-0(?![^,}])")


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of an answer, or the error that it is."""

    rows: tuple[Row, ...] = ()
    error: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.error)


@dataclass(frozen=True, slots=True)
class Difference:
    """A statement, and two answers that are not the same."""

    statement: Statement
    postgres: Answer
    mirror: Answer

    @property
    def is_refusal(self) -> bool:
        """Whether the mirror refuses a value that has only its text, in a column that the statement asks for.

        A condition on the text leaves such rows out, but Spark SQL promises no order in which it evaluates the two.
        """
        return NO_ROOM in self.mirror.error and "~text`" in self.statement.sql.spark

    def like(self, other: Difference | None) -> bool:
        """Whether another one is of the same sort: rows that differ, or the same error."""
        return other is not None and self.mirror.error[:60] == other.mirror.error[:60]

    def __str__(self) -> str:
        if self.mirror.failed:
            return f"  PostgreSQL: {_some(self.postgres.rows)}\n  mirror: error: {self.mirror.error[:1500]}"
        expected, found = Counter(self.postgres.rows), Counter(self.mirror.rows)
        missing, extra = list((expected - found).elements()), list((found - expected).elements())
        told = f"  PostgreSQL: {len(self.postgres.rows)} rows; mirror: {len(self.mirror.rows)} rows\n"
        if not missing and not extra:
            return f"{told}  in another order: {_some(self.postgres.rows)} and {_some(self.mirror.rows)}"
        return f"{told}  only in PostgreSQL: {_some(missing)}\n  only in the mirror: {_some(extra)}"


class Oracle:
    """Both sides at one boundary. PostgreSQL must not change meanwhile."""

    def __init__(self, connection: psycopg.Connection[Any], moment: Moment) -> None:
        self._connection, self._moment = connection, moment
        self._lock = threading.Lock()

    def difference(self, statement: Statement) -> Difference | None:
        """Ask both sides; statements that PostgreSQL refuses are errors of the generator."""
        sql = statement.sql
        postgres = self._by_postgres(statement, sql)
        mirror = self._by_mirror(statement, sql)
        return None if postgres == mirror else Difference(statement, postgres, mirror)

    def differences(self, statements: Sequence[Statement]) -> list[Difference]:
        """Ask for several filters in one query of both sides; what differs is asked for again alone."""
        together = _together(statements)
        if self.difference(together) is None:
            return []
        found = (self.difference(statement) for statement in statements)
        return [each for each in found if each is not None] or [
            Difference(together, self._by_postgres(together, together.sql), self._by_mirror(together, together.sql))
        ]

    def _by_postgres(self, statement: Statement, sql: Sql) -> Answer:
        with self._lock:
            cursor = self._connection.execute(sql.postgres.encode())
            result = cursor.pgresult
            assert result is not None
            columns = range(result.nfields)
            rows = [[result.get_value(row, column) for column in columns] for row in range(result.ntuples)]
        return _answer(statement, [[None if cell is None else cell.decode() for cell in row] for row in rows])

    def _by_mirror(self, statement: Statement, sql: Sql) -> Answer:
        try:
            table = self._moment.sql(sql.spark).toArrow()
        except (PySparkException, Py4JJavaError, TidemarkError) as error:
            return Answer(error=f"{type(error).__name__}: {error}")
        columns = [printed(DecodedColumn(column.combine_chunks(), None)) for column in table.columns]
        return _answer(statement, [list(row) for row in zip(*columns, strict=True)])


def _answer(statement: Statement, rows: list[list[str | None]]) -> Answer:
    for row in rows:
        for at, form in enumerate(statement.forms):
            row[at] = _canonical(row[at], form)
    made = [tuple(row) for row in rows]
    return Answer(
        tuple(made if statement.ordered else sorted(made, key=lambda row: [(c is None, c or "") for c in row]))
    )


def _canonical(text: str | None, form: Form) -> str | None:
    if text is None or form is Form.PRINTED:
        return text
    if form is Form.NUMBERS:
        return _NEGATIVE_ZERO.sub("0", text)
    if not _PLAIN_NUMBER.fullmatch(text):
        return text
    plain = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if plain in {"-0", ""} else plain


def _together(statements: Sequence[Statement]) -> Statement:
    """Filters as one query, in which each has its number."""
    parts = [
        Sql.of(f"select {number} as n, x.id from ({{}}) x", statement.sql)
        for number, statement in enumerate(statements)
    ]
    whole = Sql(" union all ".join(p.spark for p in parts), " union all ".join(p.postgres for p in parts))
    tables = tuple({table for statement in statements for table in statement.tables})
    first = statements[0]
    return Statement("filters", tables, first.predicate, lambda _: whole, (Form.PRINTED,) * 2)


def _some(rows: Sequence[Row]) -> str:
    more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    return f"{list(rows[:SHOWN])}{more}"
