"""Statements in PostgreSQL's dialect on a lake: Spark computes what is below, and the result is PostgreSQL's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from harness.database import Database, create_database
from harness.lake import following, lakeside
from harness.postgres import Server
from tests.conftest import installs_from
from tests.split.corpus import ANSWERED, ROWS, TABLES
from tidemark.errors import EngineRefused, Unproven
from tidemark.mirror.dialect import Parameter, answer
from tidemark.mirror.moment import Moment

pytestmark = pytest.mark.quick
install = installs_from(0)
World = tuple[Database, Moment, psycopg.Connection[Any]]


@pytest.fixture(scope="module")
def world(server: Server, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    database = create_database(server)
    database.run(*TABLES)
    folder = tmp_path_factory.mktemp("dialect")
    with following(lakeside(database, folder, spark, "items", "parts", "empty")) as side:
        database.run(*ROWS)
        side.apply_all()
        with side.open() as mirror, mirror.at() as moment, database.connect() as connection:
            connection.autocommit = True
            yield database, moment, connection
    database.drop()


@pytest.mark.parametrize("statement", ANSWERED)
def test_spark_and_postgresql_answer_together_as_postgresql_does(world: World, statement: str) -> None:
    _, moment, connection = world
    found = answer(statement, (), moment, connection)
    result = connection.pgconn.exec_params(statement.encode(), [])
    rows = [tuple(result.get_value(row, at) for at in range(result.nfields)) for row in range(result.ntuples)]
    assert found.rows == rows


def test_parameters_are_evaluated_by_the_session(world: World) -> None:
    _, moment, connection = world
    statement = "select count(*), $2 || 'b' from items where id < $1 and v = any($3)"
    parameters = [Parameter(23, b"50"), Parameter(25, b"a"), Parameter(1015, b"{v1,v2}")]
    assert answer(statement, parameters, moment, connection).rows == [(b"14", b"ab")]


def test_what_spark_cannot_compute_is_refused(world: World) -> None:
    _, moment, connection = world
    with pytest.raises(EngineRefused, match="OVERFLOW"):
        answer("select sum(id * 1000000000) from items", (), moment, connection)
    with pytest.raises(Unproven, match="volatile"):
        answer("select random() from items", (), moment, connection)
