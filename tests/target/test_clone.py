"""A database is cloned into another one: its schema, its rows and its changes, through stops and crashes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from harness.database import MIRROR, OWNER, Database
from harness.mirrored import eventually
from harness.postgres import Server
from tests.conftest import NEWEST, Start
from tests.target.clones import clone_options, clones, followed
from tests.target.load import TABLES, contents, database_with_tables, hostile, writing
from tidemark.cli.main import run
from tidemark.clock import Lsn
from tidemark.errors import (
    DumpFailed,
    ExitCode,
    InvalidValue,
    LogDamaged,
    SourceAltered,
    Stopped,
    TargetNotReady,
    TargetTableUnfit,
)
from tidemark.lake.pipeline_state import State
from tidemark.pipeline.events import StateChanged, SyncEvent, SyncProgress, TableCopied
from tidemark.postgres.identity import Identity
from tidemark.schema.selection import Pattern, Selection
from tidemark.storage.fail_points import AnyFailPoint, CloneFailPoint, attach, detach
from tidemark.target import schema
from tidemark.target.clone import Clone
from tidemark.target.options import CloneOptions
from tidemark.target.schema import CloneSchema
from tidemark.target.state import ClonePhase, CloneRecord

pytestmark = [pytest.mark.quick, NEWEST]
OBJECTS = (
    "create function told() returns trigger language plpgsql as 'begin new.v := ''told''; return new; end'",
    "create trigger told before insert or update on large for each row when (false) execute function told()",
    "create sequence numbers increment 3; select setval('numbers', 30)",
    "create view pairs as select a, count(*) from paired group by a",
    "create index on paired (c)",
)


@pytest.fixture
def source(server: Server) -> Iterator[Database]:
    for database in database_with_tables(server):
        database.run(*OBJECTS)
        with database.connect() as connection:
            connection.autocommit = True
            hostile(connection, Random(1), 200)  # noqa: S311 - to be repeated
        yield database


@pytest.fixture
def options(source: Database, target: Database, tmp_path: Path) -> CloneOptions:
    return clone_options(source, target, tmp_path)


def following_for(target: Database, seconds: float) -> Callable[[], bool]:
    """A signal that comes when a clone has followed for some seconds."""
    begun: list[float] = []

    def stopping() -> bool:
        if not begun:
            created = target.admin("select to_regclass('tidemark.clones') is not null") == [(True,)]
            if created and target.admin("select phase from tidemark.clones") == [(ClonePhase.FOLLOW.value,)]:
                begun.append(time.monotonic())
        return bool(begun) and time.monotonic() > begun[0] + seconds

    return stopping


def test_a_database_is_cloned_under_load(source: Database, target: Database, options: CloneOptions) -> None:
    events: list[SyncEvent] = []
    with writing(source, 2):
        followed = Clone(replace(options, follows=True), lambda: None, events.append)
        assert followed.run(following_for(target, 2)).phase is ClonePhase.FOLLOW
    assert {each.table for each in events if isinstance(each, TableCopied)} == {f"public.{name}" for name in TABLES}
    assert [each.state for each in events if isinstance(each, StateChanged)][-2:] == [State.COPYING, State.FOLLOWING]
    last = [each for each in events if isinstance(each, SyncProgress)][-1]
    assert (last.state, last.copies.tables_copied) == (State.FOLLOWING, len(TABLES))
    assert last.applied_lsn > Lsn.ZERO
    assert last.lag_bytes is not None
    ended = Clone(options, lambda: None).run()
    assert ended.phase is ClonePhase.COMPLETE
    assert contents(target) == contents(source)
    assert target.run("select nextval('numbers')") == [(33,)]
    assert target.run("select count(*) from pg_trigger where tgname = 'told'") == [(1,)]


@pytest.mark.full
def test_a_killed_clone_goes_on(source: Database, target: Database, options: CloneOptions, short: bool) -> None:
    chance = Random(7)  # noqa: S311 - to be repeated
    with writing(source, 2):
        for _ in range(4 if short else 40):
            child = started(options)
            with suppress(subprocess.TimeoutExpired):
                assert child.wait(1 + 6 * chance.random()) == 0
            child.kill()
            child.wait()
    assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
    assert contents(target) == contents(source)


@pytest.mark.full
def test_changes_between_a_stop_during_the_copy_and_the_next_run_are_not_lost(
    source: Database, target: Database, options: CloneOptions
) -> None:
    source.run("insert into plain select i % 9, repeat('x', 20), i from generate_series(1, 300000) i")

    def copied() -> bool:
        exists = target.admin("select to_regclass('tidemark.tables') is not null") == [(True,)]
        return exists and target.admin("select count(base_lsn) > 0 from tidemark.tables") == [(True,)]

    with pytest.raises(Stopped, match="stopped during the copy"):
        Clone(replace(options, jobs=1), lambda: None).run(copied)
    assert target.admin("select count(base_lsn) < count(*) from tidemark.tables") == [(True,)]
    source.run("delete from plain where a < 8", "update plain set b = 'later'", "insert into keyed values (-1, 'new')")
    assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
    assert contents(target) == contents(source)


@pytest.mark.full
def test_a_large_table_is_indexed_while_others_are_copied(
    source: Database, target: Database, options: CloneOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "LARGE_BYTES", 1)
    source.run(  # two tables that are not copied together with others
        "truncate keyed",
        "insert into keyed select i, repeat('x', 50) from generate_series(1, 300000) i",
        "insert into plain select i % 9, repeat('x', 20), i from generate_series(1, 300000) i",
    )
    has_index = "select exists (select from pg_index where indrelid::regclass::text = 'keyed')"
    is_copying = "select bool_or(base_lsn is null) from tidemark.tables"
    copied: list[bool] = []

    def observe(point: AnyFailPoint) -> None:
        if point is CloneFailPoint.TABLE_COPIED:
            if copied:  # the first is the largest, and its indexes are created since
                eventually(lambda: target.admin(has_index) == [(True,)])
            copied.append(target.admin(is_copying) == [(True,)])

    attach(observe)
    try:
        assert Clone(replace(options, jobs=1), lambda: None).run().phase is ClonePhase.COMPLETE
    finally:
        detach(observe)
    assert copied == [True] * (len(TABLES) - 1) + [False]
    assert contents(target) == contents(source)
    counted = "select count(*) from pg_index i join pg_class c on c.oid = i.indrelid where relnamespace = 2200"
    assert target.admin(counted) == source.admin(counted)


@pytest.mark.full
def test_a_clone_whose_log_is_lost_is_refused(source: Database, target: Database, options: CloneOptions) -> None:
    Clone(replace(options, follows=True), lambda: None).run(following_for(target, 0))
    with pytest.raises(LogDamaged, match=r"is not its log"):
        Clone(replace(options, folder=options.folder / "other"), lambda: None).run()
    assert source.admin("select count(*) from pg_replication_slots where database = current_database()") == [(1,)]


@pytest.mark.full
def test_an_end_before_the_target_is_refused(target: Database, options: CloneOptions) -> None:
    following = replace(options, follows=True)
    ended = Clone(following, lambda: None).run(following_for(target, 0))
    assert ended.applied_lsn is not None
    with pytest.raises(InvalidValue, match=r"--endpos 0/10 is before"):
        Clone(replace(following, endpos=Lsn(16)), lambda: None).run()


@pytest.mark.full
def test_large_objects_are_as_they_are_when_the_clone_is_completed(
    source: Database, target: Database, options: CloneOptions
) -> None:
    source.run(*(f"select lo_from_bytea({oid}, 'first')" for oid in (50000, 50001)))
    source.run(f"grant select on large object 50000, 50001 to {MIRROR}")
    Clone(replace(options, follows=True), lambda: None).run(following_for(target, 0))
    source.run("select lo_put(50000, 0, 'later')", "select lo_unlink(50001)", "select lo_from_bytea(50002, 'new')")
    source.run(f"grant select on large object 50002 to {MIRROR}")
    Clone(options, lambda: None).run()
    found = target.run("select oid, lo_get(oid) from pg_largeobject_metadata order by oid")
    assert found == [(50000, b"later"), (50002, b"new")]


@pytest.mark.full
def test_large_objects_of_other_applications_at_the_target_stay_as_they_are(
    source: Database, server: Server, tmp_path: Path
) -> None:
    for target in database_with_tables(server):
        options = replace(clone_options(source, target, tmp_path), with_schema=False)
        source.run("select lo_from_bytea(50000, 'ours')", f"grant select on large object 50000 to {MIRROR}")
        source.run("drop sequence numbers")  # the target has no such sequence
        target.run("select lo_from_bytea(50000, 'theirs')", "select lo_from_bytea(50001, 'theirs')")
        with pytest.raises(TargetNotReady, match=r"large objects that the clone did not create.*: 50000"):
            Clone(options, lambda: None).run()
        assert target.admin("select to_regnamespace('tidemark')") == [(None,)]
        target.run("select lo_unlink(50000)")
        Clone(replace(options, follows=True), lambda: None).run(following_for(target, 0))
        target.run("select lo_from_bytea(50002, 'theirs')")
        assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
        found = target.run("select oid, lo_get(oid) from pg_largeobject_metadata order by oid")
        assert found == [(50000, b"ours"), (50001, b"theirs"), (50002, b"theirs")]


@pytest.mark.full
def test_a_completed_clone_leaves_nothing_at_the_source(source: Database, options: CloneOptions) -> None:
    assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
    assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
    assert source.admin("select count(*) from pg_replication_slots where database = current_database()") == [(0,)]


def started(options: CloneOptions) -> subprocess.Popen[bytes]:
    """A process that clones and follows."""
    values = (options.source.reveal(), options.target.reveal(), options.names.mirror, options.folder, options.pg_bin)
    return subprocess.Popen([sys.executable, "-m", "tests.target.child", *map(str, values), "follow"])


@pytest.mark.full
def test_a_target_with_tables_is_refused_and_no_slot_is_left(
    source: Database, target: Database, options: CloneOptions
) -> None:
    target.run("create table mine (id int)")
    with pytest.raises(TargetNotReady, match=r"it is not empty: table public.mine"):
        Clone(options, lambda: None).run()
    assert target.admin("select to_regnamespace('tidemark')") == [(None,)]
    assert source.admin("select count(*) from pg_replication_slots where database = current_database()") == [(0,)]


def test_what_is_revoked_or_dropped_while_a_clone_follows_is_not_created_at_its_end(
    source: Database, target: Database, options: CloneOptions, caplog: pytest.LogCaptureFixture
) -> None:
    source.run(
        "grant select, insert on keyed to pg_monitor",
        "alter table only_key add constraint gone foreign key (id) references keyed not valid",
        "create policy mine on large using (small > 0)",
        "create sequence later",
    )
    source.admin(f"grant select on all sequences in schema public to {MIRROR}")
    assert Clone(replace(options, follows=True), lambda: None).run(following_for(target, 0)).phase is ClonePhase.FOLLOW
    source.run(
        "revoke insert on keyed from pg_monitor",
        "grant select on summed to pg_monitor",
        "alter table only_key drop constraint gone",
        "drop policy mine on large",
        "drop trigger told on large",
        "create function new() returns trigger language plpgsql as 'begin return new; end'",
        "create trigger new before insert on keyed for each row execute function new()",
        "create table uncloned (id int primary key references keyed)",
        "grant select on uncloned to pg_monitor",
        "drop sequence later; create sequence later start 7; create sequence uncloned_numbers",
        "alter table summed rename constraint summed_pkey to renamed",
        "alter table paired add constraint checked check (a is not null) not valid",
    )
    source.admin(f"grant select on all sequences in schema public to {MIRROR}")
    assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
    granted = "select relname, relacl::text from pg_class where relname in ('keyed', 'summed') order by 1"
    assert target.run(granted) == source.run(granted)
    assert target.run("select conname from pg_constraint where conname in ('gone', 'checked')") == [("checked",)]
    assert target.run("select polname from pg_policy") == []
    assert target.run("select tgname from pg_trigger where not tgisinternal") == []
    assert target.run("select nextval('later')") == [(7,)]
    named = " ".join(each for each in caplog.messages if "created at the source after the copy: " in each)
    assert all(each in named for each in ("uncloned", "TRIGGER public keyed new", "uncloned_numbers"))


def test_a_database_that_was_the_target_of_a_clone_can_be_cloned(
    source: Database, target: Database, options: CloneOptions
) -> None:
    """Its schema `tidemark` is not selected, and not dumped."""
    with source.session(OWNER) as session:
        record = CloneRecord(session, "earlier")
        record.create()
        record.begin(Identity(1, 2, "other", 1, None))
    assert not any("tidemark." in line for line in Clone(options, lambda: None).describe())
    assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
    assert contents(target) == contents(source)
    assert target.run("select name from tidemark.clones") == [(options.names.mirror,)]
    recorded = target.run("select name from tidemark.tables order by 1")
    assert recorded == [(f"public.{name}",) for name in sorted(TABLES)]


def test_owners_that_are_replaced_are_named(
    source: Database, target: Database, options: CloneOptions, caplog: pytest.LogCaptureFixture
) -> None:
    source.admin("alter table keyed owner to postgres", "alter table plain owner to postgres")
    replaced = f"ll objects belong to {OWNER}, which may not give them to their owners: postgres (2)"
    assert f"-- A{replaced}" in Clone(options, lambda: None).describe()
    assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
    assert f"a{replaced}" in caplog.messages
    assert target.run("select distinct tableowner from pg_tables where schemaname = 'public'") == [(OWNER,)]


@pytest.mark.full
def test_a_trigger_that_is_created_at_the_target_ends_a_clone_that_follows(
    target: Database, options: CloneOptions
) -> None:
    with pytest.raises(TargetTableUnfit, match=r"trigger 'late' of table public\.keyed"), followed(options):
        target.run(
            "create function late() returns trigger language plpgsql as 'begin new.n := 0; return new; end'",
            "create trigger late before update on keyed for each row execute function late()",
        )
        eventually(lambda: not any(each.is_written for each in clones(options)), 60)


def test_an_end_in_the_past_is_refused_before_anything_is_created(
    source: Database, target: Database, options: CloneOptions
) -> None:
    clone = Clone(replace(options, endpos=Lsn(1)), lambda: None)
    for attempt in (clone.run, lambda: list(clone.describe())):
        with pytest.raises(InvalidValue, match="the position of the source before the copy"):
            attempt()
    assert target.admin("select to_regnamespace('tidemark')") == [(None,)]
    assert source.admin("select count(*) from pg_replication_slots where database = current_database()") == [(0,)]


@pytest.mark.full
def test_a_completion_that_fails_is_continued_with_the_same_end(
    source: Database, target: Database, options: CloneOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlogged tables are copied as of a later position than that end."""
    source.run("create unlogged table fleeting (id int)", "insert into fleeting values (1)")
    Clone(replace(options, follows=True, once=True), lambda: None).run()
    source.run("insert into keyed values (5000, 'before')")
    ((endpos,),) = source.admin("select pg_current_wal_insert_lsn()::text")
    source.run("insert into keyed values (5001, 'after')", "insert into fleeting values (2)")
    clone = Clone(replace(options, endpos=Lsn.parse(endpos)), lambda: None)
    with monkeypatch.context() as patching:

        def fail(*_: object) -> None:
            raise DumpFailed("pg_dump failed")

        patching.setattr(CloneSchema, "dump_last", fail)
        with pytest.raises(DumpFailed):
            clone.run()
    assert clone.run().phase is ClonePhase.COMPLETE
    assert target.run("select id from keyed where id >= 5000") == [(5000,)]
    assert target.run("select id from fleeting order by id") == [(1,), (2,)]


