"""What is read of a mirror that polls: as exact as the poll that saw it, and said to be so."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import MIRROR, Database, add_roles, create_database
from harness.mirrored import eventually
from harness.outside import path_of
from harness.polled import polling
from harness.postgres import Install, start_server
from harness.shell import NO_SPARK, here
from harness.shell import tidemark as shell
from harness.standby import standby_of, wait_for
from tests.conftest import NEWEST
from tests.mirror.conftest import SETTINGS, set_in
from tests.pipeline.sync.load import create, writing
from tidemark.clock import Lsn, Snapshot
from tidemark.errors import ExitCode, NotAnswerable, ObjectMissing
from tidemark.lake.controls import Controls
from tidemark.lake.polls import read_polls
from tidemark.lake.snapshot_requests import ExportedSnapshot, SnapshotRequest, answer_request, read_requests
from tidemark.mirror.compare.comparison import CompareOptions, Comparison
from tidemark.mirror.compare.narrowing import Verdict
from tidemark.pipeline.plan import PipelineOptions
from tidemark.pipeline.poll.run import run_polls
from tidemark.pipeline.poll.snapshot_exports import SnapshotExports
from tidemark.pipeline.poll.snapshot_session import open_poll_snapshot
from tidemark.postgres.capability import Mode

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]


@dataclass(frozen=True)
class Told:
    """A lake that three polls were told to; the last one did not look for rows that are gone."""

    lake: Path
    polls: tuple[Lsn, Lsn, Lsn]

    def copy(self, folder: Path) -> Path:
        """One that may be changed."""
        return Path(shutil.copytree(self.lake, folder / "copy"))


@pytest.fixture(scope="module")
def few(spark: SparkSession) -> Iterator[SparkSession]:
    """With few shuffle partitions, since these tables are small."""
    with set_in(spark, SETTINGS):
        yield spark


@pytest.fixture(scope="module")
def plain(install: Install) -> Iterator[Database]:
    """A source as many are: no logical decoding, and a role that may read and nothing else."""
    server = start_server(install, {"wal_level": "replica", "autovacuum": False})
    add_roles(server)
    server.sql(f"alter role {MIRROR} noreplication")
    yield create_database(server)
    server.remove()


@pytest.fixture(scope="module")
def told(plain: Database, few: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Told:
    plain.run(
        "create table t (id int primary key, v text)",
        "insert into t values (1, 'one'), (2, 'two'), (3, 'three')",
        "create table bag (v int)",
        "insert into bag values (1), (1)",
    )
    folder = tmp_path_factory.mktemp("told")
    with polling(plain, folder, few) as mirror:
        polls = [mirror.poll()]
        plain.run("update t set v = 'uno' where id = 1", "delete from t where id = 2")
        polls.append(mirror.poll())
    plain.run("insert into t values (4, 'four')", "delete from t where id = 3")
    with polling(plain, folder, few, reconcile_every=2) as mirror:
        polls.append(mirror.poll())
    first, second, third = (each.upto for each in polls if each is not None)
    return Told(mirror.options.lake, (first, second, third))


def rows_at(told: Told, at: str, *more: str) -> tuple[list[str], str]:
    """What a query gives, and what it says of it."""
    asked = here("query", str(told.lake), "select id from t order by id", "--format", "csv", "--at", at, *more)
    assert asked.returncode == ExitCode.OK, asked.stderr
    return asked.stdout.splitlines()[1:], asked.stderr


@pytest.mark.full
def test_a_query_says_by_which_poll_and_which_deletes_it_may_lack(told: Told, few: SparkSession) -> None:
    first, second, third = told.polls
    rows, said = rows_at(told, "latest")
    assert rows == ["1", "3", "4"], "nobody looked whether 3 is gone"
    assert said.count("\n") == 1
    assert said.startswith(f"tidemark: as of the poll at {third} (2")
    assert f"rows deleted after {second} may still be included" in said
    rows, said = rows_at(told, str(second))
    assert rows == ["1", "3"]
    assert said.startswith(f"tidemark: as of the poll at {second} (2")
    assert "deletes" not in said
    assert "deletes" not in rows_at(told, str(first))[1]
    between = Lsn(third.value - 1)
    assert rows_at(told, str(between))[0] == ["1", "3"], "what the poll before it saw"
    mirror = tidemark.open(told.lake, few)
    with mirror.at(between) as moment:
        assert moment.observed is not None
        assert (moment.observed.lsn, moment.observed.is_reconciled) == (second, True)
    refused = here("query", str(told.lake), "select 1", "--at", str(Lsn(third.value + 1)))
    assert refused.returncode == ExitCode.NOT_ANSWERABLE


@pytest.mark.full
def test_now_and_a_snapshot_are_refused_with_the_reason(told: Told, plain: Database) -> None:
    source = ["--source", plain.dsn().reveal()]
    for asked in (["--at", "now", *source], ["--at", str(told.polls[1]), "--snapshot", "1:2:"]):
        refused = here("query", str(told.lake), "select 1", *asked)
        assert refused.returncode == ExitCode.NOT_ANSWERABLE
        assert f"cannot be read at `now` or at a snapshot; it has the poll at {told.polls[2]}" in refused.stderr
        assert "Use `latest`" in refused.stderr


@pytest.mark.full
def test_a_time_means_the_last_poll_up_to_it_and_back(told: Told) -> None:
    lake, (first, second, third) = str(told.lake), told.polls
    polls = read_polls(told.lake)
    one, two, three = (poll.time for lsn in told.polls if (poll := polls.at(lsn)) is not None)
    assert one < two < three
    tick = timedelta(microseconds=1)
    for time, lsn in ((one, first), (two - tick, first), (two, second), (three, third)):
        found = here("when", lake, time.isoformat(), "--json")
        plain = json.loads(found.stdout)
        assert (plain["lsn"], plain["commit_lsn"], plain["xid"], plain["polled"]) == (str(lsn), str(lsn), None, True)
        back = json.loads(here("when", lake, str(lsn), "--json").stdout)
        assert json.loads(here("when", lake, back["latest_time"], "--json").stdout)["lsn"] == str(lsn)
    assert rows_at(told, (three - tick).isoformat())[0] == ["1", "3"]
    lines = shell("when", lake, str(Lsn(third.value - 1)), program=NO_SPARK)
    assert lines.stdout.splitlines()[1] == f"poll     {second}  at {two.isoformat(' ')}", lines.stderr
    for wrong, why in (
        ((one - tick).isoformat(), "before the first poll"),
        ((three + tick).isoformat(), f"is after the last poll, the poll at {third}"),
        (str(Lsn(first.value - 1)), "before the first poll"),
    ):
        refused = here("when", lake, wrong)
        assert refused.returncode == ExitCode.NOT_ANSWERABLE
        assert why in refused.stderr


def test_status_says_how_far_polls_came_and_what_they_left(told: Told) -> None:
    _, second, third = told.polls
    shown = shell("status", str(told.lake), program=NO_SPARK)
    assert shown.returncode == ExitCode.OK, shown.stderr
    _, _, mode, writer, polled, deletes, *_ = shown.stdout.splitlines()
    assert mode == "Mode:          polling: each table is as of the last poll"
    assert writer == "Writer:        not running"
    assert polled.startswith(f"Last poll:     {third} at 2")
    assert deletes == f"Deletes:       rows deleted after {second} may still be included"
    assert "Received" not in shown.stdout
    (table,) = (line for line in shown.stdout.splitlines() if line.startswith("public.t "))
    assert [cell.strip() for cell in table.split("|")][1:5] == ["readable", "", str(told.polls[0]), "now"]
    plain = json.loads(here("status", str(told.lake), "--json").stdout)
    assert (plain["mode"], plain["reconciled_lsn"], plain["received_lsn"]) == ("poll", str(second), None)
    last = read_polls(told.lake).last
    assert last is not None
    assert (plain["polled_at"], plain["snapshot"]) == (last.time.isoformat(), str(last.seen.snapshot))
    assert [table["polled"] for table in plain["tables"]] == [True, True]


def test_history_and_diff_and_changes_tell_what_polls_saw(told: Told, few: SparkSession) -> None:
    lake, (first, second, third) = str(told.lake), told.polls
    history = here("history", lake, "t", "1", "--format", "jsonl")
    assert f"as of the poll at {third}" in history.stderr
    one, uno = (json.loads(line) for line in history.stdout.splitlines())
    assert (one["v"], one["_begin_type"], one["_end_type"], one["_end_lsn"]) == ("one", "copy", "update", str(second))
    assert (uno["v"], uno["_begin_lsn"], uno["_begin_xid"], uno["_end_lsn"]) == ("uno", str(second), None, None)
    differ = here("diff", lake, "t", "--from", str(first), "--to", str(second), "--format", "csv")
    assert differ.stdout.splitlines()[1:] == [
        "1,one,update_preimage",
        "1,uno,update_postimage",
        "2,two,delete",
    ], differ.stderr
    assert [line.split(" (")[0] for line in differ.stderr.splitlines()] == [
        f"tidemark: as of the poll at {lsn}" for lsn in (first, second)
    ]
    changes = tidemark.open(told.lake, few).changes("t", first, third).collect()
    assert sorted((row["id"], row["_change_type"], row["_commit_version"], row["_xid"]) for row in changes) == [
        (1, "update_postimage", second.value, None),
        (2, "delete", second.value, None),
        (4, "insert", third.value, None),
    ]


def test_fold_and_vacuum_change_no_answer_that_is_kept(told: Told, tmp_path: Path) -> None:
    copy = Told(told.copy(tmp_path), told.polls)
    first, second, third = told.polls
    folded = here("fold", str(copy.lake), "--all")
    assert f"public.t  folded to {third}" in folded.stdout, folded.stderr
    for lsn, rows in ((first, ["1", "2", "3"]), (second, ["1", "3"]), (third, ["1", "3", "4"])):
        assert rows_at(copy, str(lsn))[0] == rows
    vacuumed = here("expire", str(copy.lake), "--before", str(second), "--grace", "0s")
    assert vacuumed.returncode == ExitCode.OK, vacuumed.stderr
    assert "public.t changes, expired: deleted" in vacuumed.stdout
    assert f"retained LSN: {second}" in vacuumed.stdout
    assert here("query", str(copy.lake), "select 1", "--at", str(first)).returncode == ExitCode.NOT_ANSWERABLE
    for lsn, rows in ((second, ["1", "3"]), (third, ["1", "3", "4"])):
        assert rows_at(copy, str(lsn))[0] == rows
    assert "Retained LSN" in here("status", str(copy.lake)).stdout
    assert here("resync", str(copy.lake), "t").returncode == ExitCode.OK
    assert "public.t: resync requested" in here("status", str(copy.lake)).stdout


@pytest.mark.full
def test_a_comparison_is_by_the_last_poll_where_nobody_polls_and_the_source_stands_still(
    plain: Database, few: SparkSession, tmp_path: Path
) -> None:
    db = create_database(plain.server)
    db.run(
        "create table t (id int primary key, v text)",
        "insert into t select i, 'v' || i from generate_series(1, 100) i",
        "create table u (id int primary key)",
        "insert into u select generate_series(1, 5)",
        "create table bag (v int)",
        "insert into bag values (1), (1)",
    )
    with polling(db, tmp_path, few, reconcile_every=4) as mirror:
        first = mirror.require_news("bag").upto
        db.run("vacuum full t", "truncate bag")
        mirror.poll()
    asked = ["compare", str(mirror.options.lake), "--source", mirror.options.source.reveal()]
    equal = here(*asked)
    assert equal.returncode == ExitCode.OK, equal
    where, *tables = equal.stdout.splitlines()
    assert where.startswith(
        f"compared at {mirror.poller.cycle.applied_lsn}, as of the poll at {mirror.poller.cycle.applied_lsn} (2"
    )
    assert [line.split("  ")[0] for line in tables] == ["equal", "equal", "equal"]
    db.run("delete from u where id = 3")
    refused = here(*asked)
    assert refused.returncode == ExitCode.NOT_ANSWERABLE
    assert f"may have changed since the poll at {mirror.poller.cycle.applied_lsn}" in refused.stderr
    assert "tidemark sync SOURCE LAKE --once" in refused.stderr
    with polling(db, tmp_path, few, reconcile_every=4) as mirror:
        mirror.poll()
    other = here(*asked, "u", "--json")
    assert other.returncode == ExitCode.DIFFERENT, "nobody looked whether rows are gone"
    plainly = json.loads(other.stdout)
    assert (plainly["observed"], plainly["differing"]) == (True, [{"difference": "extra", "key": "(3)"}])
    assert f"rows deleted after {first} may still be included" in here(*asked, "u").stdout
    elsewhere = here(*asked[:3], plain.dsn().reveal())
    assert elsewhere.returncode == ExitCode.REFUSED
    assert "is a mirror of database" in elsewhere.stderr


@contextmanager
def syncing(db: Database, lake: Path, spark: SparkSession) -> Iterator[None]:
    """`tidemark sync` in a thread; after its first poll it polls when it is asked to, and never by itself."""
    stopped: list[int] = []
    options = PipelineOptions(db.dsn(), lake, db.names, mode=Mode.POLL, folds=False, interval_s=3600)
    with ThreadPoolExecutor(1) as pool:
        nothing, controls = (lambda *_: None), Controls(lake)
        done = pool.submit(run_polls, options, spark, lambda: bool(stopped), nothing, nothing, controls)
        try:
            eventually(lambda: done.done() or read_polls(lake).last, 120)
            yield
        finally:
            stopped.append(1)
            done.result()


@pytest.mark.full
def test_a_comparison_beside_a_running_mirror_is_by_its_next_poll(
    plain: Database, few: SparkSession, tmp_path: Path
) -> None:
    db, lake, tables = create_database(plain.server), tmp_path / "lake", ("keyed", "bag")
    create(db, *tables, rows=300)
    db.run("create table still (id int primary key, v text)", "insert into still values (1, 'x')")
    with syncing(db, lake, few):
        with writing(db, *tables) as written:
            eventually(lambda: written[0] > 20)
            first = Comparison(tidemark.open(lake, few), db.dsn(), CompareOptions())
            for done in first.run():
                assert done.verdict is Verdict.EQUAL, done
                assert done.source is not None
                assert done.source.rows > 0
        eventually(lambda: not list((lake / "_requests").iterdir()))
        eventually(lambda: not holders(db))
        (file,) = (lake / path_of(lake, "still") / "versions").glob("*.parquet")
        rows = pq.read_table(file)
        pq.write_table(rows.set_column(rows.column_names.index("v"), "v", pa.array(["y"])), file)
        second = Comparison(tidemark.open(lake, few), db.dsn(), CompareOptions(values=True))
        verdicts = {done.table: done for done in second.run()}
    assert first.observed is not None
    assert second.observed is not None
    assert first.observed.lsn < second.observed.lsn, "each by a poll of its own"
    assert {name: done.verdict for name, done in verdicts.items()} == {
        "public.bag": Verdict.EQUAL,
        "public.keyed": Verdict.EQUAL,
        "public.still": Verdict.DIFFERENT,
    }
    found = verdicts["public.still"].found
    assert found is not None
    assert [(each.key, each.source, each.other) for each in found.differing] == [("(1)", ("(1,x)",), ("(1,y)",))]


def holders(db: Database) -> list[tuple[Any, ...]]:
    """Sessions that hold a snapshot for others."""
    return db.admin("select pid from pg_stat_activity where application_name = 'tidemark hold'")


def count_by(db: Database, handed: ExportedSnapshot) -> int:
    """The rows of a table in a snapshot that was handed over."""
    with db.session() as session, session.transaction(snapshot_id=handed.snapshot_id):
        (count,) = session.row("select count(*) from public.t")
        return int(count)


def test_a_snapshot_is_held_until_it_is_not_needed_and_no_longer_than_the_limit(
    plain: Database, tmp_path: Path
) -> None:
    db = create_database(plain.server)
    db.run("create table t (id int primary key)", "insert into t values (1)")
    with SnapshotExports(tmp_path, db.dsn()) as exports:
        assert not exports.wanted()
        with SnapshotRequest(tmp_path) as asked:
            assert exports.wanted()
            assert asked.answer() is None
            with open_poll_snapshot(db.dsn()) as seen:
                exports.shown(seen, Lsn(7))
            db.run("insert into t values (2)")
            assert not exports.wanted()
            handed = asked.answer()
            assert handed is not None
            assert (handed.lsn, handed.snapshot) == (Lsn(7), seen.snapshot)
            exports.close_unused()
            assert count_by(db, handed) == 1, "as the poll saw it, which is over"
        exports.close_unused()
        assert not list((tmp_path / "_requests").iterdir())
        eventually(lambda: not holders(db))
        with pytest.raises(ObjectMissing):
            count_by(db, handed)
    with (
        SnapshotExports(tmp_path, db.dsn(), limit_s=0) as slow,
        SnapshotRequest(tmp_path) as asked,
        open_poll_snapshot(db.dsn()) as seen,
    ):
        slow.shown(seen, Lsn(8))
        slow.close_unused()
        handed = asked.answer()
        assert handed is not None
        eventually(lambda: not holders(db))
        with pytest.raises(ObjectMissing):
            count_by(db, handed)
        assert not slow.wanted(), "it had its answer"


def test_a_request_of_a_dead_process_is_nobodys(plain: Database, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tidemark.lake.snapshot_requests import SnapshotRequest; "
        "asked = SnapshotRequest(Path(sys.argv[1])); print('asked', flush=True); time.sleep(600)"
    )
    with (
        SnapshotExports(tmp_path, plain.dsn()) as exports,
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        with open_poll_snapshot(plain.dsn()) as seen:
            exports.shown(seen, Lsn(7))
        assert holders(plain)
        process.kill()
        process.wait()
        exports.close_unused()
        eventually(lambda: not holders(plain))
        assert not list((tmp_path / "_requests").iterdir())


def test_an_answer_of_a_killed_process_is_deleted_and_its_request_is_answered_again(
    plain: Database, tmp_path: Path
) -> None:
    with SnapshotRequest(tmp_path) as gone, SnapshotRequest(tmp_path) as asked:
        for request in read_requests(tmp_path):
            answer_request(tmp_path, request, ExportedSnapshot("00000003-00000002-1", Snapshot.parse("7:7:"), Lsn(7)))
        gone.close()
        with SnapshotExports(tmp_path, plain.dsn()) as exports, open_poll_snapshot(plain.dsn()) as seen:
            assert asked.answer() is None
            assert exports.wanted()
            exports.shown(seen, Lsn(8))
            answer = asked.answer()
            assert answer is not None
            assert answer.lsn == Lsn(8)
    assert not list((tmp_path / "_requests").iterdir())


@pytest.mark.full
def test_a_standby_lends_the_snapshot_of_a_poll_and_proves_nothing_without_it(
    plain: Database, few: SparkSession, tmp_path: Path
) -> None:
    db = create_database(plain.server)
    db.run("create table t (id int primary key)", "insert into t select generate_series(1, 50)")
    with standby_of(db) as there:
        with syncing(there, tmp_path / "lake", few):
            db.run("delete from t where id = 7")
            mirror = tidemark.open(tmp_path / "lake", few)
            (done,) = Comparison(mirror, there.dsn(), CompareOptions()).run()
            assert done.verdict is Verdict.EQUAL, done
            with pytest.raises(NotAnswerable, match="cannot be imported"):
                list(Comparison(mirror, db.dsn(), CompareOptions()).run())
            with db.connect() as writer:
                writer.execute(b"begin; insert into t values (0)")
                db.run("delete from t where id = 8")
                wait_for(there, db)
                with pytest.raises(NotAnswerable, match="cannot export a snapshot"):
                    list(Comparison(mirror, there.dsn(), CompareOptions()).run())
        with pytest.raises(NotAnswerable, match="no process polls this source, and a snapshot of a standby"):
            list(Comparison(mirror, there.dsn(), CompareOptions()).run())
