"""Catalog snapshots of a real server: the locks under which a definition may change."""

from __future__ import annotations

import pytest

from harness.database import Database
from tidemark.postgres.catalog_reading import read_catalog_snapshot
from tidemark.postgres.names import MirrorNames
from tidemark.schema.catalog_snapshot import CatalogSnapshot, WatchedObjects

pytestmark = pytest.mark.quick

SCHEMA = (
    "create type mood as enum ('sad', 'glad')",
    "create type pair as (x int, y int)",
    "create table t (id int primary key, how mood, p pair)",
    "create table parent (id int primary key)",
    "create table child () inherits (parent)",
    "create table other (id int primary key)",
    "create publication everything for table t",
    "create schema apart",
)


OIDS = """
    select 't'::regclass::oid::int, 'parent'::regclass::oid::int, 'child'::regclass::oid::int,
           'mood'::regtype::oid::int, 'pair'::regtype::oid::int
"""


def test_a_lock_names_what_its_transaction_may_change(db: Database, subtests: pytest.Subtests) -> None:
    db.admin(*SCHEMA)
    ((t, parent, child, mood, pair),) = db.admin(OIDS)
    expected = {
        "alter table t add c int": (t, None),
        "lock table t in share row exclusive mode; select pg_current_xact_id()": (t, None),
        "alter table child no inherit parent": (child, None),
        "alter type mood add value 'calm'": (None, mood),
        "alter type pair add attribute z int": (None, pair),
        "alter publication everything add table other": (None, None),
        "alter schema apart rename to elsewhere": (None, None),
        "create schema another; drop schema apart": None,
        "insert into t values (1, 'sad', row(1, 2)); select from parent for update": None,
        "alter table other add c int": None,
    }
    watched = WatchedObjects((t, parent, child), (mood, pair))
    with db.session() as session, db.connect(user="postgres") as altering:

        def snapshot() -> CatalogSnapshot:
            return read_catalog_snapshot(session, MirrorNames("m"), watched, lambda _: ())

        for statement, lock in expected.items():
            with subtests.test(statement):
                assert not snapshot().held
                altering.execute(f"begin; {statement}".encode())
                unseen = snapshot().unseen
                found = {(each.table if each.table in watched.tables else None, each.type) for each in unseen}
                assert (lock in found) if lock is not None else not found
                altering.execute(b"rollback")
