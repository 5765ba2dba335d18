"""Servers between tests and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.database import Database
from tests.serve.serving import Rewriting, Serving, serving


@pytest.fixture
def router() -> Rewriting:
    """The router of the server, which the test fills."""
    return Rewriting()


@pytest.fixture
def served(db: Database, router: Rewriting) -> Iterator[Serving]:
    """A server before the database of the test."""
    with serving(db, router) as running:
        yield running
