"""Slots: ours, bounded in their waiting, and snapshots that are exact positions."""

import threading
import time

import pytest

from harness.database import MIRROR, Database, create_database
from harness.decoded import call_witness
from harness.load import inserting
from harness.logs import logged
from harness.mirrored import eventually
from tests.conftest import NEWEST, Start
from tidemark import errors
from tidemark.errors import Retry, SlotBlocked, policy_of
from tidemark.postgres.blockers import blockers_of, lasting_writers
from tidemark.postgres.session import Session
from tidemark.postgres.slot import SlotWait, create_slot, drop_slot, exact_snapshot, read_slot

pytestmark = pytest.mark.quick


def test_the_mirrors_slot_is_made_read_and_dropped(db: Database) -> None:
    name = db.names.slot
    created = create_slot(db.dsn(), name, SlotWait(10))
    with db.session() as session:
        slot = read_slot(session, name)
        assert slot is not None
        assert (slot.plugin, slot.database, slot.temporary, slot.two_phase) == ("pgoutput", db.name, False, False)
        assert (slot.confirmed_flush, created.snapshot_id) == (created.consistent_point, None)
        if db.server.install.major >= 17:
            assert session.row("select failover from pg_replication_slots where slot_name = %s", [name]) == (True,)
        with pytest.raises(errors.ObjectExists, match="already exists"):
            create_slot(db.dsn(), name, SlotWait(10))
        drop_slot(session, name)
        assert read_slot(session, name) is None
        drop_slot(session, name)


def test_a_slot_that_is_not_ours_is_neither_made_nor_dropped(db: Database) -> None:
    db.admin("select pg_create_logical_replication_slot('theirs', 'pgoutput')")
    with db.session() as session:
        with pytest.raises(errors.NotOurs):
            drop_slot(session, "theirs")
        with pytest.raises(errors.NotOurs):
            create_slot(db.dsn(), "mine", SlotWait(1))
        assert read_slot(session, "theirs") is not None


def test_a_slot_in_use_is_not_dropped_and_its_user_is_named(db: Database) -> None:
    create_slot(db.dsn(), db.names.slot, SlotWait(10))
    with Session.open(db.dsn(), "use", replication=True) as user, db.session() as session:
        pgconn = user.connection.pgconn
        db.run("create table t (a int primary key)", "create publication p for table t")
        command = f"START_REPLICATION SLOT {db.names.slot} LOGICAL 0/0 (proto_version '1', publication_names 'p')"
        pgconn.send_query(command.encode())
        pid = user.connection.info.backend_pid
        while (slot := read_slot(session, db.names.slot)) and slot.active_pid != pid:
            time.sleep(0.01)
        with pytest.raises(errors.ObjectInUse, match=str(pid)) as caught:
            drop_slot(session, db.names.slot)
        assert policy_of(caught.value).retry is Retry.BACK_OFF


def test_an_exact_snapshot_shows_the_commits_at_or_below_its_lsn_and_no_others(db: Database) -> None:
    db.run("create table t (a text)")
    witness = call_witness(db)
    seen = []
    with inserting(db, clients=4):
        for _ in range(8):
            with exact_snapshot(db.dsn(), wait_s=20) as exact, db.session() as session:
                with session.transaction(snapshot_id=exact.shared.name):
                    seen.append((exact.lsn, {row[0] for row in session.rows("select a from public.t")}))
    commits = witness.commits()
    assert len(commits) > 50
    for lsn, rows in seen:
        assert rows == {row for commit in commits if commit.lsn <= lsn for row in commit.inserted}
    assert len({len(rows) for _, rows in seen}) > 1, "the load was too gentle to tell positions apart"


def test_no_slot_is_left_once_the_snapshot_is_held_and_several_sessions_share_it(db: Database) -> None:
    db.run("create table t (a int)", "insert into t values (1)")
    with exact_snapshot(db.dsn(), wait_s=10) as exact:
        with db.session() as session:
            wait_until_gone(session, db)
        db.run("insert into t values (2)", "analyze t")
        with db.session() as one, db.session() as two:
            with one.transaction(snapshot_id=exact.shared.name), two.transaction(snapshot_id=exact.shared.name):
                assert [s.rows("select a from public.t") for s in (one, two)] == [[(1,)], [(1,)]]
                snapshots = {s.row("select pg_current_snapshot()::text") for s in (one, two)}
                assert len(snapshots) == 1


