"""Apply, copy and poll write through the sink alone: with one that only records, they leave no lake behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.database import MIRROR, Database
from harness.lake import Lakeside, lakeside
from harness.mirrored import eventually, receiving
from harness.recording import RecordingSink, Row
from tests.conftest import NEWEST
from tidemark.clock import Lsn
from tidemark.errors import SparkSettingsDiffer
from tidemark.lake.registers import Cycle, Cycles, ExpiryRegister
from tidemark.pipeline.apply.applier import StreamApplier
from tidemark.pipeline.copy.copying import Copying, Failed
from tidemark.pipeline.copy.planning import CopyOptions
from tidemark.pipeline.copy.progress import CopyProgress
from tidemark.pipeline.poll.options import PollOptions
from tidemark.pipeline.poll.poller import Poller
from tidemark.pipeline.sinks.sink import STAGING, TableCopy
from tidemark.schema.selection import Selection

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]
FAR = Lsn(1 << 60)
CHANGES = (
    "insert into t values (4, 'four')",
    "update t set v = 'TWO' where id = 2",
    "update t set id = 11 where id = 1",
    "delete from t where id = 3",
)


def by_server(db: Database, table: str) -> dict[int, Row]:
    return {row[0]: row for row in db.admin(f"select id, v from {table}")}


def mirrored_rows(sink: RecordingSink, name: str) -> dict[int, Row]:
    (path,) = {event.path for event in sink.recorded if event.fingerprint.name == name}
    return sink.contents(path)


def decoy(folder: Path) -> set[Path]:
    """Make registers with other watermarks where the lake would be; return all files that are there then."""
    Cycles(folder / "lake").record(Cycle(FAR, FAR))
    ExpiryRegister(folder / "lake").record(FAR)
    return files(folder)


def files(folder: Path) -> set[Path]:
    """All files of Delta tables, and of data."""
    found = {path for path in folder.rglob("*") if path.suffix in (".json", ".parquet", ".crc")}
    return {path for path in found if STAGING not in path.parts and "log" not in path.relative_to(folder).parts[:1]}


def copy_all(side: Lakeside, sink: RecordingSink, applier: StreamApplier) -> None:
    """Copy the tables that need a copy, beside the applier, as sync does."""
    options = CopyOptions(side.options.source, side.options.log, side.options.names, 2)
    with Copying(options, sink, side.spark, CopyProgress()) as copying:
        wanted = eventually(lambda: applier.read_catalog() and applier.tables.to_copy())
        for oid in wanted:
            applier.tables.start_copy(oid, applier.cycle.applied_lsn)
        copying.start(wanted, {oid: applier.tables.history(oid) for oid in wanted})
        waiting: list[TableCopy] = []
        while len(waiting) < len(wanted):
            copying.wait(1)
            for result in copying.results():
                assert not isinstance(result, Failed), result.error
                waiting.append(result)
        applier.catch_up(max(copy.base.lsn for copy in waiting))
        assert not list(applier.take(waiting)), "the sink refuses the first attempt"
        taken = [copy for copy, accepted in applier.take(waiting) if accepted]
        assert [copy.name for copy in taken] == ["public.t"]
        assert taken[0].base.floor in {hold.lsn for hold in sink.holds}, "a copy is held until it is adopted"
        for copy in taken:
            copying.settled(copy.fingerprint.oid)
    assert not sink.holds


def test_the_stream_and_copies_need_nothing_but_the_sink(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    db.run(
        "create table t (id int primary key, v text)",
        "create table empty (id int primary key, v text)",
        "insert into t values (1, 'one'), (2, 'two'), (3, null)",
    )
    before = decoy(tmp_path)
    side = lakeside(db, tmp_path, spark, "t", "empty")
    with receiving(side.mirror):
        side.mirror.catch_up()
        with db.session() as session:
            sink = RecordingSink(tmp_path / "sink", session.version_num)
        with StreamApplier(side.options, spark, sink) as applier:
            applier.catch_up(side.position())
            copy_all(side, sink, applier)
            assert mirrored_rows(sink, "t") == by_server(db, "t")
            db.run(*CHANGES, "insert into empty values (1, 'one')")
            applier.catch_up(side.position())
            assert mirrored_rows(sink, "t") == by_server(db, "t") == {2: (2, "TWO"), 4: (4, "four"), 11: (11, "one")}
            assert mirrored_rows(sink, "empty") == by_server(db, "empty") == {1: (1, "one")}
            db.run("truncate t", "insert into t values (1, 'again')")
            applier.catch_up(side.position())
            assert mirrored_rows(sink, "t") == {1: (1, "again")}
        assert sink.closed
        assert sink.published > 0
        sink.closed = False
        unpinned = spark.newSession()
        unpinned.conf.set("spark.sql.session.timeZone", "America/New_York")
        with pytest.raises(SparkSettingsDiffer):
            StreamApplier(side.options, unpinned, sink)
        assert sink.closed, "a sink is closed also if the applier cannot start"
        with StreamApplier(side.options, spark, sink) as again:
            db.run("delete from t")
            again.catch_up(side.position())
        assert mirrored_rows(sink, "t") == {}
    assert files(tmp_path) == before


@pytest.mark.full
def test_polls_need_nothing_but_the_sink(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    db.run("create table t (id int primary key, v text)", "insert into t values (1, 'one'), (2, 'two'), (3, null)")
    before = decoy(tmp_path)
    with db.session() as session:
        sink = RecordingSink(tmp_path / "sink", session.version_num)
    options = PollOptions(db.dsn(MIRROR), tmp_path / "lake", db.names, Selection())
    with Poller(options, spark, sink) as poller:
        polled = poller.step()
        assert polled is not None
        assert polled.copied == 1
        assert mirrored_rows(sink, "t") == by_server(db, "t")
        for statements in (CHANGES, ("delete from t where id <> 2",)):
            db.run(*statements)
            polled = poller.step()
            assert polled is not None
            assert polled.copied == 0, "it is followed"
            assert mirrored_rows(sink, "t") == by_server(db, "t"), statements
    assert sink.closed
    sink.closed = False
    with Poller(options, spark, sink) as again:
        db.run("update t set v = 'last'")
        polled = again.step()
        assert polled is not None
        assert polled.copied == 0, "the sink has what the last poll saw"
        assert mirrored_rows(sink, "t") == {2: (2, "last")}
    assert sink.closed
    assert sink.cycle.applied_lsn > Lsn.ZERO
    assert not sink.holds
    assert files(tmp_path) == before
