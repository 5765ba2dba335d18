"""Behind a real PgBouncer in transaction mode: noticed, and the settings pinned in every transaction."""

from collections.abc import Iterator

import psycopg
import pytest

from harness.database import MIRROR, Database
from harness.pgbouncer import find_pgbouncer, pooled
from tidemark.cli.main import run
from tidemark.errors import ExitCode, Retry, UnsupportedServer, policy_of
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.facts import read_facts
from tidemark.postgres.session import Session

pytestmark = [
    pytest.mark.quick,
    pytest.mark.skipif(find_pgbouncer() is None, reason="no PgBouncer here and none to be unpacked"),
]


@pytest.fixture
def through(db: Database) -> Iterator[Dsn]:
    db.run("create table t (a int)")
    db.admin(f"alter role {MIRROR} in database {db.name} set quote_all_identifiers = on")
    db.admin(f"alter role {MIRROR} in database {db.name} set search_path = public")
    with pooled(db) as dsn:
        yield Dsn(dsn)


def test_a_pooler_is_noticed(through: Dsn) -> None:
    with Session.open(through, "test") as session:
        assert session.pooled
        assert read_facts(session).pooled


def test_the_settings_hold_in_every_transaction_and_statement(through: Dsn) -> None:
    """Three sessions share servers that others have used; each reads the exact text every time."""
    sessions = [Session.open(through, "test") for _ in range(3)]
    try:
        pids = set()
        for _ in range(10):
            for session in sessions:
                assert session.row("select 'public.t'::regclass::text") == ("public.t",)
                with session.transaction():
                    pids.add(session.row("select pg_backend_pid()"))
                    assert session.row("select 'public.t'::regclass::text, current_setting('TimeZone')") == (
                        "public.t",
                        "UTC",
                    )
        with sessions[0].transaction(), sessions[1].transaction(), sessions[2].transaction():
            pids |= {session.row("select pg_backend_pid()") for session in sessions}
        assert len(pids) > 1, "the pooler did not change servers, so this showed nothing"
    finally:
        for session in sessions:
            session.close()


def test_nothing_of_ours_stays_on_a_server_that_others_use_next(through: Dsn) -> None:
    with Session.open(through, "test") as session:
        session.row("select 1")
    with psycopg.connect(through.reveal()) as plain:
        assert plain.execute("select 'public.t'::regclass::text").fetchone() == ('"t"',)


def test_a_replication_connection_through_it_is_refused_with_the_reason(through: Dsn) -> None:
    with pytest.raises(UnsupportedServer, match="08P01") as caught:
        Session.open(through, "test", replication=True)
    assert "pooler" in caught.value.hint
    assert policy_of(caught.value).retry is Retry.NEVER


def test_doctor_reports_it_and_that_sync_will_poll(through: Dsn, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", through.reveal()]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("warn  direct connection") for line in lines)
    assert lines[-1].startswith("`tidemark sync` will use mode poll: the connection goes through a connection pooler")
