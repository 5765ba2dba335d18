"""sync and resync as a shell runs them: a whole database with one command, stopped and run again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import MIRROR, OWNER, Database, create_database
from harness.lake import by_postgres, require_rows
from harness.shell import here
from tests.conftest import NEWEST, Start
from tidemark.errors import ExitCode
from tidemark.lake.status import status_of
from tidemark.pipeline.events import SyncEvent

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]

TIDEMARK = [sys.executable, "-c", "from tidemark.cli.main import main; main()"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TIDEMARK, *arguments], capture_output=True, text=True, timeout=300, check=False)


def create(db: Database) -> None:
    db.run(
        "create table orders (id int primary key, v text)",
        "insert into orders select i, 'v' || i from generate_series(1, 3000) i",
        "create table root (id int primary key) partition by range (id)",
        "create table leaf partition of root for values from (0) to (100)",
        "insert into root values (1), (2)",
        "create table inserts (a int)",
        "insert into inserts values (1)",
        "create unlogged table unlogged (a int)",
        "create table other (id int primary key)",
        "create view shown as select id from orders",
        "create sequence counter",
    )


def test_a_role_that_may_not_publish_says_what_the_owner_is_to_run(db: Database, tmp_path: Path) -> None:
    create(db)
    source, lake = db.dsn(MIRROR).reveal(), str(tmp_path / "lake")
    polled = run("sync", source, lake, "--dry-run")
    assert polled.stdout.startswith(f"-- Mode poll: publication tidemark_{db.name} does not exist"), polled.stderr
    plan = run("sync", source, lake, "--dry-run", "--exclude", "other", "--mode", "logical")
    assert plan.returncode == ExitCode.OK, plan.stderr
    lines = plan.stdout.splitlines()
    assert any(line.startswith("create publication") and '"orders"' in line for line in lines)
    assert any(line.startswith("public.orders  ") and line.endswith("copied") for line in lines)
    assert any(line.startswith("public.inserts  ") and "no replica identity" in line for line in lines)
    unmirrored = {line.partition("  ")[0] for line in lines if ", not mirrored: " in line}
    assert unmirrored == {"public.unlogged", "public.shown", "public.counter"}
    assert not any(line.startswith("public.other") for line in lines)
    refused = run("sync", source, lake, "--mode", "logical")
    assert refused.returncode == ExitCode.REFUSED
    assert "create publication" in refused.stderr
    assert not (tmp_path / "lake").exists()
    assert not db.admin("select from pg_publication"), "nothing was created"
    assert not db.admin(f"select from pg_replication_slots where database = '{db.name}'")
    strange = run("sync", source, lake, "--table", "nothing")
    assert strange.returncode == ExitCode.USAGE
    assert "no table matches 'nothing'" in strange.stderr
    nowhere = run("resync", lake, "orders")
    assert nowhere.returncode == ExitCode.USAGE
    assert "is not a Tidemark lake" in nowhere.stderr


def test_a_database_is_mirrored_stopped_and_mirrored_again(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    create(db)
    db.admin(f"alter role {OWNER} replication", f"grant create on database {db.name} to {OWNER}")
    try:
        _mirrored(db, spark, tmp_path)
    finally:
        db.admin(f"alter role {OWNER} noreplication")


def _mirrored(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    source, lake = db.dsn(OWNER).reveal(), tmp_path / "lake"
    with subprocess.Popen(
        [*TIDEMARK, "sync", source, str(lake), "--json", "--master", "local[1]"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as mirror:  # fmt: skip
        try:
            assert mirror.stdout is not None
            events = []
            for line in mirror.stdout:
                events.append(json.loads(line))
                copied = {e["table"] for e in events if e["event"] == "copied"}
                if events[-1]["event"] == "progress" and len(copied) == 2:  # a copy is complete before it is taken
                    break
            assert any(e["event"] == "message" and "create publication" in e["text"] for e in events)
            assert copied == {"public.orders", "public.leaf"}
            assert events[-1]["copies"]["tables_copied"] == 2
            assert events[-1]["copies"]["tables"] == []
            assert events[-1]["copies"]["rows"] == 3002
            states = [e["state"] for e in events if e["event"] == "state"]
            assert states[0] == "starting"
            assert set(states) <= {"starting", "copying", "catching up", "following"}
            asked = run("resync", str(lake), "orders", "--wait")
            assert asked.returncode == ExitCode.OK, asked.stderr
            assert asked.stdout == "resync of 1 table requested: the running sync copies them now\ncopied\n"
            db.run("create table newer (id int primary key)", "insert into newer values (7)")
            for line in mirror.stdout:
                if json.loads(line)["event"] == "copied" and "public.newer" in line:
                    break
            db.run("update orders set v = 'changed' where id % 10 = 0")
            mirror.send_signal(signal.SIGTERM)
            rest, said = mirror.communicate(timeout=120)
            assert mirror.returncode == ExitCode.OK, said
            assert "Traceback" not in said
            ended = json.loads(rest.splitlines()[-1])
            assert (ended["event"], ended["complete"]) == ("ended", False)
            assert ended["lag_bytes"] >= 0
        finally:
            mirror.kill()
    assert not [
        path for path in (lake, *lake.rglob("*")) if path.stat().st_mode & 0o077 and "_leases" not in path.parts
    ]
    late = run("resync", str(lake), "orders", "--wait")
    assert (late.returncode, "no sync is running" in late.stderr) == (ExitCode.NOT_ANSWERABLE, True)
    strange = run("resync", str(lake), "public.orders", "nothing")
    assert strange.returncode == ExitCode.USAGE
    assert f"{lake} has no table nothing" in strange.stderr
    half = run("resync", str(lake), "orders", "inserts")
    assert half.returncode == ExitCode.USAGE
    assert "cannot copy inserts: only inserts and truncates are published" in half.stderr
    db.run("delete from orders where id < 100", "insert into other values (3)")
    db.run(
        "create table closed (id int primary key)",
        "insert into closed values (1)",
        "alter table closed enable row level security, force row level security",
    )
    again = here("sync", source, str(lake), "--once")
    assert again.returncode == ExitCode.REFUSED, again.stderr
    assert "tidemark.sync: complete up to " in again.stderr
    assert "tidemark: table public.closed cannot be read: " in again.stderr
    assert "row-level security" in again.stderr
    status = status_of(lake)
    assert {each.name: each.state for each in status.tables} == {
        **dict.fromkeys((f"public.{name}" for name in ("orders", "leaf", "root", "other", "newer")), "readable"),
        "public.inserts": "waiting",
        "public.closed": "waiting",
    }
    assert {each.name: each.kind for each in status.unmirrored} == {
        "public.unlogged": "table",
        "public.shown": "view",
        "public.counter": "sequence",
    }
    shown = here("status", str(lake)).stdout
    assert "Not mirrored:\n  1 sequence (public.counter): logical decoding does not send its values" in shown
    db.run("drop table closed", "insert into other values (4)")
    emitted: list[SyncEvent] = []
    ended = tidemark.sync(source, lake, once=True, fold=False, spark=spark, on_event=emitted.append)
    assert ended.complete
    assert emitted[-1] is ended
    moment = tidemark.open(lake, spark).at()
    assert moment.table("root").count() == 2
    for table in ("orders", "leaf", "other", "newer"):
        require_rows(moment.table(table), *by_postgres(db, table), table)


def test_a_source_without_logical_decoding_is_polled_until_it_is_able(
    start: Start, spark: SparkSession, tmp_path: Path
) -> None:
    server = start(wal_level="replica")
    server.sql(f"alter role {MIRROR} noreplication")
    db = create_database(server)
    create(db)
    source, lake = db.dsn(MIRROR).reveal(), tmp_path / "lake"
    plan = run("sync", source, str(lake), "--dry-run")
    assert plan.returncode == ExitCode.OK, plan.stderr
    lines = plan.stdout.splitlines()
    assert lines[0].startswith("-- Mode poll: wal_level is replica")
    assert "-- Nothing is created at the source." in lines
    assert any(line.startswith("public.inserts  ") and line.endswith("copied") for line in lines)
    for options, why in ((("--interval", "1s"), "too short"), (("--endpos", "0/1"), "needs mode logical")):
        refused = run("sync", source, str(lake), *options)
        assert refused.returncode == ExitCode.USAGE
        assert why in refused.stderr
    assert not lake.exists()
    with subprocess.Popen(
        [*TIDEMARK, "sync", source, str(lake), "--interval", "5s", "--json"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = (json.loads(line) for line in process.stdout)
        assert "wal_level is replica" in next(each["reason"] for each in said if each["event"] == "mode")
        assert next(each for each in said if each["event"] == "polled")["copied"] == 4
        changes = "delete from orders where id <= 100; update inserts set a = 2; insert into root values (3)"
        db.run(f"begin; {changes}; commit")
        assert next(each["changes"] for each in said if each["event"] == "polled" and each["changes"]) == 103
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == ExitCode.OK
    db.run("truncate orders", "insert into orders values (1, 'again')")
    once = run("sync", source, str(lake), "--once")
    assert once.returncode == ExitCode.OK, once.stderr
    for table in ("orders", "leaf", "inserts", "other"):
        require_rows(tidemark.open(lake, spark).table(table), *by_postgres(db, table), table)
    assert not db.admin("select from pg_publication"), "nothing was created"
    assert {each.name for each in status_of(lake).unmirrored} == {"public.unlogged", "public.shown", "public.counter"}
    server.restart(settings={"wal_level": "logical"})
    db.admin(f"alter role {OWNER} replication", f"grant create on database {db.name} to {OWNER}")
    db.run("delete from orders", "insert into other values (7)", "update root set id = 9 where id = 2")
    able = run("sync", db.dsn(OWNER).reveal(), str(lake), "--once")
    assert able.returncode == ExitCode.OK, able.stderr
    assert "tidemark.sync: mode logical: wal_level is logical" in able.stderr
    assert "changed from polling to logical decoding at" in able.stderr
    assert "read whole" not in able.stderr
    assert ": copied " not in able.stderr
    for table in ("orders", "leaf", "other"):
        require_rows(tidemark.open(lake, spark).table(table), *by_postgres(db, table), table)
    assert status_of(lake).last_poll is None
    back = run("sync", source, str(lake), "--mode", "poll", "--dry-run")
    assert back.returncode == ExitCode.OK, back.stderr
    assert "are removed, and every table is copied" in back.stdout


def test_a_mirror_whose_slot_is_lost_is_started_over_by_its_next_sync_or_by_the_one_that_runs(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table t (id int primary key, v text)", "insert into t select i, 'v' from generate_series(1, 100) i")
    db.admin(f"alter role {OWNER} replication", f"grant create on database {db.name} to {OWNER}")
    source, lake = db.dsn(OWNER).reveal(), tmp_path / "lake"
    try:
        assert run("sync", source, str(lake), "--once", "--master", "local[1]").returncode == ExitCode.OK
        held, known = by_postgres(db, "t"), status_of(lake).schema_lsn
        db.admin(f"select pg_drop_replication_slot('{db.names.slot}')")
        db.run("update t set v = 'in the gap'", "delete from t where id < 10")
        lost = run("sync", source, str(lake), "--once", "--master", "local[1]")
        assert lost.returncode == ExitCode.REFUSED, lost.stderr
        assert "tidemark resync LAKE --all" in lost.stderr
        assert not db.admin(f"select from pg_replication_slots where database = '{db.name}'")
        for strange in (("--all", "t"), ()):
            assert run("resync", str(lake), *strange).returncode == ExitCode.USAGE
        for words, said in (((), "the next `tidemark sync` restarts"), (("--source", source), "mirror restarted at ")):
            asked = run("resync", str(lake), "--all", *words)
            assert asked.returncode == ExitCode.OK, asked.stderr
            assert said in asked.stdout
        require_rows(tidemark.open(lake, spark).at().table("t"), *held, "latest, until it is copied")
        (table,) = status_of(lake).tables
        assert table.state == "restarted"
        assert f"slot {db.names.slot} does not exist" in table.reason
        again = run("sync", source, str(lake), "--once", "--master", "local[1]")
        assert again.returncode == ExitCode.OK, again.stderr
        require_rows(tidemark.open(lake, spark).at().table("t"), *by_postgres(db, "t"), "latest")
        require_rows(tidemark.open(lake, spark).at(known).table("t"), *held, "before the gap")
        _started_over_while_it_runs(db, source, lake)
        require_rows(tidemark.open(lake, spark).at().table("t"), *by_postgres(db, "t"), "latest")
        require_rows(tidemark.open(lake, spark).at(known).table("t"), *held, "before the gap")
    finally:
        db.admin(f"alter role {OWNER} noreplication")


def _started_over_while_it_runs(db: Database, source: str, lake: Path) -> None:
    command = [*TIDEMARK, "sync", source, str(lake), "--json", "--master", "local[1]"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as mirror:
        try:
            assert mirror.stdout is not None
            db.run("update t set v = 'while it runs'")
            next(line for line in mirror.stdout if json.loads(line)["event"] == "applied")
            asked = run("resync", str(lake), "--all", "--source", source)
            assert "the running sync restarts the mirror now" in asked.stdout, asked.stderr
            next(line for line in mirror.stdout if json.loads(line)["event"] == "restarted")
            next(line for line in mirror.stdout if json.loads(line)["event"] == "copied")
            mirror.send_signal(signal.SIGTERM)
            _, said = mirror.communicate(timeout=120)
            assert mirror.returncode == ExitCode.OK, said
        finally:
            mirror.kill()
    once = run("sync", source, str(lake), "--once", "--master", "local[1]")
    assert once.returncode == ExitCode.OK, once.stderr