def test_a_dry_run_checks_both_servers_and_creates_nothing(
    source: Database, target: Database, options: CloneOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    both = options.source.reveal(), options.target.reveal()
    how = ("--dry-run", "--name", options.names.mirror, "--state", options.folder / "state", "--pg-bin", options.pg_bin)
    command = ["clone", *both, *map(str, how)]
    assert run(command) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("-- Mode logical: ")
    assert (
        f"-- Replication slot {options.names.slot} is created, and a temporary slot while tables are copied." in lines
    )
    assert any(line.startswith("-- Created at the target: ") for line in lines)
    assert {line.split()[0] for line in lines if line.startswith("public.")} == {f"public.{name}" for name in TABLES}
    assert lines[-1].endswith("to copy")
    assert not (options.folder / "state").exists()
    assert target.admin("select to_regnamespace('tidemark')") == [(None,)]
    assert source.admin("select count(*) from pg_replication_slots where database = current_database()") == [(0,)]
    target.run("create table mine (id int)")
    assert run(command) == ExitCode.CHECKS_FAILED
    assert "it is not empty: table public.mine" in capsys.readouterr().err


@pytest.mark.full
def test_an_altered_table_stops_it(source: Database, target: Database, options: CloneOptions) -> None:
    following = Clone(replace(options, follows=True), lambda: None)
    assert following.run(following_for(target, 0)).phase is ClonePhase.FOLLOW
    source.run("alter table keyed alter v type text using upper(v)")
    with pytest.raises(SourceAltered, match=r"table public.keyed was altered"):
        Clone(options, lambda: None).run()


@pytest.mark.full
def test_columns_are_changed_while_a_clone_follows(source: Database, target: Database, options: CloneOptions) -> None:
    assert Clone(replace(options, follows=True), lambda: None).run(following_for(target, 0)).phase is ClonePhase.FOLLOW
    source.run(
        "truncate only_key",
        "alter table keyed add x int default 3, drop n",
        "insert into keyed values (1000, 'new', 4)",
        "alter table summed rename a to b",
        "alter table plain add y text default 'unused'",
    )
    with pytest.raises(SourceAltered, match=r"was altered at the source .*(?s:.)*--on-ddl carry"):
        Clone(replace(options, carries=False), lambda: None).run()
    assert Clone(replace(options, follows=True), lambda: None).run(following_for(target, 7)).phase is ClonePhase.FOLLOW
    source.run("alter table only_key add z int default 1", "insert into only_key values (1, 2)")
    assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
    assert contents(target) == contents(source)
    assert target.run("select count(*) from keyed where x = 3") == source.run("select count(*) from keyed where x = 3")


@pytest.mark.full
def test_a_clone_follows_through_a_restart_of_its_source(
    start: Start, target: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new table is named by the next check of the definitions at the source."""

    def is_named(table: str) -> bool:
        return any(f"table public.{table} was created" in each for each in caplog.messages)

    for source in database_with_tables(start(own_identity=True)):
        with followed(clone_options(source, target, tmp_path)):
            source.run("create table before (id int)")
            eventually(lambda: is_named("before"))
            kill = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name like"
            source.admin(f"{kill} 'tidemark %' and datname = current_database()")
            source.run("create table killed (id int)")
            eventually(lambda: is_named("killed"), 30)
            source.server.restart()
            source.run("create table restarted (id int)", "insert into keyed values (1000, 'new')")
            eventually(lambda: is_named("restarted"), 60)
            eventually(lambda: target.run("select from keyed where id = 1000"))


@pytest.mark.full
def test_a_column_of_a_foreign_key_is_not_dropped_while_a_clone_follows(
    source: Database, target: Database, options: CloneOptions
) -> None:
    source.run("update paired set c = null", "alter table paired add foreign key (c) references keyed")
    Clone(replace(options, follows=True), lambda: None).run(following_for(target, 0))
    source.run("alter table paired drop c", "insert into paired values (100, 'x')")
    with pytest.raises(SourceAltered, match=r"column 'c' of table public.paired was renamed or dropped .* foreign key"):
        Clone(options, lambda: None).run()


@pytest.mark.full
def test_selected_tables_are_cloned(source: Database, target: Database, options: CloneOptions) -> None:
    chosen = Selection((Pattern("keyed"), Pattern("large")))
    source.admin(f"alter publication {options.names.publication} set table keyed, large")
    Clone(replace(options, selection=chosen), lambda: None).run()
    assert target.run(
        "select array_agg(relname order by relname) from pg_class where relkind = 'r' "
        "and relnamespace = 'public'::regnamespace"
    ) == [(["keyed", "large"],)]
    assert target.run("select k::text from keyed k order by 1") == source.run("select k::text from keyed k order by 1")
