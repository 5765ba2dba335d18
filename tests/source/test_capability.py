"""Logical decoding where it can be had, polling where not, and the reason: on servers that lack each thing in turn."""

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
from tidemark import errors
from tidemark.errors import Retry, policy_of
from tidemark.source.capability import Choice, Mode, choose_mode, lacking
from tidemark.source.dsn import Dsn
from tidemark.source.facts import Facts, read_facts
from tidemark.source.session import Session
from tidemark.source.slot import SlotWait, create_slot

pytestmark = pytest.mark.quick

SENDERS = 2
LOGICAL = Choice(Mode.LOGICAL, f"wal_level is logical, and role {MIRROR} may replicate")


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
    database = create_database(small)
    yield database
    database.drop()


@pytest.fixture
def facts(db: Database) -> Facts:
    """What a server that has everything shows."""
    with db.session() as session:
        return read_facts(session)


def choice(db: Database, user: str = MIRROR, through: Dsn | None = None) -> Choice:
    with db.session(user) as session:
        chosen = choose_mode(session, through or db.dsn(user), db.names)
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
            db.run("create table streamed (a int primary key)", "create publication p for table streamed")
            options = "(proto_version '1', publication_names 'p')"
            sender.connection.pgconn.send_query(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 {options}".encode())
            wait_for(db.server, "select count(*) = 1 from pg_replication_slots where active")
        yield senders


def wait_for(server: Server, query: str) -> None:
    deadline = time.monotonic() + 10
    while server.sql(query) != [(True,)]:
        assert time.monotonic() < deadline, query
        time.sleep(0.01)


def test_a_server_with_everything_is_decoded_also_before_its_owner_has_published_anything(db: Database) -> None:
    assert choice(db) == LOGICAL
    assert db.admin("select count(*) from pg_publication") == [(0,)]
    assert db.admin(f"select count(*) from pg_replication_slots where database = '{db.name}'") == [(0,)], "only a look"
    superuser = Dsn(db.server.dsn("postgres", db.name))
    with Session.open(superuser, "test") as session:
        assert choose_mode(session, superuser, db.names).mode is Mode.LOGICAL, "it needs no attribute"


def test_what_is_lacking_is_named_one_after_the_other_until_nothing_is(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(wal_level="replica", max_replication_slots=0, max_wal_senders=0, track_io_timing=False)
    db = create_database(server)
    assert choice(db) == polled("wal_level is replica: logical decoding needs logical")
    monkeypatch.setattr("tidemark.source.facts.SWITCHES", ("a.switch_of_others", "track_io_timing"))
    assert choice(db).why.endswith("needs logical (turn on track_io_timing)"), "a switch that is there and off"
    db.admin(f"alter role {MIRROR} set track_io_timing = on")
    assert choice(db).why.endswith("needs logical"), "a switch that is on"
    server.restart(settings={"wal_level": "logical"})
    assert choice(db) == polled("max_replication_slots is 0: logical decoding needs a replication slot")
    server.restart(settings={"max_replication_slots": 1})
    assert choice(db) == polled("max_wal_senders is 0: logical decoding needs a WAL sender")
    server.restart(settings={"max_wal_senders": 1})
    assert choice(db) == LOGICAL


def test_a_role_without_the_right(db: Database) -> None:
    assert choice(db, OWNER) == polled(
        f'role {OWNER} may not open replication connections (alter role "{OWNER}" replication)'
    )


def test_a_right_by_membership_counts_where_the_server_honours_it(db: Database) -> None:
    """On Amazon RDS it does. Here it does not, and the connection that is tried tells."""
    db.admin("create role rds_replication", "create role rds_superuser in role rds_replication")
    try:
        assert choice(db, OWNER).why.endswith(f'(grant "rds_replication" to "{OWNER}")')
        for group in ("rds_replication", "rds_superuser"):
            db.admin(f"grant {group} to {OWNER}")
            with db.session(OWNER) as session:
                assert read_facts(session).role.may_replicate
            refused = choice(db, OWNER)
            assert refused.mode is Mode.POLL
            assert refused.why.startswith("no replication connection can be made: cannot connect to host=127.0.0.1")
            assert refused.why.endswith("(SQLSTATE 42501)")
            db.admin(f"revoke {group} from {OWNER}")
    finally:
        db.admin("drop role rds_replication, rds_superuser")


def test_a_slot_must_be_free_or_the_mirrors_own(tight: Database) -> None:
    used_up = polled("no replication slot is free: max_replication_slots is 1, and all are in use")
    assert choice(tight) == LOGICAL, "one is enough: a copy does without"
    for taken in ("theirs", tight.names.slot):
        tight.admin(f"select pg_create_physical_replication_slot('{taken}')")
        assert choice(tight) == used_up, "nor is it ours by its name alone"
        tight.admin(f"select pg_drop_replication_slot('{taken}')")
    create_slot(tight.dsn(), tight.names.slot, SlotWait(10))
    assert choice(tight) == LOGICAL


def test_a_sender_must_be_free_or_about_to_be(tight: Database) -> None:
    with sending(tight) as senders:
        assert choice(tight) == polled("no WAL sender is free: max_wal_senders is 2, and all are in use")
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
            assert choose_mode(session, through, db.names) == polled(
                "a connection pooler answers: logical decoding needs the host and port of PostgreSQL itself"
            )
        refused = choice(db, through=through)
    assert refused.mode is Mode.POLL
    assert refused.why.startswith("no replication connection can be made: ")
    assert refused.why.endswith("(SQLSTATE 08P01)")


def test_a_standby_is_polled(start: Start) -> None:
    primary = start()
    db = create_database(primary)
    standby = primary.standby({"hot_standby_feedback": True})
    there = Database(standby, db.name)
    try:
        if primary.install.major < 16:
            why = f"a standby of PostgreSQL {primary.install.major}, which cannot decode"
            assert choice(there) == polled(f"{why}: logical mirroring needs the primary")
        else:
            assert choice(there) == polled("a standby: logical mirroring is supported from the primary only")
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
            choose_mode(session, db.dsn(), db.names)


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
            choose_mode(session, db.dsn(), db.names)


@NEWEST
def test_a_server_that_does_not_answer_is_an_error_and_not_a_reason(db: Database) -> None:
    proxy = Proxy(db.server.port, stalled=True)
    try:
        with pytest.raises(errors.SourceUnreachable, match="timeout"):
            choice(db, through=Dsn(f"{db.dsn().reveal()} port={proxy.port} connect_timeout=2"))
    finally:
        proxy.stalled = False
        proxy.close()


def test_versions_that_are_not_at_hand(facts: Facts) -> None:
    assert lacking(facts, None) is None
    assert lacking(replace(facts, version_num=130014, version="13.14"), None) == (
        "PostgreSQL 13.14: logical mirroring needs version 14 or later"
    )
    nineteen = replace(facts, version_num=190000, wal_level="replica")
    assert lacking(replace(nineteen, turns_logical=True), None) is None, "the first slot turns it logical"
    assert lacking(nineteen, None) == "wal_level is replica: logical decoding needs logical"
    assert not facts.turns_logical, "not before 19"


def test_the_switch_of_a_managed_service_is_named(facts: Facts) -> None:
    low = replace(facts, wal_level="replica", switch_off="rds.logical_replication")
    why = lacking(low, None)
    assert why == "wal_level is replica: logical decoding needs logical (turn on rds.logical_replication)"
