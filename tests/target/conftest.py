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
def ranges() -> bool:
    """Whether a table has ranges, so that the stream is sent as text. A test can set it by a parameter."""
    return True


@pytest.fixture
def cloned(server: Server, tmp_path: Path, ranges: bool) -> Iterator[Cloned]:
    """A clone of empty tables, ready to follow its source."""
    for source in database_with_tables(server, ranges=ranges):
        for target in database_with_tables(server, ranges=ranges):
            yield cloned_tables(source, target, tmp_path)
