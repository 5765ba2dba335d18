"""Split statements have the same answers as whole ones, if PostgreSQL computes the parts below: so the split is right.

No Spark and no lake is needed, so there is time for many statements; `test_sql_parity` does the same on a lake.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest

from harness.database import create_database
from harness.postgres import Server
from tests.conftest import installs_from
from tests.differential.tables import CHANGED, COPIED
from tests.sql_parity.cases import PASSED, PROVEN, TABLES
from tests.sql_parity.comparison import Findings, Statement, compare
from tests.sql_parity.lakes import source_session
from tests.sql_parity.openers import by_reference
from tests.sql_parity.outside import OBJECTS
from tests.sql_parity.randoms import Run, compare_random
from tests.sql_parity.routes import Route
from tests.sql_parity.worlds import world

pytestmark = pytest.mark.quick

install = installs_from(0)

INSIDE, OUTSIDE = 60, 40


@dataclass
class Tables:
    """A database with the tame tables, and a session of each side."""

    source: Route
    route: Route

    def compare(self, statement: Statement) -> Findings:
        """Compare the answers to one statement."""
        findings = Findings()
        compare(statement, self.source, self.route, "", findings)
        assert not findings.differences, str(findings)
        return findings


@pytest.fixture(scope="module")
def tables(server: Server) -> Iterator[Tables]:
    database = create_database(server)
    made = world(1, kinds=()).tables
    database.run(*(table.definition for table in made), *("; ".join(table.changes(COPIED)) for table in made[:-1]))
    database.run(*OBJECTS, *TABLES)
    with by_reference(database, Path()) as opened, source_session(database) as source:
        yield Tables(source, opened())
    database.drop()


@pytest.mark.parametrize("sql", PROVEN)
def test_each_construct_is_split(tables: Tables, sql: str) -> None:
    findings = tables.compare(Statement(sql))
    assert findings.by_mirror, findings.reasons


@pytest.mark.parametrize(("setting", "sql"), PASSED)
def test_what_means_something_else_is_not_answered_otherwise(tables: Tables, setting: str, sql: str) -> None:
    tables.compare(Statement(sql, settings=(setting,)))


@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
def test_random_statements_have_the_same_answers(tables: Tables, outside: bool) -> None:
    run = Run(seed=7, each=OUTSIDE if outside else INSIDE, outside=outside, kinds=())
    sum_of, relations = Findings(), world(1, kinds=()).relations(COPIED)
    for number, statement in enumerate(islice(run.statements(COPIED, relations, folds=False), run.each)):
        compare(statement, tables.source, tables.route, run.again(COPIED, number), sum_of)
    assert not sum_of.differences, str(sum_of)
    assert outside or sum_of.by_mirror > INSIDE / 2, str(sum_of)


@pytest.mark.full
@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
def test_thousands_of_random_statements_have_the_same_answers(server: Server, outside: bool) -> None:
    sum_of = Findings()
    for seed in range(3):
        sum_of.add(compare_random(server, None, Run(seed, 500, outside, (COPIED, CHANGED)), by_reference))
    assert not sum_of.differences, str(sum_of)
