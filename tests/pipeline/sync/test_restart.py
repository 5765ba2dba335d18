"""A mirror that is started over in place: history stays, the gap is refused, and every table is copied again."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import MIRROR, Database, create_database
from harness.lake import by_postgres, require_rows
from harness.mirrored import connected
from harness.syncing import Synced, publish, syncing
from tests.conftest import NEWEST, Start
from tests.pipeline.sync.history import CREATE, work
from tests.striking import striking
from tidemark.clock import Lsn
from tidemark.errors import (
    DecodingFailed,
    LogDamaged,
    NotAnswerable,
    NotTheSameSource,
    PublicationDiffers,
    SlotInvalidated,
    SlotMissing,
    SourceForked,
    Stopped,
    TidemarkError,
)
from tidemark.lake.lake import Lake
from tidemark.lake.requests import read_restart, request_restart
from tidemark.pipeline.logical import LogicalReplication
from tidemark.pipeline.plan import PipelineOptions
from tidemark.pipeline.restart import restart_if_requested
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.slot import drop_slot_when_free
from tidemark.storage.fail_points import FailPoint

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]

TABLES = ("t", "bag", "root", "empty")
PUBLISHED = ("t", "bag", "leaf", "empty")


def options_of(db: Database, folder: Path) -> PipelineOptions:
    return PipelineOptions(db.dsn(MIRROR), folder / "lake", MirrorNames(db.name))


def restart(db: Database, folder: Path) -> bool:
    options = options_of(db, folder)
    return restart_if_requested(options) is not None


def drop_slot(db: Database, _: Path) -> None:
    with db.session() as session:
        drop_slot_when_free(session, db.names.slot)


def lose_log(_: Database, lake: Path) -> None:
    shutil.rmtree(lake / "_log")


def recreate_publication(db: Database, _: Path) -> None:
    name = db.names.publication
    listed = ", ".join(PUBLISHED)
    generated = ", publish_generated_columns = stored" if db.server.install.major >= 18 else ""
    db.admin(
        f"drop publication {name}",
        f"create publication {name} for table {listed} with (publish = 'insert, update, delete, truncate'{generated})",
    )


def alter_and_back(db: Database, _: Path) -> None:
    name = db.names.publication
    db.admin(f"alter publication {name} set (publish = 'insert')")
    db.run("update t set v = 'never sent' where id = 400")
    db.admin(f"alter publication {name} set (publish = 'insert, update, delete, truncate')")


def hide_wal(db: Database, _: Path) -> None:
    db.hide_wal()


BREAKS: dict[str, tuple[Callable[[Database, Path], None], type[TidemarkError]]] = {
    "slot": (drop_slot, SlotMissing),
    "log": (lose_log, LogDamaged),
    "publication": (recreate_publication, PublicationDiffers),
    "undecodable": (hide_wal, DecodingFailed),
    "altered": (alter_and_back, PublicationDiffers),
}


def mirrored(db: Database, spark: SparkSession, folder: Path) -> Synced:
    """A mirror with some history, stopped."""
    db.run(*CREATE)
    with syncing(db, folder, spark, *PUBLISHED) as synced:
        synced.copy_all()
        synced.note(*TABLES)
        for turn in (1, 2):
            work(db, turn)
            synced.note(*TABLES)
        synced.catch_up()
        return synced


def require_latest(synced: Synced, lsn: Lsn) -> None:
    """What readers are shown latest is what tables held at a position that was noted."""
    (noted,) = (each for each in synced.notes if each.lsn == lsn)
    moment = tidemark.open(synced.options.lake, synced.spark).at()
    for table, (columns, rows) in noted.tables.items():
        require_rows(moment.table(table), columns, rows, f"{table} latest")


def require_started_over(db: Database, spark: SparkSession, folder: Path, before: Synced) -> Synced:
    """Run it until all tables are there again; old positions give what they gave, and the gap is refused."""
    last, lake = before.notes[-1].lsn, Lake.open(before.options.lake)
    assert before.require_noted_here(), "history is readable before anything is copied"
    require_latest(before, last)
    cycle = lake.cycle()
    assert last <= cycle.schema_lsn < cycle.applied_lsn, (
        f"the gap is from {cycle.schema_lsn} to {cycle.applied_lsn}, after {last}"
    )
    gap = Lsn((cycle.schema_lsn.value + cycle.applied_lsn.value) // 2 + 1)
    with pytest.raises(NotAnswerable, match="restarted"):
        tidemark.open(lake.path, spark).at(gap).table("t")
    with syncing(db, folder, spark, folds=False) as again:
        again.until(lambda: again.replication.applier.tables.restarting == frozenset(), 120)
        again.notes = before.notes
        work(db, 9)
        again.note(*TABLES)
        again.require_noted()
        again.fold()
        again.require_noted_here()
    mirror = tidemark.open(lake.path, spark)
    for table in TABLES:
        with pytest.raises(NotAnswerable, match="restarted"):
            mirror.at(gap).table(table).count()
    return again


@pytest.mark.parametrize("broken", BREAKS)
def test_a_mirror_that_cannot_go_on_is_started_over(
    db: Database, spark: SparkSession, tmp_path: Path, broken: str
) -> None:
    before = mirrored(db, spark, tmp_path)
    act, kind = BREAKS[broken]
    act(db, before.options.lake)
    work(db, 3)
    slots = db.admin(f"select slot_name, restart_lsn from pg_replication_slots where database = '{db.name}'")
    with pytest.raises(kind) as refused, syncing(db, tmp_path, spark) as synced:
        synced.until(lambda: False, 60)
    assert re.search(r"tidemark resync \S+ --all", refused.value.hint)
    assert slots == db.admin(f"select slot_name, restart_lsn from pg_replication_slots where database = '{db.name}'")
    request_restart(before.options.lake)
    assert restart(db, tmp_path)
    assert not restart(db, tmp_path), "it is done"
    require_started_over(db, spark, tmp_path, before)


POINTS = (
    FailPoint.RESTART_DECIDED,
    FailPoint.EVENTS_COMMITTED,
    FailPoint.LOG_EMPTIED,
    FailPoint.SLOT_DROPPED,
    FailPoint.LOG_BEGUN,
    FailPoint.CYCLE_COMMITTED,
)


def test_a_restart_that_is_cut_short_anywhere_is_carried_on_by_the_next_one(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    before = mirrored(db, spark, tmp_path)
    drop_slot(db, before.options.lake)
    work(db, 3)
    request_restart(before.options.lake)
    for point in POINTS:
        with striking(point):
            restart(db, tmp_path)
        assert before.require_noted_here(), f"history is readable after it ended at: {point.value}"
        assert read_restart(before.options.lake) is not None
        request_restart(before.options.lake)
    assert restart(db, tmp_path)
    require_started_over(db, spark, tmp_path, before)


def test_a_mirror_is_started_over_while_its_tables_are_still_copied_again(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    before = mirrored(db, spark, tmp_path)
    points = {FailPoint.GENERATION_COMMITTED: 2, FailPoint.EVENTS_COMMITTED: 2, FailPoint.CYCLE_COMMITTED: 1}
    for turn, (point, times) in enumerate(points.items(), 3):
        request_restart(before.options.lake)
        assert restart(db, tmp_path)
        work(db, turn)
        with striking(point, times), syncing(db, tmp_path, spark) as synced:
            synced.until(lambda: False, 120)
        assert before.require_noted_here()
        require_latest(before, before.notes[-1].lsn)
    work(db, 6)
    require_started_over(db, spark, tmp_path, before)


def test_a_slot_whose_wal_is_gone_is_replaced(start: Start, spark: SparkSession, tmp_path: Path) -> None:
    db = create_database(start(max_slot_wal_keep_size="1MB"))
    before = mirrored(db, spark, tmp_path)
    for _ in range(4):
        db.admin("select pg_logical_emit_message(true, 'x', 'y')", "select pg_switch_wal()")
    db.admin("checkpoint")
    with pytest.raises(SlotInvalidated) as refused, syncing(db, tmp_path, spark) as synced:
        synced.until(lambda: False, 60)
    assert re.search(r"tidemark resync \S+ --all", refused.value.hint)
    request_restart(before.options.lake)
    assert restart(db, tmp_path)
    require_started_over(db, spark, tmp_path, before)


def test_a_source_that_was_set_back_is_refused_until_its_positions_are_new(
    start: Start, spark: SparkSession, tmp_path: Path
) -> None:
    """A standby that was promoted below what the lake has: the same positions would mean other commits."""
    primary = start()
    db = create_database(primary)
    db.run(*CREATE)
    names = publish(db, *PUBLISHED)
    standby = primary.standby()
    try:
        standby.promote()
        with syncing(db, tmp_path, spark) as before:
            before.copy_all()
            for turn in (1, 2):
                work(db, turn)
                before.note(*TABLES)
            before.catch_up()
        restored, slots = Database(standby, db.name), "select from pg_replication_slots"
        with (
            pytest.raises(SourceForked, match="left that history") as refused,
            syncing(restored, tmp_path, spark) as synced,
        ):
            synced.until(lambda: False, 60)
        assert re.search(r"tidemark resync \S+ --all", refused.value.hint)
        request_restart(before.options.lake)
        with pytest.raises(SourceForked, match="restored to an earlier state, and would assign the same LSNs"):
            restart(restored, tmp_path)
        assert before.require_noted_here()
        assert not restored.admin(slots)
        assert not any(each.restarted for each in Lake.open(before.options.lake).tables().values())
        while Lsn.parse(restored.admin("select pg_current_wal_lsn()::text")[0][0]) <= before.notes[-1].lsn:
            restored.admin("select pg_logical_emit_message(true, 'x', 'y')", "select pg_switch_wal()")
        restored.admin("select pg_logical_emit_message(true, 'x', 'y')", "select pg_switch_wal()")
        work(restored, 3)
        assert restart(restored, tmp_path)
        require_started_over(restored, spark, tmp_path, before)
        assert names.slot in {name for (name,) in restored.admin("select slot_name from pg_replication_slots")}
    finally:
        standby.remove()


def test_tables_that_were_altered_or_dropped_in_the_gap_are_as_they_are_now(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    before = mirrored(db, spark, tmp_path)
    db.run(
        "alter table t drop v",
        "alter table t add w int default 7",
        "drop table empty",
        "create table empty (id int primary key, late text)",
        "insert into empty values (1, 'new')",
        "create table other partition of root for values from (1000) to (2000)",
        "insert into root values (1500, 'other')",
    )
    db.admin(f"alter publication {db.names.publication} add table empty, other")
    request_restart(before.options.lake)
    assert restart(db, tmp_path)
    assert before.require_noted_here()
    with syncing(db, tmp_path, spark, folds=False) as again:
        again.copy_all()
        again.notes = list(before.notes)
        again.note(*TABLES, "other")
        again.require_noted()


def test_a_start_that_is_refused_leaves_no_slot(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run(*CREATE)
    names = publish(db, *PUBLISHED)
    lake = tmp_path / "lake"
    lake.mkdir()
    Lake(lake, names.mirror, 1, 1, "another", 180000, lake / "_log").create()
    with pytest.raises(NotTheSameSource, match="of database another in cluster 1"), syncing(db, tmp_path, spark):
        pass
    assert not db.admin(f"select from pg_replication_slots where database = '{db.name}'")
    (lake / "_tidemark.json").unlink()
    waits = f"select from pg_stat_activity where application_name = 'tidemark create slot' and datname = '{db.name}'"
    with db.connect() as writer:
        writer.execute("begin; select pg_current_xact_id()")
        with pytest.raises(Stopped, match="no slot is left at the source"):
            LogicalReplication(options_of(db, tmp_path), spark, stopping=lambda: bool(db.admin(waits)))
    assert not db.admin(f"select from pg_replication_slots where database = '{db.name}'")
    with syncing(db, tmp_path, spark) as synced:
        synced.copy_all()


def test_a_handle_that_reads_what_only_the_old_log_had_is_refused(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    before = mirrored(db, spark, tmp_path)
    with syncing(db, tmp_path, spark, folds=False) as synced:
        synced.catch_up()
        db.run("update t set v = 'only in the log'")
        upto, writer = synced.replication.position(), synced.replication.applier
        with connected(synced.options.log_folder) as client:
            client.wait(upto, 60)
        while writer.tables.lsns.mirror < upto:  # definitions are known there, and nothing is applied
            writer.read_catalog()
        writer.record_progress()
        mirror = tidemark.open(synced.options.lake, spark, source=db.dsn(MIRROR))
        latest, now = mirror.at(), mirror.at("now")
        assert writer.cycle.applied_lsn < upto <= latest.lsn
        require_rows(latest.table("bag"), *by_postgres(db, "bag"), "before it is started over")
    request_restart(before.options.lake)
    assert restart(db, tmp_path)
    for stage in ("started over", "copied again"):
        for moment in (latest, now):
            with pytest.raises(NotAnswerable, match="restarted"):
                moment.table("t").count()
        if stage == "started over":
            with syncing(db, tmp_path, spark, folds=False) as again:
                again.until(lambda: again.replication.applier.tables.restarting == frozenset(), 120)
                again.catch_up()
    mirror.close()
