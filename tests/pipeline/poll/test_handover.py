"""From polls to the stream: nothing is lost in between, and what can be followed is not copied."""

from __future__ import annotations

import shutil
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import Database, create_database
from harness.lake import Noted
from harness.mirrored import eventually
from harness.polled import PolledMirror, polling
from harness.syncing import Synced, publish, syncing
from tests.conftest import NEWEST, Start
from tests.pipeline.sync.load import create, writing
from tests.striking import striking
from tidemark.clock import Boundary, Lsn
from tidemark.errors import NotAnswerable, NotPermitted, ObjectExists
from tidemark.lake.status import status_of
from tidemark.pipeline.apply.lake_applier import lake_applier
from tidemark.pipeline.apply.options import ApplyOptions
from tidemark.pipeline.plan import PipelineOptions
from tidemark.pipeline.poll import handover
from tidemark.pipeline.poll.handover import Handover
from tidemark.pipeline.poll.poller import Polled
from tidemark.schema.fingerprint import Fingerprint
from tidemark.storage.fail_points import FailPoint

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]

TABLES = ("keyed", "bag")


def over(mirror: PolledMirror, *, insists: bool = True) -> Handover:
    options = mirror.options
    planned = PipelineOptions(options.source, options.lake, options.names, options.selection)
    return Handover(mirror.poller, planned, insists=insists)


def attempt(mirror: PolledMirror, *, insists: bool = True) -> Polled | None:
    return over(mirror, insists=insists).attempt()


def slots(db: Database) -> list[str]:
    return [name for (name,) in db.admin(f"select slot_name from pg_replication_slots where database = '{db.name}'")]


def handed_over(mirror: PolledMirror) -> Lsn:
    """Someone's short transaction may be in the way for a moment."""
    polled = eventually(lambda: attempt(mirror), 120)
    assert isinstance(polled, Polled)
    return polled.upto


def note_polls(mirror: PolledMirror, synced: Synced) -> None:
    """Have what polls saw compared too, beside what is noted from now on."""
    synced.notes += [Noted(lsn, tables) for lsn, tables in mirror.notes.items()]


def copied(mirror: PolledMirror, synced: Synced) -> list[str]:
    """What was said of tables that were read whole, or copied."""
    return [text for text in (*mirror.said, *synced.said) if "copying all rows" in text or " copied " in text]


