"""A target that crashes, or cannot be written for some time, has everything at the end that the source has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.database import OWNER, Database, create_database
from harness.mirrored import eventually, receiving
from harness.postgres import Server
from harness.small_disk import CannotMount, fill, small_disk
from tests.conftest import NEWEST, Start
from tests.target.clones import clone_options
from tests.target.following import Cloned, cloned_tables
from tests.target.load import contents, create_tables, database_with_tables, writing
from tests.target.polled import copied, options_of, poller_of
from tidemark.errors import ConnectionLost, UnsupportedServer
from tidemark.storage.fail_points import AnyFailPoint, CloneFailPoint, attach, detach
from tidemark.target.clone import Clone
from tidemark.target.follow import follow
from tidemark.target.state import ClonePhase

pytestmark = [pytest.mark.quick, NEWEST]
UNLOGGED = (
    "create unlogged table fleeting (id int primary key, v text)",
    "create function told() returns trigger language plpgsql as 'begin new.v := ''told''; return new; end'",
    "create trigger told before insert on fleeting for each row when (new.id > 5) execute function told()",
    "create unlogged table child (id int references fleeting)",
    "create unlogged table idle (id int, v text)",
    "create trigger told before insert on idle for each row execute function told()",
    "create materialized view numbers as select count(*) as n from fleeting",
    "insert into fleeting select i, 'v' || i from generate_series(1, 5) i",
    "insert into child values (3)",
    "refresh materialized view numbers",
)


@pytest.fixture
def source(server: Server, ranges: bool) -> Iterator[Database]:
    yield from database_with_tables(server, ranges=ranges)


@pytest.fixture
def target(start: Start) -> Database:
    """An empty database whose role does not wait for its commits: a crash loses those of the last seconds."""
    database = create_database(start(own_identity=True, wal_writer_delay="10s"))
    database.admin(f"alter role {OWNER} in database {database.name} set synchronous_commit = off")
    return database


@pytest.fixture
def cloned(source: Database, target: Database, tmp_path: Path, ranges: bool) -> Cloned:
    return cloned_tables(source, create_tables(target, ranges=ranges), tmp_path)


@contextmanager
def at(point: CloneFailPoint, act: Callable[[], object]) -> Iterator[None]:
    """Act the first time that a clone comes to a point."""
    once = threading.Lock()

    def observe(reached: AnyFailPoint) -> None:
        if reached is point and once.acquire(blocking=False):
            act()

    attach(observe)
    try:
        yield
    finally:
        detach(observe)


@contextmanager
def following(cloned: Cloned) -> Iterator[None]:
    """Follow in a thread, and up to the present when the context ends."""
    done = threading.Event()
    with receiving(cloned.mirror):
        thread = threading.Thread(target=follow, args=[cloned.options(), None, done.is_set])
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
        follow(cloned.options(), cloned.position(), lambda: False)


def test_unlogged_tables_that_a_crash_empties_while_a_clone_is_completed_are_copied_again(
    source: Database, target: Database, tmp_path: Path
) -> None:
    """Also if triggers and foreign keys were created for them before."""
    source.run(*UNLOGGED)
    options = clone_options(source, target, tmp_path)
    with at(CloneFailPoint.CONSTRAINTS_CREATED, lambda: target.server.restart("immediate")):
        with pytest.raises(ConnectionLost):
            Clone(options, lambda: None).run()
    assert target.run("select count(*) from fleeting") == [(0,)]
    assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
    for query in ("select * from fleeting order by id", "select * from child", "select * from numbers"):
        assert target.run(query) == source.run(query)
    assert target.run("insert into fleeting values (6), (7) returning v") == [("told",), ("told",)]
    assert target.run("select count(*) from pg_constraint where conrelid = 'child'::regclass and contype = 'f'") == [
        (1,)
    ]


def test_a_completed_clone_is_complete_after_a_crash(source: Database, target: Database, tmp_path: Path) -> None:
    """The slot and the log are removed then, so a clone that was followed by a crash could not be continued."""
    source.run("create sequence numbers", "select setval('numbers', 30)")
    options = clone_options(source, target, tmp_path)
    with at(CloneFailPoint.COMPLETED, lambda: target.server.restart("immediate")):
        with pytest.raises(ConnectionLost):
            Clone(options, lambda: None).run()
    assert target.run("select phase from tidemark.clones") == [(ClonePhase.COMPLETE.value,)]
    assert target.run("select nextval('numbers')") == [(31,)]


def test_a_poll_that_a_crash_has_lost_is_repeated(source: Database, target: Database, tmp_path: Path) -> None:
    """Nothing changes at the source after it."""
    options = options_of(source, target, tmp_path)
    copied(options, target)
    target.admin("checkpoint")
    with poller_of(options) as poller:
        assert poller.step() is not None
        target.admin("checkpoint")
        source.run("insert into keyed values (1, 'a')")
        assert poller.step() is not None
        assert poller.step() is None
        target.server.restart("immediate")
        with pytest.raises(ConnectionLost):
            poller.step()
        poller.step()
        assert contents(target) == contents(source)
        assert poller.step() is None
        target.run(
            "delete from keyed",
            "update tidemark.clones set snapshot = null, applied_lsn = null",
            "update tidemark.tables set digest = null, rows = 0",
        )
        assert poller.step() is not None, "the target was restored to an earlier time"
    assert contents(target) == contents(source)


@pytest.mark.parametrize("ranges", [False], ids=["binary"])
def test_a_target_that_crashes_while_it_follows_loses_nothing(cloned: Cloned, short: bool) -> None:
    with following(cloned), writing(cloned.source, 2):
        for _ in range(2 if short else 10):
            before = cloned.position()
            eventually(lambda: applied_to(cloned, str(before)), 300)  # noqa: B023
            cloned.target.server.restart("immediate")
    assert contents(cloned.target) == contents(cloned.source)


def applied_to(cloned: Cloned, lsn: str) -> bool:
    return cloned.target.admin(f"select coalesce(applied_lsn >= '{lsn}', false) from tidemark.clones") == [(True,)]


def test_a_target_that_is_a_standby_for_some_time_is_named_and_continued(cloned: Cloned) -> None:
    with receiving(cloned.mirror):
        cloned.source.run("insert into keyed values (1, 'a')")
        follow(cloned.options(), cloned.position(), lambda: False)
        server = cloned.target.server
        server.stop()
        (server.data / "standby.signal").touch()
        server.start()
        cloned.source.run("insert into keyed values (2, 'b')")
        with pytest.raises(UnsupportedServer, match=r"read-only|recovery") as raised:
            follow(cloned.options(), cloned.position(), lambda: False)
        assert raised.value.hint.startswith("Connect to the primary")
        server.stop()
        (server.data / "standby.signal").unlink()
        server.start()
        follow(cloned.options(), cloned.position(), lambda: False)
    assert contents(cloned.target) == contents(cloned.source)


def test_a_target_without_space_is_continued_when_it_has_some(cloned: Cloned) -> None:
    server = cloned.target.server
    try:
        with small_disk(server.folder / "small", 24 << 20) as folder:
            server._space.give(folder)
            cloned.target.admin(
                f"create tablespace small location '{folder}'", "alter table large set tablespace small"
            )
            ballast = fill(folder)
            with following(cloned):
                cloned.source.run("insert into large select i, repeat('x', 9000), i from generate_series(1, 300) i")
                cloned.source.run("insert into keyed values (1, 'after')")
                eventually(lambda: "No space left on device" in server.log.read_text())
                assert cloned.target.run("select count(*) from keyed") == [(0,)]
                ballast.unlink()
                eventually(lambda: cloned.target.run("select from keyed"), 60)
            assert contents(cloned.target) == contents(cloned.source)
            server.stop()
    except CannotMount as error:
        pytest.skip(f"no file system can be mounted: {error}")