def test_a_snapshot_whose_holder_is_gone_cannot_be_imported(db: Database) -> None:
    with exact_snapshot(db.dsn(), wait_s=10) as exact:
        pass
    with db.session() as session:
        holders = "select from pg_stat_activity where datname = '{}' and application_name = 'tidemark snapshot'"
        eventually(lambda: not db.admin(holders.format(db.name)))
        for gone in (exact.shared.name, "00000003-0000001B-1", "no snapshot at all"):
            with pytest.raises(errors.ObjectMissing, match="cannot be imported"):
                session.begin(snapshot_id=gone)
        assert session.row("select 1") == (1,), "the session is still good"


def test_who_blocks_a_slot_is_named_and_nothing_is_left_of_the_attempt(db: Database) -> None:
    db.run("create table t (a int)")
    with db.connect() as writer, db.session() as session:
        writer.execute("begin; insert into t values (1)")
        with pytest.raises(SlotBlocked, match=f"pid {writer.info.backend_pid} of app") as caught:
            create_slot(db.dsn(), db.names.slot, SlotWait(2))
        assert [(b.pid, b.since) for b in caught.value.blockers] == [(writer.info.backend_pid, None)]
        with pytest.raises(SlotBlocked), exact_snapshot(db.dsn(), wait_s=0.3):
            pass
        assert policy_of(caught.value).retry is Retry.BACK_OFF
        db.admin(f"grant pg_read_all_stats to {MIRROR}")
        try:
            with pytest.raises(SlotBlocked, match=", since ") as aged:
                create_slot(db.dsn(), db.names.slot, SlotWait(2))
            assert aged.value.blockers[0].since is not None
        finally:
            db.admin(f"revoke pg_read_all_stats from {MIRROR}")
        wait_until_gone(session, db)


def wait_until_gone(session: Session, db: Database) -> None:
    """A cancelled walsender drops what it had begun on its way out."""
    deadline = time.monotonic() + 60
    while session.row("select count(*) from pg_replication_slots where database = %s", [db.name]) != (0,):
        assert time.monotonic() < deadline, "the attempt left a slot behind"
        time.sleep(0.02)


def test_a_slot_is_made_as_soon_as_the_blocker_ends(db: Database) -> None:
    db.run("create table t (a int)")
    with db.connect() as writer:
        writer.execute("begin; insert into t values (1)")
        release = threading.Timer(0.5, writer.execute, ["commit"])
        release.start()
        with exact_snapshot(db.dsn(), wait_s=20) as exact, db.session() as session:
            with session.transaction(snapshot_id=exact.shared.name):
                assert session.rows("select a from public.t") == [(1,)], "it waited, so it sees the row"
        release.join()


