"""A process that clones is killed at every fail point; the next one continues, and the target is equal at the end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from harness.database import OWNER, Database
from harness.mirrored import eventually
from harness.postgres import Server
from tests.conftest import NEWEST
from tests.target.clones import clone_options, followed
from tests.target.load import contents, database_with_tables, hostile, writing
from tidemark.errors import SlotMissing, SourceAltered, TargetNotReady
from tidemark.postgres.requirements import Mode
from tidemark.storage.fail_points import CloneFailPoint
from tidemark.target.clone import Clone
from tidemark.target.options import CloneOptions
from tidemark.target.schema import CloneSchema
from tidemark.target.state import ClonePhase

pytestmark = pytest.mark.full
FILLING = tuple(
    CloneFailPoint(each)
    for each in ("clone recorded", "definitions created", "table copied", "keys created", "indexes created")
)
COMPLETION = (CloneFailPoint.CONSTRAINTS_CREATED, CloneFailPoint.SEQUENCES_SET, CloneFailPoint.COMPLETED)
FOLLOWING = {
    Mode.LOGICAL: (CloneFailPoint.BATCH_WRITTEN, CloneFailPoint.BATCH_COMMITTED),
    Mode.POLL: (CloneFailPoint.POLL_WRITTEN, CloneFailPoint.POLL_COMMITTED),
}


AUDITED = (
    "create table audit (id int)",
    "alter table audit replica identity full",
    "create unlogged table unsent (id int primary key)",
    """create function audited() returns trigger language plpgsql as
       'begin insert into audit values (new.id); return new; end'""",
    "create trigger audited after insert or update on keyed for each row execute function audited()",
    "create trigger unsent after insert on unsent for each row execute function audited()",
    "insert into unsent values (1)",
)


def held(database: Database) -> dict[str, list[Any]]:
    """The contents of all tables, also of those that the triggers fill."""
    more = {name: database.run(f"select id from {name} order by 1") for name in ("audit", "unsent")}
    return {**contents(database), **more}


def test_no_point_is_left_out() -> None:
    assert {*FILLING, *COMPLETION, *(each for points in FOLLOWING.values() for each in points)} == set(CloneFailPoint)


@NEWEST
@pytest.mark.parametrize(
    ("mode", "ranges"),
    [(Mode.LOGICAL, True), (Mode.LOGICAL, False), (Mode.POLL, True)],
    ids=["logical-text", "logical-binary", "poll"],
)
def test_a_clone_that_is_killed_at_every_point_is_equal(
    server: Server, target: Database, tmp_path: Path, mode: Mode, *, ranges: bool
) -> None:
    """A poll is repeated while tables are truncated, so the load pauses for it."""
    for source in database_with_tables(server, ranges=ranges):
        source.run("create sequence numbers", "select setval('numbers', 30)", "create index on paired (c)", *AUDITED)
        options, chance = clone_options(source, target, tmp_path), Random(3)  # noqa: S311 - to be repeated
        source.admin(f"alter publication {options.names.publication} add table audit")
        with writing(source, 2) if mode is Mode.LOGICAL else nullcontext(), source.connect() as connection:
            connection.autocommit = True
            for point in (*FILLING, *3 * FOLLOWING[mode]):
                hostile(connection, chance, 30)
                kill_at(options, mode, point, 3 if point is CloneFailPoint.TABLE_COPIED else 1)
        before = held(source)
        for point in COMPLETION:
            kill_at(options, mode, point, 1, follows=False)
            source.run(
                "insert into keyed values (-1) on conflict (id) do update set n = 1"
            )  # after the completion began
        assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
        assert held(target) == before
        assert target.run("select nextval('numbers')") == [(31,)]
        assert source.admin("select count(*) from pg_replication_slots where database = current_database()") == [(0,)]


@NEWEST
def test_a_receiver_that_is_killed_is_started_again(server: Server, target: Database, tmp_path: Path) -> None:
    for source in database_with_tables(server):
        options = clone_options(source, target, tmp_path)
        with followed(options):
            for number in range(3):
                (pid,) = receivers()
                os.kill(pid, signal.SIGKILL)
                source.run(f"insert into keyed values ({-number - 1})")
                eventually(lambda: target.run(f"select from keyed where id = {-number - 1}"))  # noqa: B023
        assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
        assert contents(target) == contents(source)


@NEWEST
def test_a_slot_that_is_lost_ends_a_clone_with_what_resolves_it(
    server: Server, target: Database, tmp_path: Path
) -> None:
    for source in database_with_tables(server):
        options = clone_options(source, target, tmp_path)
        slot = f"from pg_replication_slots where slot_name = '{options.names.slot}'"
        with pytest.raises(SlotMissing) as raised, followed(options):
            while source.admin(f"select {slot}"):
                with suppress(psycopg.errors.ObjectInUse):
                    source.admin(
                        f"select pg_terminate_backend(active_pid, 9000), pg_drop_replication_slot(slot_name) {slot}"
                    )
            eventually(lambda: not receivers())
        found = re.fullmatch(r"To start over, .* remove the directory (.*), run .*", raised.value.hint)
        assert found is not None, raised.value.hint
        with source.connect() as connection:  # otherwise the log could have everything
            hostile(connection, Random(1), 10)  # noqa: S311 - to be repeated
        with pytest.raises(SlotMissing):
            Clone(options, lambda: None).run()
        shutil.rmtree(found[1])
        target.admin("drop schema public, tidemark cascade", f"create schema public authorization {OWNER}")
        assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
        assert contents(target) == contents(source)


def receivers() -> list[int]:
    """The process IDs of the receivers that this process has started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"tidemark.receive" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


@NEWEST
def test_a_schema_that_is_altered_while_it_is_created_is_refused(
    server: Server, target: Database, tmp_path: Path
) -> None:
    for source in database_with_tables(server):
        options = clone_options(source, target, tmp_path)
        kill_at(options, Mode.LOGICAL, CloneFailPoint.DEFINED, 1)
        source.run("create view pairs as select a from paired")
        with pytest.raises(SourceAltered, match="the schema was altered at the source while it was created"):
            Clone(options, lambda: None).run()
        source.run("drop view pairs")
        elsewhere = CloneSchema(options.source, options.target, tmp_path / "lost", 1, options.pg_bin, is_cloned=True)
        with pytest.raises(TargetNotReady, match=r"its dump is not in .*lost"):
            elsewhere.dump(None, None, begun=True)
        assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
        assert contents(target) == contents(source)


def kill_at(options: CloneOptions, mode: Mode, point: CloneFailPoint, times: int, *, follows: bool = True) -> None:
    """Run a process that clones, and is killed when it comes to a point for the n-th time."""
    values = (options.source.reveal(), options.target.reveal(), options.names.mirror, options.folder, options.pg_bin)
    more = [*(["follow"] if follows else []), *(["poll"] if mode is Mode.POLL else [])]
    child = subprocess.run(
        [sys.executable, "-m", "tests.target.child", *map(str, values), *more],
        env={**os.environ, "KILL_AT": f"{point.value}:{times}"},
        timeout=600,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, point
