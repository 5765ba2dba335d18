"""Databases as targets of clones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.database import Database, create_database
from harness.postgres import Server
from tests.target.following import Cloned, cloned_tables
from tests.target.load import database_with_tables


@pytest.fixture
def target(server: Server) -> Iterator[Database]:
    """An empty database."""
    database = create_database(server)
    yield database
    database.drop()


@pytest.fixture
def cloned(server: Server, tmp_path: Path) -> Iterator[Cloned]:
    """A clone of empty tables, ready to follow its source."""
    for source in database_with_tables(server):
        for target in database_with_tables(server):
            yield cloned_tables(source, target, tmp_path)