@NEWEST
def test_who_is_waited_for_is_reported_again_while_it_lasts_and_a_stop_is_heeded(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.postgres.slot.REPORT_S", 0.5)
    with logged("tidemark.postgres") as reports, db.connect() as writer, db.session() as session:
        pid = writer.info.backend_pid
        writer.execute("begin; select pg_current_xact_id()")
        with pytest.raises(errors.Stopped, match="was not created"):
            create_slot(db.dsn(), db.names.slot, SlotWait(None, lambda: len(reports) == 3))
        wait_until_gone(session, db)
    assert [each for each in reports if f"waiting for running transactions: pid {pid} of app" in each] == reports
    assert f"select pg_terminate_backend({pid});" in reports[0]


def test_a_slot_that_is_made_just_when_we_give_up_is_ours_after_all(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocker ends while we ask who it is: the command has succeeded, and says so."""
    db.run("create table t (a int)")
    with db.connect() as writer:
        writer.execute("begin; insert into t values (1)")

        def end_the_blocker(session: Session, pid: int) -> tuple[errors.Blocker, ...]:
            found = blockers_of(session, pid)
            writer.execute("commit")
            while (slot := read_slot(session, db.names.slot)) is None or slot.active_pid is not None:
                time.sleep(0.01)  # it is let go when the command is done
            return found

        monkeypatch.setattr("tidemark.postgres.slot.blockers_of", end_the_blocker)
        created = create_slot(db.dsn(), db.names.slot, SlotWait(0.3))
    with db.session() as session:
        slot = read_slot(session, db.names.slot)
        assert slot is not None
        assert slot.confirmed_flush == created.consistent_point


def test_an_interrupted_wait_leaves_nothing_at_the_source(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.run("create table t (a int)")

    def interrupt(*_: object) -> bool:
        eventually(lambda: db.admin(f"select 1 from pg_replication_slots where database = '{db.name}'"))
        raise KeyboardInterrupt

    with db.connect() as writer, db.session() as session:
        writer.execute("begin; insert into t values (1)")
        monkeypatch.setattr("tidemark.postgres.slot.answered", interrupt)
        with pytest.raises(KeyboardInterrupt):
            create_slot(db.dsn(), db.names.slot, SlotWait(9))
        wait_until_gone(session, db)
        with pytest.raises(KeyboardInterrupt), exact_snapshot(db.dsn(), wait_s=9):
            pass
        wait_until_gone(session, db)


def test_a_prepared_transaction_is_named_by_its_gid(db: Database) -> None:
    db.run("create table t (a int)")
    with db.connect() as writer, db.session() as session:
        writer.execute("begin; insert into t values (1); prepare transaction 'payroll'")
        try:
            with pytest.raises(SlotBlocked, match="prepared transaction 'payroll' of app, since"):
                create_slot(db.dsn(), db.names.slot, SlotWait(2))
            assert [w.gid for w in lasting_writers(session, 0.05)] == ["payroll"]
        finally:
            writer.execute("rollback prepared 'payroll'")


def test_rights_and_levels_that_are_lacking_are_told_apart(db: Database, start: Start) -> None:
    with pytest.raises(errors.NotPermitted):
        create_slot(db.dsn("app"), db.names.slot, SlotWait(1))
    low = create_database(start(wal_level="replica"))
    with pytest.raises(errors.UnsupportedServer, match="wal_level"):
        create_slot(low.dsn(), low.names.slot, SlotWait(1))
    full = create_database(start(max_replication_slots=1))
    create_slot(full.dsn(), full.names.slot, SlotWait(10))
    with pytest.raises(errors.SourceBusy, match="all replication slots are in use"):
        create_slot(full.dsn(), "tidemark_second", SlotWait(10))


def test_on_a_standby_an_exact_snapshot_is_had_from_16_on(start: Start) -> None:
    primary = start()
    database = create_database(primary)
    database.run("create table t (a int)", "insert into t values (1)")
    standby = primary.standby({"hot_standby_feedback": True})
    there = Database(standby, database.name)
    try:
        if primary.install.major < 16:
            with pytest.raises(errors.UnsupportedServer), exact_snapshot(there.dsn(), wait_s=2):
                pass
            return
        with pytest.raises(SlotBlocked, match="running transactions") as caught:
            for _ in range(2):  # the primary tells who is running every 15 s by itself
                with exact_snapshot(there.dsn(), wait_s=0.2):
                    pass
        assert "pg_log_standby_snapshot" in caught.value.hint
        stop = threading.Event()

        def log_snapshots() -> None:
            while not stop.wait(0.05):
                primary.sql("select pg_log_standby_snapshot()")

        logger = threading.Thread(target=log_snapshots)
        logger.start()
        try:
            with exact_snapshot(there.dsn(), wait_s=20) as exact, there.session() as session:
                with session.transaction(snapshot_id=exact.shared.name):
                    assert session.rows("select a from public.t") == [(1,)]
        finally:
            stop.set()
            logger.join()
    finally:
        standby.remove()
