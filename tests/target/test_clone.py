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

from harness.database import MIRROR, OWNER, Database, create_database
from harness.postgres import Server
from tests.conftest import NEWEST
from tests.target.load import TABLES, contents, database_with_tables, hostile, writing
from tidemark.errors import SourceAltered, TargetNotReady
from tidemark.postgres.names import MirrorNames
from tidemark.schema.selection import Pattern, Selection
from tidemark.target.clone import Clone, CloneOptions
from tidemark.target.state import Phase

pytestmark = [pytest.mark.quick, NEWEST]
LATER = (
    "alter table keyed add foreign key (id) references only_key (id) not valid",
    "create function told() returns trigger language plpgsql as 'begin new.v := ''told''; return new; end'",
    "create trigger told before insert or update on large for each row when (false) execute function told()",
    "create sequence numbers increment 3; select setval('numbers', 30)",
    "create view pairs as select a, count(*) from paired group by a",
    "create index on paired (c)",
)


@pytest.fixture
def source(server: Server) -> Iterator[Database]:
    for database in database_with_tables(server):
        database.run(*LATER[1:])
        with database.connect() as connection:
            connection.autocommit = True
            hostile(connection, Random(1), 200)  # noqa: S311 - to be repeated
        database.admin(f"grant select on all sequences in schema public to {MIRROR}")
        yield database


@pytest.fixture
def target(server: Server) -> Iterator[Database]:
    database = create_database(server)
    yield database
    database.drop()


@pytest.fixture
def options(source: Database, target: Database, tmp_path: Path) -> CloneOptions:
    names = MirrorNames(source.name)
    source.admin(
        f"create publication {names.publication} for table {', '.join(TABLES)} "
        "with (publish = 'insert, update, delete, truncate', publish_generated_columns = stored)"
    )
    pg_bin = source.server.install.home / "bin"
    return CloneOptions(source.dsn(), target.dsn(OWNER), names, tmp_path, pg_bin=pg_bin)


def following_for(target: Database, seconds: float) -> Callable[[], bool]:
    """A signal that comes when a clone has followed for some seconds."""
    begun: list[float] = []

    def stopping() -> bool:
        if not begun:
            created = target.admin("select to_regclass('tidemark.clones') is not null") == [(True,)]
            if created and target.admin("select phase from tidemark.clones") == [(Phase.FOLLOW.value,)]:
                begun.append(time.monotonic())
        return bool(begun) and time.monotonic() > begun[0] + seconds

    return stopping


def test_a_database_is_cloned_under_load(source: Database, target: Database, options: CloneOptions) -> None:
    with writing(source, 2):
        followed = Clone(replace(options, follows=True), lambda: None)
        assert followed.run(following_for(target, 2)).phase is Phase.FOLLOW
    ended = Clone(options, lambda: None).run()
    assert ended.phase is Phase.COMPLETE
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
    assert Clone(options, lambda: None).run().phase is Phase.COMPLETE
    assert contents(target) == contents(source)


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


@pytest.mark.full
def test_an_altered_table_stops_it(source: Database, target: Database, options: CloneOptions) -> None:
    following = Clone(replace(options, follows=True), lambda: None)
    assert following.run(following_for(target, 0)).phase is Phase.FOLLOW
    source.run("alter table keyed alter v type text using upper(v)")
    with pytest.raises(SourceAltered, match=r"table public.keyed was altered"):
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
