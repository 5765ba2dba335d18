"""A clone by polls is the content of one snapshot of its source after every poll, whatever was done to the source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from harness.database import Database, create_database
from harness.postgres import Server
from tests.conftest import NEWEST
from tests.target.load import contents, database_with_tables, hostile
from tests.target.polled import copied, options_of, poller_of
from tidemark.target.clone import Clone, CloneOptions
from tidemark.target.state import Phase

pytestmark = [pytest.mark.quick, NEWEST]


@pytest.fixture
def source(server: Server) -> Iterator[Database]:
    for database in database_with_tables(server):
        change(database, Random(1), 100)  # noqa: S311 - to be repeated
        yield database


@pytest.fixture
def target(server: Server) -> Iterator[Database]:
    database = create_database(server)
    yield database
    database.drop()


@pytest.fixture
def options(source: Database, target: Database, tmp_path: Path) -> CloneOptions:
    return options_of(source, target, tmp_path)


def change(database: Database, chance: Random, transactions: int) -> None:
    with database.connect() as connection:
        connection.autocommit = True
        hostile(connection, chance, transactions)


def test_every_poll_leaves_the_content_of_the_source(
    source: Database, target: Database, options: CloneOptions, short: bool
) -> None:
    chance = Random(2)  # noqa: S311 - to be repeated
    copied(options, target)
    with poller_of(options) as poller:
        for _ in range(12 if short else 200):
            change(source, chance, chance.choice([1, 3, 20]))
            poller.step()
            assert contents(target) == contents(source)
    assert Clone(options, lambda: None).run().phase is Phase.COMPLETE
    assert contents(target) == contents(source)
