"""Sessions: pinned, bounded, translated, and silent about passwords."""

import gc
import logging
import pickle
import socket
import threading
import traceback
from pathlib import Path

import pytest
from psycopg import sql

from harness.database import MIRROR, PASSWORD, Database, create_database
from harness.postgres import Server
from tests.conftest import Start
from tidemark import errors
from tidemark.errors import Retry, policy_of
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import PINNED, Session, Timeouts

pytestmark = pytest.mark.quick

HOSTILE = {
    "datestyle": "'German, DMY'",
    "intervalstyle": "sql_standard",
    "timezone": "'Asia/Kathmandu'",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "client_encoding": "latin1",
    "row_security": "on",
    "search_path": "public",
    "quote_all_identifiers": "on",
    "statement_timeout": "200",
    "lock_timeout": "200",
}
VALUES = """
    select 1.1::float8::text, timestamptz '2020-01-02 03:04:05+00', interval '1 day -2 hours'::text,
           '\\xff00'::bytea::text, 'public.t'::regclass::text, '1.5'::money::text
"""


@pytest.mark.parametrize("replication", [False, True])
def test_role_settings_do_not_change_what_we_read(db: Database, replication: bool) -> None:
    db.run("create table t (a int)")
    expected = ("1.1", "2020-01-02 03:04:05+00:00", "1 day -02:00:00", "\\xff00", "public.t", "$1.50")
    for name, value in HOSTILE.items():
        db.admin(f"alter role {MIRROR} in database {db.name} set {name} = {value}")
    with Session.open(db.dsn(), "test", replication=replication) as session:
        row = session.row(VALUES)
        assert (row[0], str(row[1]), *row[2:]) == expected
        assert {name: session.row(f"select current_setting('{name}')")[0] for name in PINNED} == dict(PINNED)
    with db.connect(MIRROR) as plain:
        assert plain.execute("select 'public.t'::regclass::text").fetchone() == ('"t"',), "the settings were hostile"


def test_waits_are_bounded_by_our_own_limits(db: Database) -> None:
    db.run("create table t (a int)")
    with db.connect() as owner, db.session(timeouts=Timeouts(lock_s=0.1, statement_s=0.3)) as session:
        owner.execute("begin; lock table t")
        with pytest.raises(errors.TimedOut, match="lock timeout") as locked:
            session.rows("select * from public.t")
        assert (locked.value.sqlstate, policy_of(locked.value).retry) == ("55P03", Retry.BACK_OFF)
        with pytest.raises(errors.TimedOut, match="statement timeout"):
            session.rows("select pg_sleep(5)")


def test_a_session_of_ours_that_sits_idle_in_a_transaction_is_ended(db: Database) -> None:
    with db.session(timeouts=Timeouts(idle_in_transaction_s=0.05)) as session:
        with pytest.raises((errors.TimedOut, errors.ConnectionLost)), session.transaction():
            session.row("select 1")
            threading.Event().wait(0.5)
            session.row("select 1")


def test_a_transaction_has_one_snapshot_and_writes_nothing_unless_asked(db: Database) -> None:
    db.run("create table t (a int)")
    with db.session() as session, session.transaction():
        assert session.row("select count(*) from public.t") == (0,)
        db.run("insert into t values (1)")
        assert session.row("select count(*) from public.t") == (0,)
    with db.session("app") as session:
        with pytest.raises(errors.UnsupportedServer, match="read-only"), session.transaction():
            session.execute(sql.SQL("insert into public.t values (2)").format(), "inserting")
        assert session.row("select count(*) from public.t") == (1,)


def test_a_transaction_on_a_connection_that_was_lost_is_refused_as_such(db: Database) -> None:
    with db.session() as session:
        (pid,) = session.row("select pg_backend_pid()")
        db.admin(f"select pg_terminate_backend({pid}, 5000)")
        for _ in range(2):
            with pytest.raises(errors.ConnectionLost), session.transaction():
                pass


def test_one_transaction_does_not_silently_end_another(db: Database) -> None:
    with db.session() as session, session.transaction():
        with pytest.raises(RuntimeError, match="open in this session already"), session.transaction():
            pass


def test_a_transaction_that_cannot_begin_leaves_the_session_usable(db: Database, server: Server) -> None:
    with server.connect() as elsewhere, db.session() as session:
        elsewhere.execute("begin isolation level repeatable read")
        (foreign,) = elsewhere.execute("select pg_export_snapshot()").fetchone() or ("",)
        with pytest.raises(errors.ObjectMissing, match="another database"):
            session.begin(snapshot_id=foreign)
        assert session.row("select 1") == (1,)


@pytest.mark.parametrize("setting", ["zero_damaged_pages", "ignore_checksum_failure"])
def test_a_setting_under_which_damage_reads_as_nothing_is_refused(db: Database, setting: str) -> None:
    db.admin(f"alter role {MIRROR} in database {db.name} set {setting} = on")
    with pytest.raises(errors.SettingsNotPinned, match=setting):
        db.session()


