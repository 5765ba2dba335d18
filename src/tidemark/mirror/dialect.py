"""Statements in PostgreSQL's dialect: split, computed by an engine at a moment, finished in a session.

`answer` drives the steps of `tidemark.split` over a connection of psycopg. It compares the result columns with those
that PostgreSQL describes for the original statement, and has PostgreSQL check the rights by EXPLAIN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import psycopg
import pyarrow as pa
from psycopg.pq import ExecStatus, Format
from pyspark.sql import DataFrame, SparkSession

from tidemark.engines import Engine
from tidemark.engines.arrays import array_parameters
from tidemark.engines.duckdb import LocalDatabase, LocalEngine
from tidemark.engines.spark import SparkEngine
from tidemark.errors import InvalidValue, Unproven
from tidemark.reads.local import LocalRows
from tidemark.split import Finish, Query, Run, SessionFacts, parse, steps
from tidemark.values.cells import DecodedColumn, cells_of
from tidemark.values.output import column_strings
from tidemark.values.types import Types, decoding_of

Connection: TypeAlias = psycopg.Connection[Any]
Row = tuple[bytes | None, ...]


class MomentTables(Protocol):
    """A moment: the tables that engines read."""

    @property
    def spark(self) -> SparkSession:
        """The Spark session."""

    def defined_table(
        self, oid: int, name: str, columns: AbstractSet[tuple[int, str, int, int]]
    ) -> tuple[DataFrame, Mapping[int, str]]:
        """Return a table, and its columns' names by attnum; raise Unproven if it has other columns."""

    def defined_rows(self, oid: int, name: str, columns: AbstractSet[tuple[int, str, int, int]]) -> LocalRows:
        """Return the same rows for the local engine."""


MakeEngine = Callable[[MomentTables, SessionFacts], Engine]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a statement: the OID of its type, and its value in PostgreSQL's text format, None for NULL."""

    oid: int
    value: bytes | None


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a result, as RowDescription has it."""

    name: str
    type: int
    typmod: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A result: its columns, and its rows in PostgreSQL's text format."""

    columns: tuple[ResultColumn, ...]
    rows: list[Row]


def spark_engine(moment: MomentTables, facts: SessionFacts) -> Engine:
    """Return Spark with the tables of a moment, which must be defined there as the session sees them."""
    relations = {each.oid: each for each in facts.relations.values() if each is not None}

    def table(oid: int) -> tuple[DataFrame, Mapping[int, str]]:
        columns = {(each.attnum, each.name, each.type, each.typmod) for each in relations[oid].columns}
        return moment.defined_table(oid, relations[oid].name, columns)

    return SparkEngine(moment.spark, table)


def local_engine(database: LocalDatabase) -> MakeEngine:
    """Return how the local engine of a lake is made with the tables of a moment."""

    def made(moment: MomentTables, facts: SessionFacts) -> Engine:
        relations = {each.oid: each for each in facts.relations.values() if each is not None}

        def rows(oid: int) -> LocalRows:
            columns = {(each.attnum, each.name, each.type, each.typmod) for each in relations[oid].columns}
            return moment.defined_rows(oid, relations[oid].name, columns)

        return LocalEngine(database, rows)

    return made


def answer(
    statement: str,
    parameters: Sequence[Parameter],
    moment: MomentTables,
    session: Connection,
    engine: MakeEngine = spark_engine,
) -> Answered:
    """Return the result of a statement at a moment; raise Unproven if it cannot be split.

    `session` is a connection to the source, at whose settings the statement is finished; a transaction in which all
    steps see the same tables is the caller's. An error that PostgreSQL reports is InvalidValue.
    """
    return _Answering(statement, parameters, moment, session, engine).run()


class _Answering:
    def __init__(
        self,
        statement: str,
        parameters: Sequence[Parameter],
        moment: MomentTables,
        session: Connection,
        engine: MakeEngine,
    ) -> None:
        self._statement, self._parameters, self._moment, self._session = statement, parameters, moment, session
        self._make_engine = engine
        self._arrays: dict[int, list[bytes]] = {}  # by the number of a part's first parameter

    def run(self) -> Answered:
        parsed = parse(self._statement)
        described = self._described()
        self._execute(f"EXPLAIN {self._statement}", self._parameters)
        answering = steps(parsed)
        step = next(answering)
        while not isinstance(step, Finish):
            if isinstance(step, Run):
                self._compute(step)
            step = answering.send(self._query(step) if isinstance(step, Query) else None)
        result = self._execute(step.plan.top, [*self._parameters, *self._array_parameters(step.plan.parts)])
        columns = _columns(result)
        if columns != described:
            raise Unproven("the result would have other columns than PostgreSQL's")
        rows = [tuple(result.get_value(at, column) for column in range(result.nfields)) for at in range(result.ntuples)]
        return Answered(columns, rows)

    def _described(self) -> tuple[ResultColumn, ...]:
        connection = self._session.pgconn
        oids = [each.oid for each in self._parameters]
        prepared = connection.prepare(b"", self._statement.encode(), oids)
        _require_no_error(prepared)
        result = connection.describe_prepared(b"")
        _require_no_error(result)
        return _columns(result)

    def _query(self, query: Query) -> str:
        parameters = [*self._parameters, *self._array_parameters(query.parts)] if query.parameters else []
        value: bytes | None = self._execute(query.sql, parameters).get_value(0, 0)
        if value is None:
            raise Unproven("the session returned no value")
        return value.decode()

    def _compute(self, run: Run) -> None:
        engine = self._make_engine(self._moment, run.facts)
        for part in run.parts:
            self._arrays[part.first] = array_parameters(part, engine.run(part.bottom))

    def _array_parameters(self, parts: Sequence[Any]) -> list[Parameter]:
        return [
            Parameter(output.array_oid, array)
            for part in parts
            for output, array in zip(part.outputs, self._arrays[part.first], strict=True)
        ]

    def _execute(self, sql: str, parameters: Sequence[Parameter]) -> Any:
        values, oids = [each.value for each in parameters], [each.oid for each in parameters]
        result = self._session.pgconn.exec_params(sql.encode(), values, oids, None, Format.TEXT)
        _require_no_error(result)
        return result


def _require_no_error(result: Any) -> None:
    if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        message = result.error_message.decode(errors="replace").strip()
        raise InvalidValue(f"PostgreSQL rejected the statement: {message}", "Correct the statement.")


def _columns(result: Any) -> tuple[ResultColumn, ...]:
    return tuple(
        ResultColumn(result.fname(at).decode(), result.ftype(at), result.fmod(at)) for at in range(result.nfields)
    )


def result_frame(answered: Answered, spark: SparkSession) -> DataFrame:
    """Return a result as a DataFrame; a column with a value that Spark's type cannot hold has PostgreSQL's text."""
    arrays = [_decoded([row[at] for row in answered.rows], column) for at, column in enumerate(answered.columns)]
    names = [f"c{at}" for at in range(len(arrays))]
    return spark.createDataFrame(pa.table(arrays, names=names)).toDF(*(each.name for each in answered.columns))


def _decoded(values: list[bytes | None], column: ResultColumn) -> pa.Array:
    found: DecodedColumn = decoding_of(column.type, column.typmod, Types()).decode(cells_of(values), False)
    if found.fallback is not None and found.fallback.null_count < len(found.fallback):
        return column_strings(found)
    return found.array
