"""endpos: a transaction counts if and only if its commit LSN is at or below it; what lies above is for the next run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.database import Database
from harness.mirrored import Mirrored, ended, mirrored, receive_all, receiving
from tests.conftest import NEWEST
from tidemark.clock import Lsn
from tidemark.log.blocks import blocks
from tidemark.log.reader import LogReader

pytestmark = pytest.mark.quick

BIG = "insert into t select i, repeat('x', 100) from generate_series({0}, {0} + 4999) i"


@pytest.fixture
def mirror(db: Database, tmp_path: Path) -> Mirrored:
    db.run("create table t (id int primary key, v text)", "create table unpublished (a int)")
    db.admin(f"alter database {db.name} set logical_decoding_work_mem = '64kB'")
    return mirrored(db, tmp_path, "t")


def now(database: Database) -> Lsn:
    return Lsn.parse(database.admin("select pg_current_wal_insert_lsn()::text")[0][0])


def commits(mirror: Mirrored) -> list[Lsn]:
    """The published ones, as SQL has them: nudges and the judge's own are none of this test's."""
    return [each.lsn for each in mirror.by_sql() if any(message[:1] == b"I" for message in each.messages)]


def held(mirror: Mirrored) -> list[Lsn]:
    found = LogReader(mirror.options.folder).commits()["lsn"].tolist()
    return [Lsn(lsn) for lsn in found]


def confirmed(mirror: Mirrored) -> Lsn:
    name = mirror.options.names.slot
    query = f"select confirmed_flush_lsn::text from pg_replication_slots where slot_name = '{name}'"
    return Lsn.parse(mirror.database.admin(query)[0][0])


def named(mirror: Mirrored) -> set[Lsn]:
    """The positions that the log was told of: commits, and what keepalives named."""
    found = set(held(mirror))
    for path in mirror.options.folder.glob("*.index"):
        found |= {Lsn(block.position) for block in blocks(memoryview(path.read_bytes()), int(path.stem), 0)}
    return found


def run_to(mirror: Mirrored, endpos: Lsn) -> None:
    """One run: it says that it ended there, and has confirmed nothing above, and nothing that is no position."""
    before = confirmed(mirror)
    with receiving(mirror, replace(mirror.options, endpos=endpos)) as process:
        assert ended(process) == endpos
    at = confirmed(mirror)
    assert before <= at <= endpos
    assert at in {before, *named(mirror)}
    assert all(lsn <= endpos for lsn in held(mirror))
    assert LogReader(mirror.options.folder).received >= endpos, "whoever reads the log knows that nothing is missing"


def require_published(mirror: Mirrored, expected: list[Lsn]) -> None:
    wanted = set(commits(mirror))
    assert [lsn for lsn in held(mirror) if lsn in wanted] == expected


def finish(mirror: Mirrored) -> None:
    """What lay above is received now, and nothing twice."""
    receive_all(mirror)
    assert len(set(held(mirror))) == len(held(mirror))


def test_a_commit_at_endpos_counts_and_one_a_byte_above_does_not(mirror: Mirrored) -> None:
    for n in range(6):
        mirror.database.run(f"insert into t values ({n}, 'a')")
    at = commits(mirror)
    for count, endpos in ((0, Lsn(at[0].value - 1)), (2, at[1]), (2, Lsn(at[2].value - 1)), (3, Lsn(at[2].value + 1))):
        run_to(mirror, endpos)
        require_published(mirror, at[:count])
    finish(mirror)
    require_published(mirror, at)


@pytest.mark.full
@NEWEST
def test_an_endpos_already_reached_ends_at_once(mirror: Mirrored) -> None:
    mirror.database.run("insert into t values (1, 'a')")
    (at,) = commits(mirror)
    for _ in range(2):
        run_to(mirror, at)
        require_published(mirror, [at])


@NEWEST
def test_a_transaction_that_endpos_cuts_in_two_does_not_count(mirror: Mirrored) -> None:
    database = mirror.database
    with database.connect() as other, other.transaction():
        other.execute("insert into t values (-1, 'before')")
        between = now(database)
        other.execute("insert into t values (-2, 'after')")
    database.run("insert into t values (-3, 'next')")
    run_to(mirror, between)
    assert not [lsn for lsn in held(mirror) if lsn in commits(mirror)]
    receive_all(mirror)
    assert mirror.require_equal() >= 2


@pytest.mark.full
def test_streamed_transactions_around_endpos(mirror: Mirrored) -> None:
    """Three large ones, interleaved: the second is open at endpos, the first ends there, the third lies above."""
    database = mirror.database
    with database.connect() as one, database.connect() as two:
        one.execute("begin")
        two.execute("begin")
        one.execute(BIG.format(0).encode())
        two.execute(BIG.format(10_000).encode())
        one.execute("commit")
        cut = now(database)
        two.execute(BIG.format(20_000).encode())
        two.execute("commit")
    database.run(BIG.format(30_000))
    for endpos, count in ((cut, 1), (None, 3)):
        if endpos is None:
            receive_all(mirror)
        else:
            run_to(mirror, endpos)
        streamed = LogReader(mirror.options.folder).commits()["streamed"]
        assert int(streamed.sum()) == count
    assert mirror.require_equal() >= 3


@pytest.mark.full
@NEWEST
def test_endpos_at_each_end_of_a_streamed_transaction(mirror: Mirrored) -> None:
    for first in (0, 10_000):
        mirror.database.run(BIG.format(first))
    at = commits(mirror)
    for endpos, count in ((Lsn(at[0].value - 1), 0), (at[0], 1), (Lsn(at[1].value - 1), 1), (at[1], 2)):
        run_to(mirror, endpos)
        require_published(mirror, at[:count])
    finish(mirror)
    require_published(mirror, at)


def test_beyond_the_last_change_a_keepalive_ends_it(mirror: Mirrored) -> None:
    """What the source writes and does not publish moves it on; nobody nudges."""
    mirror.database.run("insert into t values (1, 'a')", "insert into unpublished select generate_series(1, 1000)")
    endpos = now(mirror.database)
    run_to(mirror, endpos)
    nudged = [each for each in mirror.by_sql() if any(message[10:19] == b"tidemark\0" for message in each.messages)]
    assert not nudged
    require_published(mirror, commits(mirror))


@NEWEST
def test_an_endpos_just_after_a_pages_header_is_reached_on_an_idle_server(mirror: Mirrored) -> None:
    """As pg_current_wal_insert_lsn() is after a switch of WAL: the server itself names only the page's start."""
    mirror.database.run("insert into t values (1, 'a')")
    mirror.database.admin("select pg_switch_wal()")
    endpos = now(mirror.database)
    run_to(mirror, endpos)
    require_published(mirror, commits(mirror))


@pytest.mark.full
@NEWEST
def test_an_endpos_in_the_future_is_waited_for(mirror: Mirrored) -> None:
    endpos = Lsn(now(mirror.database).value + 500_000)
    with receiving(mirror, replace(mirror.options, endpos=endpos)) as process:
        mirror.catch_up()
        assert process.process.poll() is None
        mirror.database.run(BIG.format(0), "insert into t values (-1, 'above')")
        assert ended(process) == endpos
    assert confirmed(mirror) <= endpos
    receive_all(mirror)
    assert mirror.require_equal() >= 2
