"""Statements in PostgreSQL's dialect have the same answers at the source and by the mirror, byte for byte.

`make sql-parity` asks for thousands. Here are few of them, on a lake that Spark reads; `test_reference` has more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.database import Database, create_database
from harness.postgres import Server, installs
from tests.conftest import INTERPRETED, NEWEST
from tests.differential.story import told
from tests.differential.tables import CHANGED
from tests.mirror.conftest import set_in
from tests.sql_parity.cases import PROVEN
from tests.sql_parity.comparison import Findings, Statement, compare
from tests.sql_parity.lakes import Place, source_session
from tests.sql_parity.load import compare_under_load
from tests.sql_parity.openers import routes_of
from tests.sql_parity.randoms import Run, compare_random
from tests.sql_parity.routes import Route
from tests.sql_parity.tpc import compare_benchmark, places
from tests.sql_parity.worlds import world

pytestmark = [pytest.mark.full, pytest.mark.spark]

FEW = Run(seed=7, each=15, phases=(CHANGED,), kinds=())


@dataclass
class Lake:
    """A lake of the tame tables, and sessions of both sides."""

    database: Database
    folder: Path
    spark: SparkSession
    source: Route
    route: Route
    run: Run
    statements: list[Statement]


@pytest.fixture(scope="module")
def lake(server: Server, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder: Path = tmp_path_factory.mktemp("lake")
    database = create_database(server)
    inventory = world(FEW.seed, FEW.kinds)
    with (
        set_in(spark, {**INTERPRETED, "spark.sql.shuffle.partitions": "1"}),
        closing(told(database, folder, spark, inventory.tables, FEW.phases)) as phases,  # type: ignore[type-var]
    ):
        phase = next(phases)
        statements = list(islice(FEW.statements(phase.name, phase.relations, folds=False), FEW.each))
        routes = routes_of("split", spark, "spark")
        with routes(database, folder / "lake") as opened, source_session(database) as source:
            yield Lake(database, folder / "lake", spark, source, opened(), FEW, statements)
    database.drop()


@NEWEST
def test_random_statements_of_the_grammar_have_the_same_answers(lake: Lake) -> None:
    findings = Findings()
    for number, statement in enumerate(lake.statements):
        compare(statement, lake.source, lake.route, lake.run.again(CHANGED, number), findings)
    assert not findings.differences, str(findings)
    assert findings.by_mirror > len(lake.statements) / 2, str(findings)


@NEWEST
def test_random_statements_have_the_same_answers_through_the_server(lake: Lake) -> None:
    findings = Findings()
    with routes_of("server", lake.spark, "duckdb")(lake.database, lake.folder) as opened:
        route = opened()
        for number, statement in enumerate(lake.statements):
            compare(statement, lake.source, route, lake.run.again(CHANGED, number), findings)
    assert not findings.differences, str(findings)
    assert findings.by_mirror > len(lake.statements) / 2, str(findings)


@NEWEST
def test_the_mirror_answers_each_construct_as_postgresql_does(lake: Lake) -> None:
    findings = Findings()
    for sql in PROVEN:
        compare(Statement(sql), lake.source, lake.route, "", findings)
    assert not findings.differences, str(findings)
    assert findings.by_mirror == len(PROVEN), str(findings)


@NEWEST
@pytest.mark.full
def test_thousands_of_statements_have_the_same_answers(server: Server, spark: SparkSession) -> None:
    routes = routes_of("split", spark, "spark")
    for outside in (False, True):
        findings = compare_random(server, spark, Run(2, 100, outside), routes)
        assert not findings.differences, str(findings)


@pytest.mark.full
def test_the_mirror_answers_all_of_tpc_h(spark: SparkSession) -> None:
    for place in places():
        findings = compare_benchmark("tpch", place, routes_of("split", spark, "spark"), spark)
        assert not findings.differences, str(findings)
        assert findings.by_mirror == findings.statements == 22, str(findings)


@pytest.mark.full
def test_the_mirror_answers_forty_of_tpc_ds(spark: SparkSession) -> None:
    place = Place(installs()[max(installs())])
    findings = compare_benchmark("tpcds", place, routes_of("split", spark, "spark"), spark)
    assert not findings.differences, str(findings)
    assert findings.by_mirror >= 40, str(findings)


@pytest.mark.full
def test_under_load_statements_of_both_levels_have_the_same_answers(spark: SparkSession) -> None:
    place = Place(installs()[max(installs())])
    findings = compare_under_load(place, spark, 100, 3, routes_of("split", spark, "spark"))
    assert not findings.differences, str(findings)
    assert findings.by_mirror > 50, str(findings)
