"""Sources that are polled: without logical decoding, standbys, and servers whose transaction IDs wrap around."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.database import MIRROR, OWNER, Database, create_database
from harness.postgres import Server
from harness.standby import running, standby_of, wait_for
from tests.conftest import NEWEST, Start
from tests.pipeline.poll.test_wraparound import STEPS, WRAP, move, next_id, write
from tests.target.copies import Pair
from tests.target.polled import copied, options_of, poller_of
from tidemark.errors import SourceBusy, UnsupportedServer
from tidemark.schema.selection import Pattern, Selection
from tidemark.target.clone import Clone
from tidemark.target.state import ClonePhase

pytestmark = [pytest.mark.full, NEWEST]


def database(server: Server) -> Database:
    """Two tables, and a role that may read them and nothing else."""
    server.sql(f"alter role {MIRROR} noreplication")
    source = create_database(server)
    source.run("create table t (id int primary key, v text)", "create table bag (n int)", "create sequence s")
    write(source, 1)
    return source


def test_a_source_without_logical_decoding_is_polled(start: Start, server: Server, tmp_path: Path) -> None:
    source, target = database(start(own_identity=True, wal_level="replica")), create_database(server)
    options = replace(options_of(source, target, tmp_path), mode=None)
    copied(options, target)
    with poller_of(options) as poller:
        write(source, 2)
        assert poller.step() is not None
        assert poller.step() is None  # the target is another server
        Pair(source, target).require_equal()
    write(source, 3)
    assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
    Pair(source, target).require_equal()
    assert target.admin("select mode from tidemark.clones") == [("poll",)]
    assert source.admin("select count(*) from pg_publication") == [(0,)]
    target.drop()


def test_a_standby_is_polled_and_its_primary_after_it(start: Start, server: Server, tmp_path: Path) -> None:
    source, target = database(start(own_identity=True, wal_level="replica")), create_database(server)
    primary = options_of(source, target, tmp_path)
    pair = Pair(source, target)
    with standby_of(source) as there:
        wait_for(there, source)
        options = replace(primary, source=there.dsn())
        copied(options, target)
        with poller_of(options) as poller:
            for n in range(2, 5):
                write(source, n)
                wait_for(there, source)
                assert poller.step() is not None
                pair.require_equal()
            before = target.run("select count(*) from t")
            with running(source, there, "insert into t values (-1, 'running')") as session:
                source.run("insert into bag values (77)")
                wait_for(there, source)
                assert poller.step() is not None
                assert target.run("select count(*) from t") == before
                assert target.run("select count(*) from bag where n = 77") == [(1,)]
                session.execute("commit")
            wait_for(there, source)
            assert poller.step() is not None
            pair.require_equal()
        there.server.sql("select pg_wal_replay_pause()")
        write(source, 6)
        with poller_of(primary) as poller:
            assert poller.step() is not None
            pair.require_equal()
        with poller_of(options) as poller, pytest.raises(SourceBusy, match="the standby has replayed"):
            poller.step()
        there.server.sql("select pg_wal_replay_resume()")
        write(source, 7)
        wait_for(there, source)
        assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
    pair.require_equal()
    target.drop()


def test_a_standby_that_lags_does_not_take_the_target_back(start: Start, server: Server, tmp_path: Path) -> None:
    source, target = create_database(start(own_identity=True, wal_level="replica")), create_database(server)
    source.run("create table bag (n int)", "insert into bag values (1)")
    primary = options_of(source, target, tmp_path)
    with standby_of(source) as there:
        wait_for(there, source)
        there.server.sql("select pg_wal_replay_pause()")
        copied(primary, target)
        source.run("insert into bag values (2)")
        with poller_of(primary) as poller:
            poller.step()
        with poller_of(replace(primary, source=there.dsn())) as poller:
            with pytest.raises(SourceBusy, match="the standby has replayed"):
                poller.step()
    assert target.run("select count(*) from bag") == [(2,)]
    target.drop()


def test_rows_on_both_sides_of_the_wrap(start: Start, server: Server, tmp_path: Path) -> None:
    at_source = start(own_identity=True, wal_level="replica", autovacuum=False)
    source, target = database(at_source), create_database(server)
    options, n = options_of(source, target, tmp_path), 1
    copied(options, target)
    pair = Pair(source, target)
    with poller_of(options) as poller:

        def polled() -> None:
            assert poller.step() is not None
            pair.require_equal()

        for xid in STEPS:
            write(source, n := n + 1)
            polled()
            move(at_source, xid=xid)
            write(source, n := n + 1)
            polled()
        with source.connect() as early:
            early.execute("begin; insert into t values (-1, 'begun before the wrap')")
            while next_id(source) < WRAP:
                write(source, n := n + 1)
                polled()
            early.execute("savepoint s; insert into t values (-2, 'after it'); release s; commit")
        write(source, n := n + 1)
        polled()
        move(at_source, "--epoch=5")
        write(source, n := n + 1)
        polled()
    target.drop()


def test_encodings_can_differ(server: Server, tmp_path: Path) -> None:
    source, target = create_database(server, "LATIN1"), create_database(server, "UTF8")
    source.run("create table t (k text primary key, v text)", "create table bag (v text)")
    source.run("insert into t values (chr(228), chr(246)), ('a', 'b')", "insert into bag values (chr(223)), (chr(223))")
    options = options_of(source, target, tmp_path)
    copied(options, target)
    with poller_of(options) as poller:
        for statement in (
            "update t set k = chr(252) where k = chr(228); delete from t where k = 'a'",
            "update bag set v = chr(229) where ctid = (select min(ctid) from bag)",
            "update t set v = v || chr(230); insert into bag values ('')",
        ):
            source.run(statement)
            assert poller.step() is not None
            Pair(source, target).require_equal()
    source.drop()
    target.drop()


def test_an_unlogged_table_of_a_standby_is_refused_and_can_be_excluded(
    start: Start, server: Server, tmp_path: Path
) -> None:
    source, target = database(start(own_identity=True, wal_level="replica")), create_database(server)
    source.run("create unlogged table gone (n int)")
    with standby_of(source) as there:
        wait_for(there, source)
        options = replace(options_of(source, target, tmp_path), source=there.dsn())
        with pytest.raises(UnsupportedServer, match=r"unlogged table public.gone cannot be read on a standby"):
            copied(options, target)
        assert target.admin("select to_regnamespace('tidemark')") == [(None,)]
        copied(replace(options, selection=Selection((), (Pattern("gone"),))), target)
    assert target.run("select count(*) from t") == source.run("select count(*) from t")
    target.drop()


def test_the_command_polls_and_compares_equal(start: Start, server: Server, tmp_path: Path) -> None:
    source, target = database(start(own_identity=True, wal_level="replica")), create_database(server)
    source.admin(f"grant select on all sequences in schema public to {MIRROR}")
    both = source.dsn().reveal(), target.dsn(OWNER).reveal()
    pg_bin = str(source.server.install.home / "bin")
    clone = ("clone", *both, "--name", source.name, "--state", str(tmp_path), "--pg-bin", pg_bin)
    refused = run(*clone, "--endpos", "0/10")
    assert refused.returncode != 0
    assert "needs mode logical: " in refused.stderr
    done = run(*clone)
    assert done.returncode == 0, done.stderr
    assert "complete" in done.stdout
    compared = run("compare", *both)
    assert compared.returncode == 0, compared.stdout
    target.drop()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from tidemark.cli.main import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
