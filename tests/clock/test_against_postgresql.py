"""The clock against PostgreSQL itself: a boundary sees what a session saw, also where no LSN would."""

import threading
import time

import pytest

from harness.database import Database, create_database
from harness.decoded import Commit, call_witness
from harness.load import inserting
from harness.mirrored import eventually
from tests.conftest import Start
from tidemark.clock import Boundary, Lsn, Snapshot, Xid8
from tidemark.postgres.session import Session

pytestmark = pytest.mark.quick

MOMENT = "select pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, array(select a from public.t)"


def boundary(snapshot: Snapshot, lsn: Lsn, commits: list[Commit]) -> Boundary:
    return Boundary.of_snapshot(snapshot, lsn, [(snapshot.xmax.widen(c.xid), c.lsn) for c in commits])


def shown(commits: list[Commit], at: Boundary) -> set[str]:
    return {row for commit in commits if at.sees(commit.lsn) for row in commit.inserted}


def look(session: Session) -> tuple[Snapshot, Lsn, set[str]]:
    snapshot, lsn, rows = session.row(MOMENT)
    return Snapshot.parse(snapshot), Lsn.parse(lsn), set(rows)


def test_under_load_a_boundary_shows_what_each_session_saw(db: Database) -> None:
    db.run("create table t (a text)")
    witness = call_witness(db)
    moments = []
    with inserting(db, clients=6), db.session() as session:
        eventually(lambda: session.row("select count(*) > 200 from public.t")[0])
        moments = [look(session) for _ in range(150)]
    commits = witness.commits()
    assert len(commits) > 100
    for snapshot, lsn, rows in moments:
        assert shown(commits, boundary(snapshot, lsn, commits)) == rows


def test_a_commit_logged_and_not_yet_visible_has_no_lsn_that_tells_of_it(start: Start) -> None:
    """T1 hangs after its record is flushed, waiting for a standby that never comes; T2, logged later, is visible."""
    server = start(synchronous_standby_names="ghost", synchronous_commit="local")
    db = create_database(server)
    db.run("create table t (a text)")
    witness = call_witness(db)

    def commit_and_hang() -> None:
        with db.connect() as first:
            first.execute("begin; set local synchronous_commit = on; insert into t values ('T1')")
            first.execute("commit")

    hanging = threading.Thread(target=commit_and_hang)
    hanging.start()
    try:
        while not server.sql("select 1 from pg_stat_activity where wait_event = 'SyncRep'"):
            time.sleep(0.01)
        db.run("insert into t values ('T2')")
        with db.session() as session:
            snapshot, lsn, rows = look(session)
        commits = witness.commits()
        assert [c.inserted for c in commits] == [("T1",), ("T2",)]
        assert rows == {"T2"}
        assert shown(commits, boundary(snapshot, lsn, commits)) == {"T2"}
        prefixes = [shown(commits, Boundary(at)) for at in (Lsn.ZERO, *(c.lsn for c in commits))]
        assert rows not in prefixes
    finally:
        server.sql("select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'")
        hanging.join()


def test_our_widening_agrees_with_the_servers_own_xid8(db: Database) -> None:
    full, low = db.run("select pg_current_xact_id()::text, pg_current_xact_id()::xid::text")[0]
    assert Xid8.parse(full).widen(int(low)) == Xid8.parse(full)


def test_text_of_lsns_and_snapshots_agrees_with_the_server(db: Database) -> None:
    for value in (0, 1, 0x16B3748, 0xFFFFFFFF, 0x1_0000_0000, 2**64 - 1):
        text = db.run(f"select ('0/0'::pg_lsn + {value}::numeric)::text")[0][0]
        assert Lsn.parse(text) == Lsn(value)
    for text in ("10:20:", "10:20:10,14", "10:20:14,14", "4294967290:4294967310:4294967300"):
        assert str(Snapshot.parse(text)) == db.run(f"select '{text}'::pg_snapshot::text")[0][0]
