"""What is published while a mirror runs: a table that was chosen may be gone, and one that is chosen may appear."""

from __future__ import annotations

import pytest

from harness.database import Database
from tests.conftest import NEWEST
from tidemark.errors import InvalidValue
from tidemark.source.selection import Pattern, Selection
from tidemark.sync import publishing
from tidemark.sync.publishing import Meant, Publishing, publish

pytestmark = NEWEST


def published(db: Database) -> list[str]:
    return [
        name
        for (name,) in db.admin(
            f"select tablename::text from pg_publication_tables where pubname = '{db.names.publication}'"
        )
    ]


def test_a_chosen_table_that_is_dropped_ends_no_mirror(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "INTERVAL_S", 0.0)
    said: list[str] = []
    meant = Meant(db.dsn("postgres"), db.names, Selection((Pattern("public.t"),), ()))
    with pytest.raises(InvalidValue, match=r"no table matches 'public\.t'"):
        publish(meant, said.append, begun=False)
    db.run("create table t (id int primary key)")
    publish(meant, said.append, begun=False)
    assert published(db) == ["t"]
    running = Publishing(meant, said.append)
    db.run("drop table t")
    running.step()
    publish(meant, said.append, begun=True)
    assert published(db) == []
    assert db.admin("select pubname::text from pg_publication") == [(db.names.publication,)], "its stream goes on"
    db.run("create table t (id int primary key)")
    running.step()
    assert published(db) == ["t"]
