"""Facts: what the server and our role can do, as real servers have it."""

import pytest

from harness.database import MIRROR, Database
from harness.mirrored import eventually
from tests.conftest import Start
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.facts import read_facts, read_role
from tidemark.postgres.session import Session

pytestmark = pytest.mark.quick


def test_a_server_as_it_is(db: Database) -> None:
    with db.session() as session:
        facts = read_facts(session)
    assert (facts.version, facts.major) == (db.server.sql("show server_version")[0][0], db.server.install.major)
    assert (facts.database, facts.encoding, facts.wal_level) == (db.name, "UTF8", "logical")
    assert not facts.in_recovery
    assert not facts.pooled
    assert facts.local
    assert facts.decodes
    assert not facts.wal_level_pending
    assert facts.slots_max == 10
    assert facts.slot_wal_keep_mb == -1


def test_a_role_as_it_is(db: Database) -> None:
    with db.session() as session:
        mirror, owner = read_facts(session).role, read_role(session, "app")
        assert read_role(session, "nobody_of_that_name") is None
        superuser = read_role(session, "postgres")
    assert (mirror.name, mirror.replication, mirror.superuser) == (MIRROR, True, False)
    assert not mirror.creates_in_database
    assert not mirror.sees_all_activity
    assert mirror.emits_messages
    assert owner is not None
    assert owner.creates_in_database
    assert not owner.may_replicate
    assert superuser is not None
    assert superuser.may_replicate


def test_slots_and_senders_in_use_are_counted(db: Database) -> None:
    db.admin("select pg_create_logical_replication_slot('counted', 'pgoutput')")
    with db.session() as session, Session.open(db.dsn(), "sender", replication=True):
        eventually(lambda: read_facts(session).senders_used == 1)  # that of the test before may still be ending
        assert read_facts(session).slots_used == 1


def test_a_standby_and_a_changed_wal_level_are_seen(start: Start) -> None:
    primary = start()
    standby = primary.standby()
    try:
        with Session.open(Dsn(standby.dsn()), "test") as session:
            facts = read_facts(session)
            assert facts.in_recovery
    finally:
        standby.remove()
    primary.sql("alter system set wal_level = replica", "select pg_reload_conf()", "select pg_sleep(0.2)")
    with Session.open(Dsn(primary.dsn()), "test") as session:
        facts = read_facts(session)
        assert (facts.wal_level, facts.wal_level_pending) == ("logical", True)
