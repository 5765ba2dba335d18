"""A mirror by SELECT alone, of a server without logical decoding, of its standby, and of what becomes of either."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import MIRROR, Database, create_database
from harness.polled import PolledMirror, polling
from harness.postgres import Server
from harness.standby import standby_of, wait_for
from tests.conftest import NEWEST, Start
from tests.pipeline.sync.test_faults import wrapped
from tidemark.errors import SourceBusy
from tidemark.pipeline.poll import poller

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]

TABLES = ("t", "bag")


def database(server: Server) -> Database:
    """Two tables, and a role that may read them and nothing else."""
    server.sql(f"alter role {MIRROR} noreplication")
    db = create_database(server)
    db.run(
        "create table t (id int primary key, v text)",
        "create table bag (n int, v text)",
        "insert into t select i, 'v' from generate_series(1, 200) i",
        "insert into bag select i % 5, 'v' from generate_series(1, 200) i",
        "create unlogged table not_there (n int)",
    )
    return db


def texts(mirror: PolledMirror) -> str:
    assert mirror.poller.seen is not None
    return str(mirror.poller.seen.snapshot)


def change(db: Database, n: int) -> None:
    db.run(
        f"insert into t values ({n} + 1000, 'new')",
        f"update t set v = v || '.' where id % 20 = {n} % 20",
        f"delete from t where id = {n}",
        f"insert into bag values ({n}, 'twice'), ({n}, 'twice')",
        "delete from bag where ctid = (select min(ctid) from bag)",
    )


@pytest.mark.full
def test_a_standby_is_polled_and_waited_for_and_promoted(start: Start, tmp_path: Path, spark: SparkSession) -> None:
    primary = start(wal_level="replica", autovacuum=False)
    db = database(primary)
    with standby_of(db) as on_standby:
        standby = on_standby.server
        wait_for(on_standby, db)
        with polling(on_standby, tmp_path, spark) as mirror:
            assert mirror.require_news(*TABLES).copied == 2
            change(db, 1)
            wait_for(on_standby, db)
            assert mirror.require_news(*TABLES).copied == 0
            ends_in_the_middle(db, on_standby, mirror)
        with polling(db, tmp_path, spark) as mirror:
            standby.sql("select pg_wal_replay_pause()")
            change(db, 2)
            assert mirror.require_news(*TABLES).copied == 0
        with polling(on_standby, tmp_path, spark) as mirror:
            with pytest.raises(SourceBusy, match="the standby has replayed"):
                mirror.poll()
            standby.sql("select pg_wal_replay_resume()")
            change(db, 3)
            wait_for(on_standby, db)
            assert mirror.require_news(*TABLES).copied == 0
            primary.stop("immediate")
            standby.promote()
            assert mirror.require_news(*TABLES).copied == 2
            assert any("timeline" in said for said in mirror.said)
            change(on_standby, 4)
            assert mirror.require_news(*TABLES).copied == 0


def ends_in_the_middle(db: Database, there: Database, mirror: PolledMirror) -> None:
    """A transaction between others ends, and the text of a standby's snapshot stays as it was."""
    with db.connect() as lower, db.connect() as middle, db.connect() as upper:
        for n, session in enumerate((lower, middle, upper)):
            session.execute(f"begin; insert into t values ({n} - 100, 'open'), ({n} - 200, 'open')".encode())
        db.run("update t set v = 'higher' where id = 50")
        wait_for(there, db)
        mirror.poll()
        before = texts(mirror)
        middle.execute("commit")
        wait_for(there, db)
        polled = mirror.require_news(*TABLES)
        assert (polled.changes, texts(mirror)) == (2, before)
    wait_for(there, db)
    mirror.require_equal(*TABLES)


@pytest.mark.full
def test_on_a_standby_what_ran_at_the_snapshot_of_a_poll_is_the_next_ones(
    start: Start, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL forgets which transactions ran when a standby exports its snapshot, if they have subtransactions."""
    db = database(start(wal_level="replica", autovacuum=False))
    with standby_of(db) as on_standby, polling(on_standby, tmp_path, spark) as mirror:
        for n, copied in enumerate((2, 0, 0)):
            with db.connect() as writer:
                writer.execute(b"begin")
                for i in range(70):
                    writer.execute(f"savepoint s; insert into t values ({n} * 100 + {i} - 1000, 'late')".encode())
                writer.execute(f"delete from t where id between {n} * 20 and {n} * 20 + 15; delete from bag".encode())
                db.run(f"update t set v = 'seen' where id = 150 + {n}", f"insert into bag values ({n}, 'seen')")
                wait_for(on_standby, db)

                def commit(writer: psycopg.Connection[Any] = writer) -> None:
                    writer.execute(b"commit")
                    wait_for(on_standby, db)

                with monkeypatch.context() as patch:
                    wrapped(patch, poller, "run_cycle", before=commit)
                    assert mirror.require_news(*TABLES).copied == copied
                assert mirror.poller.seen is not None
                assert mirror.poller.seen.snapshot.omits_running
                latest = tidemark.open(tmp_path / "lake", spark)
                assert latest.table("t").where("v = 'late'").count() == 70 * n
                assert latest.table("bag").count() > 0
            assert mirror.require_news(*TABLES).copied == 0
            assert not list((tmp_path / "lake/_staging").glob("*.copy"))
            db.run("insert into bag select i, 'again' from generate_series(1, 50) i")


@pytest.mark.full
def test_a_source_that_is_set_back_is_read_whole(start: Start, tmp_path: Path, spark: SparkSession) -> None:
    server = start(wal_level="replica", autovacuum=False)
    db = database(server)
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal(*TABLES)
        server.stop()
        shutil.copytree(server.data, tmp_path / "kept")
        server.start()
        mirror.require_equal(*TABLES)
        for n in range(1, 4):
            change(db, n)
        assert mirror.require_news(*TABLES).copied == 0
        server.stop()
        shutil.rmtree(server.data)
        shutil.copytree(tmp_path / "kept", server.data)
        server.start()
        change(db, 4)
        assert mirror.require_news(*TABLES).copied == 2
        assert any("restored to an earlier state" in said for said in mirror.said)
        change(db, 5)
        assert mirror.require_news(*TABLES).copied == 0


@pytest.mark.full
def test_what_a_crash_takes_back_was_not_mirrored(start: Start, tmp_path: Path, spark: SparkSession) -> None:
    """After a crash ids are given again that nobody had written down, to transactions that did other things."""
    server = start(wal_level="replica", autovacuum=False, wal_writer_delay="3s", synchronous_commit="on")
    db = database(server)
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal(*TABLES)
        for how in ("rollback", "set local synchronous_commit = off; commit"):
            server.sql("checkpoint")
            with db.connect() as session:
                session.execute(f"begin; update t set v = 'taken back' where id between 1 and 3; {how}".encode())
                mirror.poll()
                server.stop("crash")
            server.start()
            server.sql("select pg_switch_wal()")
            db.run(f"update t set v = '{how}' where id between 3 and 5")
            mirror.require_equal(*TABLES)
