"""Every row of docs/reference/spark-dialect.md, on PostgreSQL and on Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from harness.database import Database, create_database
from harness.lake import following, lakeside
from harness.postgres import Install, Server, installs
from tidemark.errors import InvalidValue
from tidemark.mirror.moment import Moment

pytestmark = pytest.mark.quick

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/spark-dialect.md").read_text()
ROW = re.compile(r"^\| ([^|]+) \| `(.+?)` \| `(.+?)` \| (`.+?`|error) \| (?:`(.+?)` )?\|$", re.MULTILINE)


@pytest.fixture(scope="session", params=list(installs().values())[-1:], ids=lambda each: f"pg{each.major}")
def install(request: pytest.FixtureRequest) -> Install:
    assert isinstance(request.param, Install)
    return request.param


@pytest.fixture(scope="module")
def example(
    server: Server, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Database, Moment]]:
    database = create_database(server)
    kind, table, insert = _statements()
    database.run(kind, table)
    with following(lakeside(database, tmp_path_factory.mktemp("dialect"), spark, "example")) as side:
        database.run(insert)
        side.apply_all()
        with side.open() as mirror, mirror.at() as moment:
            yield database, moment
    database.drop()


def _statements() -> list[str]:
    (block,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    return [each.strip() for each in block.split(";\n") if each.strip()]


def _shown(value: Any) -> str:
    """A value as the page shows it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


@pytest.mark.full
def test_every_row_of_the_page_holds_on_postgresql_and_on_spark(example: tuple[Database, Moment]) -> None:
    database, moment = example
    rows = ROW.findall(PAGE)
    assert len(rows) == PAGE.split("## Values")[0].count("\n| ") - 1, "a row of the table has another form"
    wrong = []
    for subject, expression, by_postgres, by_spark, instead in rows:
        ((there,),) = database.run(f"select {expression} from example")
        found = _spark(moment, expression)
        if (_shown(there), found) != (by_postgres, by_spark.strip("`")):
            wrong.append((subject, _shown(there), found))
        if instead and _spark(moment, instead) != _shown(there):
            wrong.append((subject, instead, _spark(moment, instead)))
    assert not wrong


def _spark(moment: Moment, expression: str) -> str:
    try:
        return _shown(moment.sql(f"select {expression} from example").collect()[0][0])
    except (InvalidValue, PySparkException):
        return "error"


def test_text_is_compared_by_its_bytes_or_by_the_rules_of_unicode(example: tuple[Database, Moment]) -> None:
    database, moment = example
    assert database.run("select name < 'F' collate \"C\", 'B' < 'a' collate \"C\" from example") == [(False, True)]
    plain, unicode = "name < 'F', 'B' < 'a'", "name collate UNICODE < 'F', 'B' collate UNICODE < 'a'"
    assert [tuple(row) for row in moment.sql(f"select {plain} from example").collect()] == [(False, True)]
    assert [tuple(row) for row in moment.sql(f"select {unicode} from example").collect()] == [(True, False)]