def test_pg_stat_activity_says_who_we_are_unless_the_user_says_it(db: Database) -> None:
    with db.session() as session:
        assert session.row("select current_setting('application_name')") == ("tidemark test",)
    named = Dsn(db.dsn().reveal() + " application_name=billing")
    with Session.open(named, "test") as session:
        assert session.row("select current_setting('application_name')") == ("billing",)


def test_a_service_file_and_a_pgpass_file_are_libpqs_business(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, passes = tmp_path / "service.conf", tmp_path / "pgpass"
    service.write_text(f"[shop]\nhost=127.0.0.1\nport={db.server.port}\ndbname={db.name}\nuser={MIRROR}\n")
    passes.write_text(f"*:*:*:{MIRROR}:{PASSWORD}\n")
    passes.chmod(0o600)
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    monkeypatch.setenv("PGPASSFILE", str(passes))
    for text in ("service=shop", f"postgresql://{MIRROR}@127.0.0.1:{db.server.port}/{db.name}"):
        with Session.open(Dsn(text), "test") as session:
            assert session.row("select current_user") == (MIRROR,)
    monkeypatch.setenv("PGSERVICE", "shop")
    with Session.open(Dsn(""), "test") as session:
        assert session.row("select current_database()") == (db.name,)


def refused(dsn: str) -> errors.SourceError:
    with pytest.raises(errors.SourceError) as caught:
        Session.open(Dsn(dsn), "test", Timeouts(connect_s=2))
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    assert PASSWORD not in "".join(shown.format()).replace(repr(dsn), "") + repr(caught.value.args)
    return caught.value


def test_each_refusal_is_told_apart(server: Server) -> None:
    wrong = refused(server.dsn(MIRROR, password=PASSWORD + "x"))
    assert (type(wrong), wrong.sqlstate) == (errors.AuthenticationRefused, "28P01")
    assert type(refused(server.dsn(MIRROR))) is errors.AuthenticationRefused
    missing = refused(server.dsn(MIRROR, "no_such_db", password=PASSWORD))
    assert (type(missing), missing.sqlstate) == (errors.ObjectMissing, "3D000")
    assert "no_such_db" in missing.message
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = refused(f"host=127.0.0.1 port={closed.getsockname()[1]} user=x password={PASSWORD}")
    assert (type(nobody), policy_of(nobody).retry) == (errors.SourceUnreachable, Retry.BACK_OFF)
    assert type(refused(f"service=no_such_service password={PASSWORD}")) is errors.SourceUnreachable
    without_tls = refused(server.dsn(MIRROR, password=PASSWORD, sslmode="require"))
    assert (type(without_tls), "sslrootcert" in without_tls.hint) == (errors.SourceUnreachable, True)
    assert "SSL was required" in without_tls.message


@pytest.mark.parametrize(
    "option", ["sslmode", "connect_timeout", "keepalives", "target_session_attrs", "channel_binding"]
)
def test_a_value_that_libpq_refuses_is_not_repeated(option: str) -> None:
    assert isinstance(refused(f"host=127.0.0.1 port=1 {option}={PASSWORD}"), errors.SourceUnreachable)


def test_a_full_server_is_worth_another_try_and_a_wrong_password_is_not(server: Server) -> None:
    server.sql(f"create role crowd login connection limit 0 password '{PASSWORD}'")
    try:
        busy = refused(server.dsn("crowd", password=PASSWORD))
        assert (type(busy), busy.sqlstate, policy_of(busy).retry) == (errors.SourceBusy, "53300", Retry.BACK_OFF)
    finally:
        server.sql("drop role crowd")


def test_a_killed_session_is_a_lost_connection(db: Database) -> None:
    with db.session() as session:
        db.admin(f"select pg_terminate_backend({session.connection.info.backend_pid})")
        with pytest.raises(errors.ConnectionLost) as caught:
            session.rows("select 1")
        assert policy_of(caught.value).retry is Retry.BACK_OFF
        with pytest.raises(errors.ConnectionLost):
            session.rows("select 1")


def test_a_server_that_goes_away_is_a_lost_connection(start: Start) -> None:
    server = start()
    with Session.open(Dsn(server.dsn(MIRROR, password=PASSWORD)), "test") as session:
        server.stop("crash")
        with pytest.raises(errors.ConnectionLost):
            session.rows("select 1")


def test_no_password_in_logs_reprs_or_pickles_of_a_live_session(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with db.session() as session:
        session.rows("select 1")
        logging.getLogger("x").info("%r %s %r", session, session, session.connection)
        assert PASSWORD not in caplog.text + repr(session) + repr(session.__dict__)
        for thing in (session, db.dsn()):
            with pytest.raises(TypeError):
                pickle.dumps(thing)
    gc.collect()


def test_a_name_in_the_encoding_of_another_database_is_read_and_printed(db: Database, server: Server) -> None:
    latin = create_database(server, "LATIN1")
    latin.admin(r"""do $$ begin execute E'create role "latin_\351"'; end $$""")
    try:
        ((role,),) = latin.admin("select oid from pg_roles order by oid desc limit 1")
        with db.session() as session:
            (name,) = session.row("select rolname::text from pg_roles where oid = %s", [role])
        assert name == r"latin_\xe9"
    finally:
        latin.admin(r"""do $$ begin execute E'drop role "latin_\351"'; end $$""")
        latin.drop()
