"""One part from server to server: memory is limited, and every failure leaves both sessions usable or closed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bench.memory import forget_peak, peak_mb, resident_mb
from harness.database import OWNER, Database
from harness.mirrored import eventually
from harness.proxy import Proxy
from harness.standby import shared
from tests.conftest import NEWEST
from tests.target.copies import Pair, pair_of, tables
from tidemark.errors import ConnectionLost, RowRejected, SourceError, TableChanged, TidemarkError, TimedOut
from tidemark.pipeline.copy.parts import Part
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.shared import SharedSnapshot
from tidemark.target.columns import CarriedTable, carried_columns, read_server
from tidemark.target.pipe import PipedPart, SourceSide, empty_table, pipe_part

pytestmark = [pytest.mark.full, NEWEST]

UNLIMITED = Timeouts(statement_s=0, lock_s=0.5)
TABLE = "create table t (id int, v text)"
ROWS = "insert into t select i, repeat(md5(i::text), 30) from generate_series(1, {}) i"


@pytest.fixture
def pair(db: Database) -> Iterator[Pair]:
    with pair_of(db.server, db.server) as found:
        found.both(TABLE)
        yield found


@contextmanager
def sides(pair: Pair, dsn: Dsn | None = None) -> Iterator[tuple[SourceSide, Session, CarriedTable]]:
    """A session with a snapshot of the source, a session of the target, and the table."""
    target = dsn or pair.target.dsn(OWNER)
    with shared(pair.source) as (snapshot, holder), Session.open(target, "test", UNLIMITED) as session:
        (table,) = tables(holder, "t")
        with session.transaction():
            (found,) = (each for each in read_catalog(session).tables if each.name == "t")
            carried = carried_columns(table, found, read_server(holder), read_server(session))
        with SharedSnapshot(snapshot.dsn, None, snapshot.name).session("test", UNLIMITED) as source:
            yield SourceSide(source, snapshot.dsn), session, carried


def recorded(_: Session, __: PipedPart) -> None:
    pass


def piped(source: SourceSide, target: Session, table: CarriedTable, empty: bool = True) -> PipedPart:
    emptied: Callable[[Session], None] = lambda session: empty_table(session, table, copied_before=True)  # noqa: E731
    part = Part(table.fingerprint.oid, 0, None, 0)
    return pipe_part(source, target, table, part, recorded, emptied if empty else None)


@pytest.mark.quick
def test_rows_keep_their_order(pair: Pair) -> None:
    pair.source.run(ROWS.format(20_000))
    with sides(pair) as (source, target, table):
        for _ in range(3):
            piped(source, target, table)
            assert pair.target.admin("select id from t limit 1") == [(1,)]


def test_a_part_is_repeated_in_the_same_sessions(pair: Pair) -> None:
    pair.source.run(ROWS.format(1000))
    with sides(pair) as (source, target, table):
        for _ in range(2):
            part = piped(source, target, table)
            assert part.rows == 1000
        assert piped(source, target, table, empty=False).rows == 1000
    assert pair.target.admin("select count(*) from t") == [(2000,)]


def test_rows_are_frozen_if_the_table_is_copied_as_a_whole(pair: Pair) -> None:
    pair.source.run(ROWS.format(10))
    has_visibility_map = "select pg_relation_size('t', 'vm') > 0"
    with sides(pair) as (source, target, table):
        for empty in (False, True):
            piped(source, target, table, empty)
            assert pair.target.admin(has_visibility_map) == [(empty,)]


@pytest.mark.full
def test_memory_is_limited_although_the_target_is_slow(pair: Pair) -> None:
    size_mb = 90
    pair.source.run(
        "alter table t alter v set storage external",
        f"insert into t select i, repeat('x', 1 << 20) from generate_series(1, {size_mb}) i",
    )
    proxy = Proxy(pair.target.server.port)
    try:
        with sides(pair, proxied(pair.target, proxy)) as (source, target, table):
            piped(source, target, table)  # whatever is loaded on first use
            proxy.bytes_per_s = 30 << 20
            forget_peak(os.getpid())
            before_mb = resident_mb(os.getpid())
            assert piped(source, target, table).rows == size_mb
            assert peak_mb(os.getpid()) - before_mb < size_mb / 3
    finally:
        proxy.close()


def proxied(database: Database, proxy: Proxy) -> Dsn:
    return Dsn(f"{database.dsn(OWNER).reveal()} port={proxy.port}")


def test_an_error_of_the_target_ends_the_copy_at_once_and_leaves_both_sessions(pair: Pair) -> None:
    pair.source.run(ROWS.format(100_000))
    pair.target.run("alter table t add constraint small check (id < 10)")
    with sides(pair) as (source, target, table):
        for _ in range(2):
            begin = time.monotonic()
            with pytest.raises(RowRejected, match=r"copy of public.t, at the target: .*small.*COPY t, line 10"):
                piped(source, target, table)
        assert time.monotonic() - begin < 5
        pair.target.run("alter table t drop constraint small")
        assert piped(source, target, table).rows == 100_000


def test_an_error_of_the_source_rolls_the_target_back_and_leaves_both_sessions(pair: Pair) -> None:
    pair.source.run(ROWS.format(10))
    with sides(pair) as (source, target, table):
        piped(source, target, table)
        pair.source.run("alter table t add c int")
        with pytest.raises(TableChanged, match=r"copy of public.t, at the source: table public.t was altered"):
            piped(source, target, table)
        assert pair.target.admin("select count(*) from t") == [(10,)]
        pair.source.run("alter table t drop c")
        assert piped(source, target, table).rows == 10


@pytest.mark.full
def test_a_canceled_read_fails_in_the_middle_and_can_be_repeated(pair: Pair) -> None:
    pair.source.run(ROWS.format(200_000))
    proxy = Proxy(pair.target.server.port)
    with sides(pair, proxied(pair.target, proxy)) as (source, target, table):
        proxy.stalled = False
        canceled = threading.Thread(target=_cancel_copy, args=[pair.source, proxy])
        canceled.start()
        with pytest.raises(TimedOut, match=r"copy of public.t, at the source: .*canceling statement"):
            piped(source, target, table)
        canceled.join()
        assert pair.target.admin("select count(*) from t") == [(0,)]
        assert piped(source, target, table).rows == 200_000
    proxy.close()


def _cancel_copy(database: Database, proxy: Proxy) -> None:
    """Cancel the COPY of the source while the target takes no more data."""
    reading = f"from pg_stat_activity where datname = '{database.name}' and query like 'copy (%'"
    proxy.piece_bytes = 1000
    eventually(lambda: database.admin(f"select pid {reading} and state = 'active'"), 30)
    database.admin(f"select pg_cancel_backend(pid) {reading}")
    proxy.piece_bytes = 65536


@pytest.mark.parametrize("end", ["source", "target"])
def test_a_session_that_ends_in_the_middle_is_named(pair: Pair, end: str) -> None:
    pair.source.run(ROWS.format(200_000))
    database = pair.source if end == "source" else pair.target
    with sides(pair) as (source, target, table):
        pid = (source.session if end == "source" else target).connection.info.backend_pid

        def ended() -> None:
            active = f"select from pg_stat_activity where pid = {pid} and query like 'copy%' and state = 'active'"
            eventually(lambda: database.admin(active), 30)
            database.admin(f"select pg_terminate_backend({pid})")

        thread = threading.Thread(target=ended)
        thread.start()
        with pytest.raises(ConnectionLost, match=f"copy of public.t, at the {end}: .*(57P01|closed)"):
            piped(source, target, table)
        thread.join()
        closed = source.session.connection.closed, target.connection.closed
        assert closed == (end == "source", end == "target")
    assert pair.target.admin("select count(*) from t") == [(0,)]


@pytest.mark.quick
def test_a_record_that_fails_rolls_everything_back(pair: Pair) -> None:
    pair.source.run(ROWS.format(10))

    def failing(session: Session, _: PipedPart) -> None:
        session.connection.execute("select 1 / 0")

    def hidden(session: Session, _: PipedPart) -> None:
        with pytest.raises(SourceError):
            session.rows("select 1 / 0")

    with sides(pair) as (source, target, table):
        part = Part(table.fingerprint.oid, 0, None, 0)
        for record in (failing, hidden):
            with pytest.raises(TidemarkError, match=r"copy of public.t, at the target"):
                pipe_part(source, target, table, part, record)
        assert pair.target.admin("select count(*) from t") == [(0,)]
        assert piped(source, target, table).rows == 10


def test_rows_that_the_target_does_not_store_are_noticed(pair: Pair) -> None:
    pair.source.run(ROWS.format(10))
    pair.target.run(
        "create function skip() returns trigger language plpgsql as "
        "'begin raise notice ''skip''; if new.id = 5 then return null; end if; return new; end'",
        "create trigger skips before insert on t for each row execute function skip()",
    )
    with sides(pair) as (source, target, table):
        with pytest.raises(RowRejected, match=r"copy of public.t, at the target: 9 of 10 rows were stored"):
            piped(source, target, table)
    assert pair.target.admin("select count(*) from t") == [(0,)]


@pytest.mark.full
def test_whoever_locks_the_table_of_the_target_is_named(pair: Pair) -> None:
    with sides(pair) as (source, target, table), pair.target.connect() as other:
        other.execute("begin; insert into t values (1)")
        with pytest.raises(TimedOut, match=rf"at the target: locking.*in use by pid {other.info.backend_pid}"):
            piped(source, target, table)
        other.execute("rollback")
        assert piped(source, target, table).rows == 0


@pytest.mark.full
def test_a_row_of_hundreds_of_megabytes_is_copied(db: Database) -> None:
    with pair_of(db.server, db.server) as pair:
        pair.fill(TABLE, "insert into t select 1, repeat('x', 150 << 20)")
        pair.copy_all()
        assert pair.require_equal() == 1
