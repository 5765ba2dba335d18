"""A clone has every change of its tables: each is published with all operations before it is copied, and stays so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.database import Database
from harness.postgres import Server
from tests.conftest import NEWEST
from tests.target.clones import clone_options
from tests.target.load import database_with_tables
from tidemark.errors import UnsupportedServer
from tidemark.postgres.requirements import Mode
from tidemark.target.clone import Clone
from tidemark.target.options import CloneOptions

pytestmark = [pytest.mark.full, NEWEST]


@pytest.fixture
def source(server: Server) -> Iterator[Database]:
    yield from database_with_tables(server)


@pytest.fixture
def options(source: Database, target: Database, tmp_path: Path) -> CloneOptions:
    return clone_options(source, target, tmp_path)


def publications(source: Database) -> list[tuple[object, ...]]:
    return source.admin("select pubname, array_agg(prrelid order by prrelid) from pg_publication p "
                        "join pg_publication_rel r on r.prpubid = p.oid group by pubname order by 1")  # fmt: skip


@pytest.mark.quick
def test_a_table_without_a_replica_identity_is_refused_before_anything_is_created(
    source: Database, target: Database, options: CloneOptions
) -> None:
    source.run("create table log (a int, b text)")
    options, before = replace(options, mode=Mode.LOGICAL), publications(source)
    for action in (lambda: list(Clone(options, lambda: None).describe()), Clone(options, lambda: None).run):
        with pytest.raises(UnsupportedServer, match=r"public\.log has no primary key or other replica identity"):
            action()
    assert publications(source) == before
    assert source.admin("select count(*) from pg_replication_slots where database = current_database()") == [(0,)]
    assert target.admin("select to_regnamespace('tidemark')") == [(None,)]
    list(Clone(replace(options, mode=Mode.POLL), lambda: None).describe())
