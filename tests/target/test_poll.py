"""A clone by polls is the content of one snapshot of its source after every poll, whatever was done to the source."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from harness.database import Database, create_database
from harness.load import running
from harness.postgres import Server
from tests.conftest import NEWEST
from tests.target.copies import Pair
from tests.target.load import contents, database_with_tables, hostile, writing
from tests.target.polled import copied, options_of, poller_of
from tidemark.clock import Lsn
from tidemark.errors import InvalidValue, SourceAltered, TargetDiffers, TargetInUse, TargetTableUnfit
from tidemark.postgres.capability import Mode
from tidemark.target.clone import Clone
from tidemark.target.options import CloneOptions
from tidemark.target.state import ClonePhase

pytestmark = [pytest.mark.quick, NEWEST]


@pytest.fixture
def source(server: Server) -> Iterator[Database]:
    for database in database_with_tables(server):
        change(database, Random(1), 100)  # noqa: S311 - to be repeated
        yield database


@pytest.fixture
def options(source: Database, target: Database, tmp_path: Path) -> CloneOptions:
    return options_of(source, target, tmp_path)


def change(database: Database, chance: Random, transactions: int) -> None:
    with database.connect() as connection:
        connection.autocommit = True
        hostile(connection, chance, transactions)


def test_every_poll_leaves_the_content_of_the_source(
    source: Database, target: Database, options: CloneOptions, short: bool
) -> None:
    chance = Random(2)  # noqa: S311 - to be repeated
    copied(options, target)
    with poller_of(options) as poller:
        for _ in range(4 if short else 200):
            change(source, chance, chance.choice([1, 3, 20]))
            poller.step()
            assert contents(target) == contents(source)
    assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
    assert contents(target) == contents(source)


ODD = (
    "create type mood as enum ('sad', 'ok')",
    "create domain few as numeric(8, 2) check (value < 1000)",
    "create table made (a int, b int, k int generated always as (a * 10) stored primary key)",
    "create table cased (k text primary key, v text)",
    "create table named (id int primary key, c regclass, p regtype[])",
    "create table bag (j json, f float4, m mood, r int4range[])",
    "create table nothing ()",
    "create table doubles (k float8, m mood, v few, primary key (k, m))",
    'create table bytes (k "char" primary key, v "char")',
    "create table parted (id int, half text, primary key (id, half)) partition by list (half)",
    "create table parted_a partition of parted for values in ('a')",
    "create table parted_b partition of parted for values in ('b')",
    "create table above (id int primary key, v text)",
    "create table below (primary key (id)) inherits (above)",
    "create unlogged table fleeting (id int primary key, v text)",
    "create table late (id int primary key, n int unique deferrable initially deferred)",
    "create table upper (id int primary key, v text)",
    "create unique index on upper (upper(v))",
    "create table doubled (id int primary key, a int, twice int generated always as (a * 2) stored unique)",
    'create table "odd ""name" ("h" int primary key, "o" text, "c0" text, "k1" int)',
)
ROUNDS = (
    (
        "insert into made values (1, 1), (2, 2)",
        "insert into cased values ('a', 'x'), ('B', 'y')",
        "insert into named values (1, 'named', '{int4}'), (2, null, null)",
        "insert into bag select '{\"a\": 1}', '-0', 'sad', '{}' from generate_series(1, 3)",
        "insert into nothing default values",
        "insert into doubles values ('-0', 'sad', 1), ('NaN', 'ok', 2.50)",
        "insert into bytes values ('a', 'b'), ('b', null)",
        "insert into parted values (1, 'a'), (2, 'b')",
        "insert into above values (1, 'x')",
        "insert into below values (1, 'y')",
        "insert into fleeting values (1, 'x')",
        "insert into late values (1, 1), (2, 2)",
        "insert into upper values (1, 'a'), (2, 'b')",
        "insert into doubled values (1, 1), (2, 2)",
        """insert into "odd ""name" values (1, 'o', '', 1), (2, null, 'c', null)""",
    ),
    (
        "update made set a = a + 10; update made set a = 13 - a",
        "update cased set k = upper(k)",
        "update named set c = 'bag' where id = 1",
        "update bag set f = '0' where ctid = (select min(ctid) from bag)",
        "insert into nothing default values",
        "update doubles set k = '0' where k = 0",
        "update bytes set k = 'c' where k = 'a'",
        "update parted set half = 'b' where id = 1",
        "update below set v = 'z'",
        "update fleeting set v = 'y'",
        "begin; update late set n = 3 - n; commit",
        "update upper set v = case id when 1 then 'x' else 'A' end",
        "update upper set v = case id when 1 then 'B' else v end",
        "update doubled set a = a + 5; update doubled set a = 8 - a",
        """update "odd ""name" set h = h + 10, o = 'h'""",
    ),
    (
        "vacuum full made",
        "truncate cased",
        "insert into cased values ('A', 'again')",
        "delete from nothing where ctid = (select min(ctid) from nothing)",
        "delete from bag",
        "truncate parted, fleeting",
        "cluster above using above_pkey",
        "vacuum (freeze) late, upper, doubled",
        """delete from "odd ""name" where h = 11""",
    ),
)


@pytest.mark.full
def test_odd_tables(server: Server, target: Database, tmp_path: Path) -> None:
    source = create_database(server)
    source.run(*ODD)
    options = options_of(source, target, tmp_path)
    copied(options, target)
    pair = Pair(source, target)
    with poller_of(options) as poller:
        for statements in ROUNDS:
            source.run(*statements)
            assert poller.step() is not None
            pair.require_equal()
    source.drop()


@pytest.mark.full
def test_a_poll_without_changes_writes_no_row(source: Database, target: Database, options: CloneOptions) -> None:
    copied(options, target)
    with poller_of(options) as poller:
        source.run("create temporary table other (); drop table other", "vacuum (freeze)")
        polled = poller.step()
        assert polled is not None
        assert (polled.merged.inserted, polled.merged.updated, polled.merged.deleted) == (0, 0, 0)
        with pytest.raises(TargetInUse, match="another process writes clone"):
            poller_of(options).step()


def test_a_trigger_of_the_target_stops_a_poll(source: Database, target: Database, options: CloneOptions) -> None:
    copied(options, target)
    target.run(
        "create function later() returns trigger language plpgsql as 'begin new.n := 0; return new; end'",
        "create trigger later before update on keyed for each row execute function later()",
    )
    with poller_of(options) as poller:
        with pytest.raises(TargetTableUnfit, match=r"trigger 'later' of table public\.keyed"):
            poller.step()
        target.run("alter table keyed disable trigger later")
        poller.step()
    assert contents(target) == contents(source)


# What is written at the target, and the error after a poll, and before the first one.
LEFT = r"at the target has {}, and the last poll or the copy left "
LACKS, EXTRA = r"5; it has no row with \(id\) = \(3\)", r"; the source has no row with \(id\) = \(99\)"
FOREIGN = (
    ("delete from keyed where id = 3", *[LEFT.format("4 rows") + LACKS] * 2),
    ("insert into keyed values (99)", *[LEFT.format("6 rows") + "5" + EXTRA] * 2),
    (
        "update keyed set id = 99 where id = 3",
        LEFT.format("other rows") + LACKS + EXTRA,
        r"no row with \(id\) = \(3\), ",
    ),
    ("update plain set b = 'x'", LEFT.format("other rows") + "1", None),
)


@pytest.mark.parametrize("polled", [True, pytest.param(False, marks=pytest.mark.full)], ids=["polled", "copied"])
def test_what_another_application_writes_stops_a_poll(
    server: Server, target: Database, tmp_path: Path, *, polled: bool
) -> None:
    for source in database_with_tables(server):
        source.run("insert into keyed select generate_series(1, 5)", "insert into plain values (1, 'b', 0)")
        options = options_of(source, target, tmp_path)
        copied(options, target)
        with poller_of(options) as poller:
            if polled:
                poller.step()
            source.run("insert into keyed values (6)", "insert into only_key values (1)")
            for statement, *messages in FOREIGN:
                message = messages[0 if polled else 1]
                if message is not None:
                    target.run("create table kept as table keyed; create table kept_plain as table plain", statement)
                    with pytest.raises(TargetDiffers, match=message):
                        poller.step()
                    assert target.run("select count(*) from only_key") == [(0,)]
                    target.run(
                        "truncate keyed, plain; insert into keyed table kept; insert into plain table kept_plain"
                    )
                    target.run("drop table kept, kept_plain")
            poller.step()
        assert contents(target) == contents(source)


def test_what_a_poll_cannot_do_is_refused(target: Database, options: CloneOptions) -> None:
    with pytest.raises(InvalidValue, match=r"--endpos 0/10 needs mode logical: as requested by --mode"):
        Clone(replace(options, endpos=Lsn(16)), lambda: None).run()
    with pytest.raises(InvalidValue, match=r"--on-difference repair needs mode logical"):
        Clone(replace(options, repairs=True), lambda: None).run()
    with pytest.raises(InvalidValue, match="polling interval too short: 1 s"):
        Clone(replace(options, interval_s=1), lambda: None).run()
    assert target.admin("select to_regnamespace('tidemark')") == [(None,)]


@pytest.mark.full
def test_tables_are_as_of_one_snapshot(server: Server, target: Database, tmp_path: Path, short: bool) -> None:
    source = create_database(server)
    source.run(
        *(f"create table {name} (id int primary key, n int)" for name in ("one", "two")),
        "insert into one select i, 100 from generate_series(1, 10) i",
    )
    options = options_of(source, target, tmp_path)
    copied(options, target)

    def move(client: int, stop: threading.Event) -> None:
        chance = Random(client)  # noqa: S311 - to be repeated
        with source.connect() as connection:
            connection.autocommit = True
            while not stop.is_set():
                a, b = chance.sample(["one", "two"], 2)
                i = chance.randrange(1, 11)
                connection.execute(
                    f"with moved as (delete from {a} where id = {i} returning *) insert into {b} select * from moved "
                    f"on conflict (id) do update set n = {b}.n + excluded.n".encode()
                )

    with running(move, 2), poller_of(options) as poller:
        for _ in range(3 if short else 40):
            assert poller.step() is not None
            assert target.run("select sum(n) from (table one union all table two) t") == [(1000,)]
    source.drop()


@pytest.mark.full
def test_a_killed_clone_continues(source: Database, target: Database, options: CloneOptions, short: bool) -> None:
    chance = Random(7)  # noqa: S311 - to be repeated
    values = (options.source.reveal(), options.target.reveal(), options.names.mirror, options.folder, options.pg_bin)
    command = [sys.executable, "-m", "tests.target.child", *map(str, values), "follow", "poll"]
    with writing(source, 2):
        for _ in range(4 if short else 40):
            child = subprocess.Popen(command)
            with suppress(subprocess.TimeoutExpired):
                assert child.wait(1 + 6 * chance.random()) == 0
            child.kill()
            child.wait()
    assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
    assert contents(target) == contents(source)


@pytest.mark.full
def test_a_clone_that_was_killed_when_it_was_completed_makes_no_poll(
    source: Database, target: Database, options: CloneOptions
) -> None:
    copied(options, target)
    with poller_of(options) as poller:
        poller.step()
    before = contents(source)
    target.admin("update tidemark.clones set phase = 'completion'")
    source.run("insert into keyed values (-7)")
    assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
    assert contents(target) == before
    assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE


@pytest.mark.full
def test_a_clone_keeps_its_mode(source: Database, target: Database, options: CloneOptions) -> None:
    copied(options, target)
    with pytest.raises(InvalidValue, match="was begun in mode poll, which cannot be changed"):
        Clone(replace(options, mode=Mode.LOGICAL), lambda: None).run()
    source.run("insert into keyed values (-7)")
    assert Clone(replace(options, mode=None), lambda: None).run().phase is ClonePhase.COMPLETE
    assert contents(target) == contents(source)


@pytest.mark.full
def test_an_altered_table_stops_it(source: Database, target: Database, options: CloneOptions) -> None:
    copied(options, target)
    source.run("alter table keyed alter v type text using upper(v)")
    with poller_of(options) as poller, pytest.raises(SourceAltered, match=r"table public.keyed was altered"):
        poller.step()
