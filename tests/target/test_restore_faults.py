"""What the target lacks, what pg_restore reports, and stages that were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import quick_only
from tests.target.schema_pairs import PAIRS, Pair, pair_fixture
from tidemark.errors import RestoreFailed, SourceUnreachable, TargetNotReady
from tidemark.postgres.dsn import Dsn
from tidemark.target.definitions import restore_stage
from tidemark.target.needs import missing_at_target
from tidemark.target.stages import CloneStage

pytestmark = pytest.mark.full

pair = pair_fixture(*PAIRS)
WAITING = """
    select pid from pg_stat_activity
     where application_name like 'tidemark restore%' and wait_event_type = 'Lock' and datname = current_database()
"""


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def programs_of(pid: int) -> list[int]:
    """The processes of pg_restore below a process."""
    found = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    rows = [line.split() for line in found.stdout.splitlines()]
    return [int(row[0]) for row in rows if row[1] == "pg_restore"]


def test_roles_and_extensions_are_named_before_anything_is_created(pair: Pair, tmp_path: Path) -> None:
    pair.source.admin('create role "gone ""1"""', "create role gone2", "create role gone3")
    try:
        pair.source.run(
            "create table t (id int)",
            'grant select on t to "gone ""1"""',
            "create policy p on t to gone2 using (true)",
            "alter default privileges grant select on tables to gone3",
        )
        archive = pair.dump(tmp_path)
        assert archive.roles.named == ("app", 'gone "1"', "gone2", "gone3")
    finally:
        pair.source.admin('drop owned by "gone ""1""", gone2, gone3', 'drop role "gone ""1""", gone2, gone3')
    with pair.target.session("app") as session:
        missing = missing_at_target(session, archive)
    assert missing.roles == ('gone "1"', "gone2", "gone3")
    assert missing.statements()[0] == 'create role "gone ""1""";'
    with pytest.raises(TargetNotReady, match='lacks the roles gone "1", gone2, gone3') as caught:
        missing.require()
    assert 'create role "gone3";' in caught.value.hint
    assert pair.target.run("select count(*) from pg_class where relname = 't'") == [(0,)]


def test_a_privilege_that_another_role_granted_is_named(pair: Pair, tmp_path: Path) -> None:
    pair.source.run("create table t (id int)", "grant select on t to reader with grant option")
    pair.source.admin('set role reader; grant select on t to "odd ""role"" na.me"')
    archive = pair.dump(tmp_path)
    with pair.target.session("app") as session, pytest.raises(TargetNotReady, match=r"than the owner, on public\.t\n"):
        missing_at_target(session, archive).require()


def test_an_extension_that_the_role_may_not_create_is_named(pair: Pair, tmp_path: Path) -> None:
    there = {name for (name,) in pair.target.admin("select name from pg_available_extensions")}
    here = {name for (name,) in pair.source.admin("select name from pg_available_extensions")}
    names = sorted(here & {"vector", "file_fdw"})
    for name in names:
        pair.source.admin(f"create extension {name}")
    archive = pair.dump(tmp_path)
    with pair.target.session("app") as session:
        missing = missing_at_target(session, archive)
    assert missing.extensions == tuple(name for name in names if name in there)
    assert missing.unavailable == tuple(name for name in names if name not in there)
    with pytest.raises(TargetNotReady):
        missing.require()
    assert pair.target.admin("select nspname from pg_namespace where nspname like 'tidemark%'") == []
    for name in missing.extensions:
        pair.target.admin(f"create extension {name}")
    with pair.target.session("app") as session:
        assert missing_at_target(session, archive).extensions == ()
    if not missing.unavailable:
        pair.restore(archive)


def test_a_target_that_is_not_empty_is_refused(pair: Pair, tmp_path: Path) -> None:
    pair.source.run("create table t (id int)")
    archive = pair.dump(tmp_path)
    pair.target.run('create table "Not empty" ()', "create schema elsewhere", "create table elsewhere.t ()")
    (oid,) = pair.target.run("select lo_create(0)")[0]
    with pair.target.session("app") as session, pytest.raises(TargetNotReady) as caught:
        missing_at_target(session, archive).require()
    assert f'it is not empty: large object {oid}, table public."Not empty"' in str(caught.value)