@pytest.mark.full
def test_under_load_every_position_before_and_after_is_exact(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    create(db, *TABLES, rows=500)
    db.run(
        "create table inserts (v int)",
        "insert into inserts values (1)",
        "create table root (id int primary key, v text) partition by range (id)",
        "create table leaf partition of root for values from (0) to (100)",
        "insert into root values (1, 'a'), (2, 'b')",
    )
    lake = tmp_path / "lake"
    with writing(db, *TABLES) as written:
        with polling(db, tmp_path, spark) as mirror:
            mirror.poll(*TABLES, "leaf", "inserts")
            mirror.said.clear()
            publish(db, *TABLES, "leaf", inserts="inserts")
            eventually(lambda: written[0] > 40)
            mirror.poll(*TABLES, "leaf", "inserts")
            db.run("delete from root where id = 2", "insert into inserts values (2)")
            present = tidemark.open(lake, spark, source=db.dsn())
            with pytest.raises(NotAnswerable, match="the mirror is polled"):
                present.at("now")
            last = handed_over(mirror)
        with closing(present), syncing(db, tmp_path, spark, folds=False) as synced:
            note_polls(mirror, synced)
            db.run("insert into root values (3, 'c')", "update root set v = 'x'")
            for _ in range(3):
                synced.note_exact(*TABLES, "leaf")
                written[0] = 0
                synced.until(lambda: written[0] > 20)
            synced.require_noted()
            synced.fold()
            assert synced.require_noted_here() > 12
            assert copied(mirror, synced) == []
            first = min(mirror.notes)
            moments = tidemark.open(lake, spark)
            with moments.at(last) as moment:
                assert moment.observed is None
                assert moment.sql("select * from inserts").count() == 2
            with moments.at(first) as moment:
                assert moment.observed is not None
            early, late = (datetime.fromisoformat(str(told.time)) for told in map(moments.time_of, (first, last)))
            assert moments.at(early).lsn == first
            assert moments.at(late).lsn >= moments.time_of(last).lsn == last
            with pytest.raises(NotAnswerable, match="the mirror was polled at"):
                moments.at(snapshot="3:3:", lsn=Lsn(last.value - 1))
            with pytest.raises(NotAnswerable, match="no replica identity"):
                moments.table("inserts").count()
            assert moments.sql("select sum(id) from root").collect()[0][0] == 4
            with pytest.raises(NotAnswerable, match="the mirror was polled at"):
                moments.at(Boundary(first, frozenset({first})))
            with moments.at(Boundary(moments._opened.view().answerable, frozenset({Lsn(last.value - 1)}))) as moment:
                with pytest.raises(NotAnswerable, match=r"keyed was polled with the commit at .* not visible here"):
                    moment.table("keyed")
            assert present.at("now").observed is None
    status = status_of(lake)
    assert status.last_poll is None
    assert not any(each.polled for each in status.tables if each.state == "readable")


@pytest.mark.full
def test_what_cannot_be_followed_is_read_whole_and_said(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    create(db, *TABLES, rows=50)
    publish(db, *TABLES)
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal(*TABLES)
        db.run("alter table keyed alter id type numeric")
        mirror.said.clear()
        handed_over(mirror)
        assert {text.partition(": copying all rows: ")[0] for text in mirror.said if "copying all rows" in text} == {
            "table public.keyed"
        }
    with syncing(db, tmp_path, spark, folds=False) as synced:
        db.run("update keyed set id = id + 1000", "delete from bag where id < 10")
        note_polls(mirror, synced)
        synced.note(*TABLES)
        synced.require_noted()
        assert not any(" copied " in text for text in synced.said)


@pytest.mark.full
def test_a_transaction_from_before_the_publication_is_waited_for_and_polls_go_on(
    db: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it did by then is in no stream: a snapshot that does not see it would lose it."""
    monkeypatch.setattr(handover, "SLOT_WAIT_S", 2.0)
    create(db, *TABLES, rows=50)
    with polling(db, tmp_path, spark) as mirror:
        mirror.poll()
        with db.connect() as early:
            early.execute("begin")
            early.execute("delete from keyed where id < 20")
            publish(db, *TABLES)
            early.execute("delete from bag where id < 20")
            for _ in range(2):
                mirror.said.clear()
                assert attempt(mirror) is None
                assert f"pid {early.info.backend_pid}" in mirror.said[-1]
                assert not slots(db), "nothing is left behind that holds back WAL"
                assert not (tmp_path / "lake/_log").exists()
                db.run("update bag set v = 'later' where id = 30")
                mirror.require_news(*TABLES)
            early.execute("commit")
        handed_over(mirror)
    with syncing(db, tmp_path, spark, folds=False) as synced:
        note_polls(mirror, synced)
        synced.note(*TABLES)
        synced.require_noted()


@pytest.mark.full
def test_a_role_that_may_not_publish_is_told_and_polls_go_on(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    create(db, *TABLES, rows=50)
    with polling(db, tmp_path, spark) as mirror:
        mirror.poll()
        with pytest.raises(NotPermitted, match="create publication"):
            attempt(mirror)
        said = len(mirror.said)
        assert attempt(mirror, insists=False) is None
        assert mirror.said[said:] == [], "the reason was reported when the mode was chosen"
        db.run("delete from bag where id < 20")
        mirror.require_news(*TABLES)
    assert not slots(db)


@pytest.mark.full
def test_cut_off_anywhere_it_is_polled_still_or_follows_the_stream(
    db: Database, tmp_path: Path, spark: SparkSession
) -> None:
    create(db, *TABLES, rows=50)
    publish(db, *TABLES)
    with polling(db, tmp_path, spark) as mirror:
        mirror.poll(*TABLES)
    for point in (FailPoint.PLANNED, FailPoint.TABLE_COMMITTED, FailPoint.EVENTS_COMMITTED):
        db.run("update keyed set v = v || '!'", "delete from bag where id in (select min(id) from bag)")
        with polling(db, tmp_path, spark) as cut, striking(point):
            attempt(cut)
        assert status_of(tmp_path / "lake").last_poll is not None, point
        mirror.require_noted()
        with polling(db, tmp_path, spark) as again:
            again.require_news(*TABLES)
    db.run("update keyed set v = v || '?'")
    with polling(db, tmp_path, spark) as cut, striking(FailPoint.CYCLE_COMMITTED):
        attempt(cut)
    assert status_of(tmp_path / "lake").last_poll is None
    with syncing(db, tmp_path, spark, folds=False) as synced:
        db.run("delete from keyed where id < 20")
        note_polls(mirror, synced)
        note_polls(again, synced)
        synced.note(*TABLES)
        synced.require_noted()


@pytest.mark.full
def test_a_source_that_is_behind_the_mirror_is_waited_for(start: Start, tmp_path: Path, spark: SparkSession) -> None:
    """What was told of the mirror lies above where the source is: nothing of its stream could be put there."""
    server = start(autovacuum=False)
    db = create_database(server)
    create(db, *TABLES, rows=50)
    publish(db, *TABLES)
    with polling(db, tmp_path, spark) as mirror:
        server.stop()
        shutil.copytree(server.data, tmp_path / "kept")
        server.start()
        db.run("update keyed set v = 'lost'")
        db.admin("select pg_switch_wal()")
        mirror.poll()
        server.stop()
        shutil.rmtree(server.data)
        shutil.copytree(tmp_path / "kept", server.data)
        server.start()
        assert attempt(mirror) is None
        assert f"the mirror is at {mirror.poller.cycle.applied_lsn}" in mirror.said[-1]
        mirror.require_news(*TABLES)
        assert attempt(mirror) is None
        db.admin("select pg_switch_wal()", "checkpoint")
        handed_over(mirror)
    with syncing(db, tmp_path, spark, folds=False) as synced:
        db.run("delete from bag where id < 20")
        synced.require_equal(*TABLES)


@pytest.mark.full
def test_what_a_killed_attempt_left_is_removed_and_what_is_not_ours_stays(
    db: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(db, *TABLES, rows=50)
    publish(db, *TABLES)
    with polling(db, tmp_path, spark) as mirror:
        mirror.poll()
        with striking(FailPoint.PLANNED), monkeypatch.context() as killed:
            killed.setattr(Handover, "discard", lambda _: None)
            attempt(mirror)
    assert slots(db) == [db.names.slot]
    with pytest.raises(NotAnswerable, match="was written by polling, and a log cannot be applied"):
        lake_applier(ApplyOptions(db.dsn(), tmp_path / "lake/_log", tmp_path / "lake", db.names), spark)
    with polling(db, tmp_path, spark) as mirror:
        over(mirror).discard()
        assert slots(db) == []
        assert not (tmp_path / "lake/_log").exists()
        (tmp_path / "lake/_log").mkdir()
        (tmp_path / "lake/_log/file").touch()
        with pytest.raises(ObjectExists, match="_log: the directory is not empty"):
            attempt(mirror)
        assert (tmp_path / "lake/_log/file").exists()
        (tmp_path / "lake/_log/file").unlink()
        db.admin(f"select pg_create_logical_replication_slot('{db.names.slot}', 'pgoutput')")
        with pytest.raises(ObjectExists, match=f"replication slot {db.names.slot} already exists"):
            attempt(mirror)
        assert slots(db) == [db.names.slot]
        db.admin(f"select pg_drop_replication_slot('{db.names.slot}')")
        handed_over(mirror)
        over(mirror).discard()
    assert slots(db) == [db.names.slot]


@pytest.mark.full
def test_a_table_published_while_the_snapshot_is_made_is_copied(
    db: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a transaction did to it before that is in no stream, and may not be in the snapshot."""
    create(db, *TABLES, rows=50)
    publish(db, *TABLES)
    published = Handover._published

    def and_then(self: Handover) -> dict[int, Fingerprint]:
        before = published(self)
        monkeypatch.setattr(Handover, "_published", published)
        db.run("create table late (id int primary key)", "insert into late values (1)")
        db.admin(f"alter publication {db.names.publication} add table late")
        return before

    with polling(db, tmp_path, spark) as mirror:
        mirror.poll()
        monkeypatch.setattr(Handover, "_published", and_then)
        handed_over(mirror)
    with syncing(db, tmp_path, spark, folds=False) as synced:
        synced.copy_all()
        assert next(each for each in synced.said if " copied " in each).startswith("table public.late: copied")
        db.run("insert into late values (2)")
        synced.require_equal(*TABLES, "late")
