"""The mode of `sync --mode auto` and its reason, on servers that miss one requirement after the other."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from harness.database import MIRROR, OWNER, Database, add_roles, create_database
from harness.pgbouncer import find_pgbouncer, pooled
from harness.postgres import Install, Server, start_server
from harness.postgres.server import free_port
from harness.proxy import Proxy
from tests.conftest import NEWEST, Start
from tests.postgres.test_publication import bring_about
from tidemark import errors
from tidemark.errors import Retry, policy_of
from tidemark.postgres.capability import Choice, Mode, choose_mode
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.facts import ServerFacts, read_facts
from tidemark.postgres.publication import wanted
from tidemark.postgres.requirements import SourceState, first_unmet, server_requirements, version_requirement
from tidemark.postgres.session import Session
from tidemark.postgres.slot import SlotWait, create_slot
from tidemark.schema.selection import Selection

pytestmark = pytest.mark.quick

SENDERS = 2
LOGICAL = Choice(Mode.LOGICAL, f"wal_level is logical, and role {MIRROR} may open replication connections")
EVERYTHING = Selection()


@pytest.fixture(scope="module")
def small(install: Install) -> Iterator[Server]:
    """A server with one slot and two senders."""
    server = start_server(install, {"max_replication_slots": 1, "max_wal_senders": SENDERS})
    add_roles(server)
    yield server
    server.remove()


@pytest.fixture
def tight(small: Server) -> Iterator[Database]:
    """A database of that server."""
    database = published(create_database(small))
    yield database
    database.drop()


@pytest.fixture
def db(server: Server) -> Iterator[Database]:
    """A database whose owner has published its one table."""
    database = published(create_database(server))
    yield database
    database.drop()


@pytest.fixture
def facts(db: Database) -> ServerFacts:
    """What a server that has everything shows."""
    with db.session() as session:
        return read_facts(session)


def published(db: Database) -> Database:
    db.run("create table t (a int primary key)")
    with Session.open(Dsn(db.server.dsn("postgres", db.name)), "test") as session:
        with session.transaction():
            tables = read_catalog(session).tables
        bring_about(session, wanted(db.names, tables, session.version_num))
    return db


def choice(db: Database, user: str = MIRROR, through: Dsn | None = None) -> Choice:
    with db.session(user) as session:
        chosen = choose_mode(session, through or db.dsn(user), db.names, EVERYTHING)
    assert "\n" not in chosen.why
    return chosen


def polled(why: str) -> Choice:
    return Choice(Mode.POLL, why)


@contextmanager
def sending(db: Database, slot: str | None = None) -> Iterator[ExitStack]:
    """All senders in use, one of them streaming from a slot, until this ends or what it gives is closed."""
    wait_for(db.server, "select count(*) = 0 from pg_stat_replication")
    with ExitStack() as senders:
        for _ in range(SENDERS):
            sender = senders.enter_context(Session.open(db.dsn(), "sender", replication=True))
        if slot is not None:
            options = f"(proto_version '1', publication_names '{db.names.publication}')"
            sender.connection.pgconn.send_query(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 {options}".encode())
            wait_for(db.server, "select count(*) = 1 from pg_replication_slots where active")
        yield senders


def wait_for(server: Server, query: str) -> None:
    deadline = time.monotonic() + 10
    while server.sql(query) != [(True,)]:
        assert time.monotonic() < deadline, query
        time.sleep(0.01)


def test_a_published_database_is_decoded_and_one_that_the_role_may_not_publish_is_polled(db: Database) -> None:
    assert choice(db) == LOGICAL
    db.admin(f"drop publication {db.names.publication}")
    assert choice(db) == polled(
        f"publication {db.names.publication} does not exist (`tidemark setup SOURCE --print` prints the SQL)"
    )
    assert db.admin(f"select count(*) from pg_replication_slots where database = '{db.name}'") == [(0,)]
    superuser = Dsn(db.server.dsn("postgres", db.name))
    with Session.open(superuser, "test") as session:
        assert choose_mode(session, superuser, db.names, EVERYTHING).mode is Mode.LOGICAL, "sync publishes the table"
    assert db.admin("select count(*) from pg_publication") == [(0,)]
    db.run("drop table t")
    missing = f"publication {db.names.publication} does not exist"
    assert choice(db) == polled(f"{missing}, and there is no table to publish")


def test_requirements_are_reported_one_after_the_other(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(wal_level="replica", max_replication_slots=0, max_wal_senders=0, track_io_timing=False)
    db = published(create_database(server))
    low = "wal_level is replica; logical decoding needs wal_level = logical"
    assert choice(db) == polled(f"{low} (run `alter system set wal_level = logical`)")
    monkeypatch.setattr("tidemark.postgres.facts.SWITCHES", ("a.switch_of_others", "track_io_timing"))
    assert choice(db) == polled(f"{low} (turn on track_io_timing)"), "a switch that is off"
    db.admin(f"alter role {MIRROR} set track_io_timing = on")
    assert choice(db) == polled(f"{low} (run `alter system set wal_level = logical`)"), "a switch that is on"
    server.restart(settings={"wal_level": "logical"})
    assert choice(db).why.startswith("max_replication_slots is 0, and logical decoding needs a replication slot (run ")
    server.restart(settings={"max_replication_slots": 1})
    assert choice(db).why.startswith("max_wal_senders is 0, and logical decoding needs a WAL sender (run ")
    server.restart(settings={"max_wal_senders": 1})
    assert choice(db) == LOGICAL


def test_a_role_without_the_right(db: Database) -> None:
    assert choice(db, OWNER) == polled(
        f'role {OWNER} may not open replication connections (run `alter role "{OWNER}" replication`)'
    )


def test_a_right_by_membership_counts_where_the_server_honours_it(db: Database) -> None:
    """Amazon RDS does. This server does not, and refuses the connection."""
    db.admin("create role rds_replication", "create role rds_superuser in role rds_replication")
    try:
        assert choice(db, OWNER).why.endswith(f'(run `grant "rds_replication" to "{OWNER}"`)')
        for group in ("rds_replication", "rds_superuser"):
            db.admin(f"grant {group} to {OWNER}")
            with db.session(OWNER) as session:
                assert read_facts(session).role.may_replicate
            refused = choice(db, OWNER)
            assert refused.mode is Mode.POLL
            assert refused.why.startswith("no replication connection can be opened: cannot connect to host=127.0.0.1")
            assert refused.why.endswith("(SQLSTATE 42501)")
            db.admin(f"revoke {group} from {OWNER}")
    finally:
        db.admin("drop role rds_replication, rds_superuser")


def test_a_slot_must_be_free_or_the_mirrors_own(tight: Database) -> None:
    used_up = "no replication slot is free: max_replication_slots is 1, and all are in use"
    assert choice(tight) == LOGICAL, "one is enough: a copy does without"
    for taken in ("theirs", tight.names.slot):
        tight.admin(f"select pg_create_physical_replication_slot('{taken}')")
        raised = "(run `alter system set max_replication_slots = 3`)"
        assert choice(tight) == polled(f"{used_up} {raised}"), "nor is it ours by its name alone"
        tight.admin(f"select pg_drop_replication_slot('{taken}')")
    create_slot(tight.dsn(), tight.names.slot, SlotWait(10))
    assert choice(tight) == LOGICAL


def test_a_sender_must_be_free_or_about_to_be(tight: Database) -> None:
    with sending(tight) as senders:
        assert choice(tight).why.startswith("no WAL sender is free: max_wal_senders is 2, and all are in use")
        ending = threading.Timer(0.1, senders.close)
        ending.start()
        assert choice(tight) == LOGICAL
        ending.join()


def test_a_mirror_that_streams_already_needs_no_other_sender(tight: Database) -> None:
    create_slot(tight.dsn(), tight.names.slot, SlotWait(10))
    with sending(tight, tight.names.slot):
        assert choice(tight) == LOGICAL


def test_a_mirror_that_has_its_slot_waits_for_a_sender_and_is_not_polled(tight: Database) -> None:
    create_slot(tight.dsn(), tight.names.slot, SlotWait(10))
    with sending(tight), pytest.raises(errors.SourceBusy, match="max_wal_senders is 2") as caught:
        choice(tight)
    assert policy_of(caught.value).retry is Retry.BACK_OFF


@pytest.mark.skipif(find_pgbouncer() is None, reason="no PgBouncer here and none to be unpacked")
def test_a_pooler_in_between_is_seen_and_where_it_is_not_seen_refuses(db: Database) -> None:
    with pooled(db) as conninfo:
        through = Dsn(conninfo)
        with Session.open(through, "test") as session:
            assert choose_mode(session, through, db.names, EVERYTHING) == polled(
                "the connection goes through a connection pooler, and logical decoding needs a direct one"
            )
        refused = choice(db, through=through)
    assert refused.mode is Mode.POLL
    assert refused.why.startswith("no replication connection can be opened: ")
    assert refused.why.endswith("(SQLSTATE 08P01)")


def test_a_standby_is_polled(start: Start) -> None:
    primary = start()
    db = published(create_database(primary))
    standby = primary.standby({"hot_standby_feedback": True})
    there = Database(standby, db.name)
    try:
        major = primary.install.major
        able = "" if major >= 16 else f" of PostgreSQL {major}, which does not support logical decoding"
        assert choice(there) == polled(f"the server is a standby{able}; logical mirroring needs the primary")
        if primary.install.major >= 17:
            with pytest.raises(errors.UnsupportedServer, match="failover"):
                create_slot(there.dsn(), there.names.slot, SlotWait(1))
        standby.promote()
        assert choice(there) == LOGICAL, "also on a timeline with a history"
    finally:
        standby.remove()


@NEWEST
def test_a_server_that_refuses_replication_and_nothing_else_is_polled_unless_it_is_only_busy(db: Database) -> None:
    refuse_senders(db, "28000")
    refused = choice(db)
    assert refused.mode is Mode.POLL
    assert refused.why.endswith(": no replication from here (SQLSTATE 28000)")
    refuse_senders(db, "53300")
    with pytest.raises(errors.SourceBusy, match="no replication from here"):
        choice(db)


def refuse_senders(db: Database, sqlstate: str) -> None:
    """A login trigger (17 and later) that lets in whoever does not replicate."""
    db.admin(
        "drop event trigger if exists refuse",
        "create or replace function refuse() returns event_trigger language plpgsql as $$ begin"
        " if (select backend_type from pg_stat_activity where pid = pg_backend_pid()) = 'walsender'"
        f" then raise 'no replication from here' using errcode = '{sqlstate}'; end if; end $$",
        "create event trigger refuse on login execute function refuse()",
        "alter event trigger refuse enable always",
    )


def test_a_rule_for_the_word_replication_does_not_concern_us(db: Database) -> None:
    """pg_hba.conf knows a connection that decodes by its database: `replication` means the physical ones."""
    with rule(db.server, f"host replication {MIRROR} 127.0.0.1/32 reject"):
        assert choice(db) == LOGICAL


def test_a_rule_that_keeps_us_out_altogether_is_an_error_since_polling_is_kept_out_too(db: Database) -> None:
    with db.session() as session, rule(db.server, f"host {db.name} {MIRROR} 127.0.0.1/32 reject"):
        with pytest.raises(errors.AuthenticationRefused, match=r"pg_hba\.conf rejects connection"):
            choose_mode(session, db.dsn(), db.names, EVERYTHING)


@contextmanager
def rule(server: Server, line: str) -> Iterator[None]:
    """A first line for pg_hba.conf, in force while this lasts."""
    file = server.data / "pg_hba.conf"
    before = file.read_text()
    try:
        file.write_text(f"{line}\n{before}")
        reload(server)
        yield
    finally:
        file.write_text(before)
        reload(server)


def reload(server: Server) -> None:
    ((before,),) = server.sql("select pg_conf_load_time()")
    server.sql("select pg_reload_conf()")
    wait_for(server, f"select pg_conf_load_time() > '{before}'")


def test_a_connection_that_cannot_be_made_or_is_lost_is_an_error_and_not_a_reason(db: Database) -> None:
    with pytest.raises(errors.SourceUnreachable):
        choice(db, through=Dsn(f"{db.dsn().reveal()} port={free_port()}"))
    with db.session() as session:
        db.admin(f"select pg_terminate_backend({session.connection.info.backend_pid})")
        with pytest.raises(errors.ConnectionLost):
            choose_mode(session, db.dsn(), db.names, EVERYTHING)


@NEWEST
def test_a_server_that_does_not_answer_is_an_error_and_not_a_reason(db: Database) -> None:
    proxy = Proxy(db.server.port, stalled=True)
    try:
        with pytest.raises(errors.SourceUnreachable, match="timeout"):
            choice(db, through=Dsn(f"{db.dsn().reveal()} port={proxy.port} connect_timeout=2"))
    finally:
        proxy.stalled = False
        proxy.close()


def against(facts: ServerFacts, db: Database) -> str | None:
    state = SourceState(facts, db.names, facts.role.name, facts.role, None)
    unmet = first_unmet(server_requirements(state), Mode.LOGICAL)
    return unmet.line if unmet is not None else None


def test_versions_that_are_not_at_hand(db: Database, facts: ServerFacts) -> None:
    assert against(facts, db) is None
    old = version_requirement(13, "13.14")
    assert old.found == "the server is PostgreSQL 13.14; Tidemark supports version 14 and later"
    assert (old.met, old.modes) == (False, frozenset(Mode)), "older servers are neither decoded nor polled"
    assert version_requirement(14, "14.18").met
    for major, minor in ((14, 17), (15, 12), (16, 8), (17, 4)):
        lossy = version_requirement(major, f"{major}.{minor} (Debian {major}.{minor}-1)")
        assert (lossy.met, lossy.modes) == (False, frozenset({Mode.LOGICAL})), "it can be polled"
        assert lossy.remedy == f"Upgrade the server to PostgreSQL {major}.{minor + 1} or later."
        assert version_requirement(major, f"{major}.{minor + 1}").met
    assert version_requirement(18, "18.0").met
    assert not version_requirement(19, "19.1").modes, "a newer version is only a warning"
    nineteen = replace(facts, version_num=190000, wal_level="replica")
    assert against(replace(nineteen, turns_logical=True), db) is None, "the first slot turns it logical"
    assert str(against(nineteen, db)).startswith("wal_level is replica; logical decoding needs wal_level = logical")
    assert not facts.turns_logical, "not before 19"


def test_the_switch_of_a_managed_service_is_named(db: Database, facts: ServerFacts) -> None:
    low = replace(facts, wal_level="replica", switch_off="rds.logical_replication")
    assert str(against(low, db)).endswith("needs wal_level = logical (turn on rds.logical_replication)")