def test_an_error_names_the_object_and_what_the_server_reports(pair: Pair, tmp_path: Path) -> None:
    pair.source.run("create table t (id int primary key)", "create table u (t int references t, x int unique)")
    archive = pair.dump(tmp_path)
    pair.restore(archive, CloneStage.DEFINITIONS)
    pair.target.run("insert into u values (1, 2), (1, 2)")
    for jobs in (1, 2):
        with pytest.raises(
            RestoreFailed, match=r"CONSTRAINT public u u_x_key app cannot .* could not create unique index"
        ):
            pair.restore(archive, CloneStage.KEYS, jobs=jobs)
    pair.target.run("truncate u", "insert into u values (1, 2)")
    pair.restore(archive, CloneStage.KEYS)
    with pytest.raises(RestoreFailed, match=r"FK CONSTRAINT public u u_t_fkey app .*violates foreign key constraint"):
        pair.restore(archive, CloneStage.LAST)


def test_a_target_that_does_not_accept_connections_is_another_error(pair: Pair, tmp_path: Path) -> None:
    archive = pair.dump(tmp_path)
    with pytest.raises(SourceUnreachable):
        restore_stage(pair.programs, Dsn("host=127.0.0.1 port=1 dbname=x"), archive, CloneStage.DEFINITIONS)


@pytest.mark.parametrize("stage", quick_only([CloneStage.DEFINITIONS, CloneStage.KEYS], CloneStage.KEYS))
def test_a_stage_whose_pg_restore_was_killed_is_completed(pair: Pair, tmp_path: Path, stage: CloneStage) -> None:
    pair.fill()
    archive = pair.dump(tmp_path)
    blocking = "create table app.points ()" if stage is CloneStage.DEFINITIONS else "lock table app.events_1"
    if stage is CloneStage.DEFINITIONS:
        pair.target.run("create schema app")
    else:
        pair.restore(archive, CloneStage.DEFINITIONS)
    with pair.target.connect("app") as blocker:
        blocker.execute("begin")
        blocker.execute(blocking.encode())
        failures: list[Exception] = []
        first = threading.Thread(target=lambda: failures.append(failure(lambda: pair.restore(archive, stage))))
        first.start()
        wait_for(lambda: pair.target.admin(WAITING))
        ((orphan,),) = pair.target.admin(WAITING)
        for pid in programs_of(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        first.join()
        assert isinstance(failures[0], RestoreFailed)
        assert pair.target.admin(WAITING) == [(orphan,)]
        second = threading.Thread(target=lambda: pair.restore(archive, stage))
        second.start()
        wait_for(lambda: any(pid != orphan for (pid,) in pair.target.admin(WAITING)))
        blocker.execute("rollback")
        second.join()
    pair.restore(archive)
    assert pair.statements(pair.target) == pair.expected()


def failure(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError("it did not fail")


CHILD = """
import sys
from pathlib import Path
from tidemark.postgres.dsn import Dsn
from tidemark.target.archive import open_archive
from tidemark.target.definitions import restore_stage
from tidemark.target.programs import find_programs
from tidemark.target.stages import CloneStage
programs = find_programs(0, 0, Path(sys.argv[1]))
restore_stage(programs, Dsn(sys.argv[2]), open_archive(Path(sys.argv[3])), CloneStage(sys.argv[4]), int(sys.argv[5]))
"""


@pytest.mark.full
@pytest.mark.parametrize("jobs", [1, 3])
def test_kill_9_in_every_stage_loses_and_repeats_nothing(pair: Pair, tmp_path: Path, jobs: int) -> None:
    """The process is killed when an object of the stage exists; its pg_restore survives it for a moment."""
    pair.fill()
    archive = pair.dump(tmp_path)
    for stage in CloneStage:
        for _ in range(2):
            kill_when_something_exists(pair, tmp_path, stage, jobs)
        pair.restore(archive, stage, jobs=jobs)
    assert pair.statements(pair.target) == pair.expected()


def kill_when_something_exists(pair: Pair, folder: Path, stage: CloneStage, jobs: int) -> None:
    before = objects(pair)
    command = [sys.executable, "-c", CHILD, str(pair.programs.pg_dump.parent), pair.to_dsn.reveal()]
    process = subprocess.Popen([*command, str(folder), stage.value, str(jobs)])
    wait_for(lambda: process.poll() is not None or objects(pair) > before)
    process.kill()
    process.wait()


def objects(pair: Pair) -> int:
    (count,) = pair.target.admin(
        "select (select count(*) from pg_class) + (select count(*) from pg_proc) + (select count(*) from pg_trigger)"
    )[0]
    return int(count)
