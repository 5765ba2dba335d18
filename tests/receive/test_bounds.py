"""Nothing grows without a bound that is known: our memory, our disk, and the WAL that the source keeps for us."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.database import Database, create_database
from harness.mirrored import (
    Mirrored,
    connected,
    ended,
    eventually,
    mirrored,
    receive_all,
    receiving,
    said,
    streaming,
)
from tests.conftest import NEWEST, Start, quick_only
from tidemark.clock import Lsn
from tidemark.errors import InvalidValue, WalLimitReached
from tidemark.log.reader import LogReader
from tidemark.pgoutput.frames import windows
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.receive.control import page_start
from tidemark.receive.options import ReceiveOptions, WalPolicy
from tidemark.units import format_size

pytestmark = pytest.mark.quick

LIMIT_BYTES = 4 << 20


def written(database: Database) -> Lsn:
    return Lsn.parse(database.admin("select pg_current_wal_insert_lsn()::text")[0][0])


def confirmed(mirror: Mirrored) -> Lsn:
    name = mirror.options.names.slot
    query = f"select confirmed_flush_lsn::text from pg_replication_slots where slot_name = '{name}'"
    return Lsn.parse(mirror.database.admin(query)[0][0])


def peak_bytes(pid: int) -> int:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def messages_in(folder: Path) -> int:
    """How many messages the transactions of a log have, without a copy of any."""
    reader, count = LogReader(folder), 0
    for part in reader.transactions(Lsn.ZERO, reader.received):
        buffers = reader.buffers(part)
        for place, _, start, end, _ in part.extents.tolist():
            for window in windows(buffers[place], np.array([start]), np.array([end]), 65536, 64 << 20):
                count += len(window.starts)
    return count


@pytest.mark.full
@NEWEST
def test_memory_does_not_grow_with_a_transaction(db: Database, tmp_path: Path) -> None:
    rows = 2_000_000
    db.run("create table n (id int)")
    mirror = mirrored(db, tmp_path, "n")
    receive_all(mirror)  # compiles what is not compiled yet
    with receiving(mirror) as process:
        streaming(mirror)
        db.run(f"insert into n select generate_series(1, {rows})")
        mirror.catch_up(limit_s=120)
        peak = peak_bytes(process.process.pid)
        process.stop()
        ended(process)
    assert peak < 200 << 20, f"{peak:,} bytes"
    assert messages_in(mirror.options.folder) >= rows


@pytest.mark.full
@NEWEST
def test_a_log_that_is_full_holds_the_stream_and_not_the_server(start: Start, tmp_path: Path) -> None:
    database = create_database(start(wal_sender_timeout="3s"))
    database.run("create table t (id int primary key, v text)")
    mirror = mirrored(database, tmp_path, "t", segment_bytes=1 << 18, budget_bytes=1 << 21)
    with receiving(mirror) as process, connected(mirror.options.folder) as client:
        client.nudge()  # when it is answered, the stream is read
        pid = streaming(mirror)
        for first in range(0, 30_000, 100):
            rows = f"generate_series({first}, {first + 99}) i"
            database.run(f"insert into t select i, repeat(md5(i::text), 10) from {rows}")
        target = written(database)
        eventually(lambda: client.position().state.startswith("paused: the log has reached its budget of 2 MB"))
        client.sync()
        time.sleep(1)  # for what was under way when it began to hold
        held = client.sync()
        time.sleep(5)  # longer than the server's patience
        assert client.position().received == held < target
        assert confirmed(mirror) <= held
        assert streaming(mirror) == pid, "the connection is the same"
        while client.position().received < target:
            client.applied(client.position().durable)
            time.sleep(0.05)
        client.applied(client.sync())
        eventually(lambda: client.position().state == "streaming")
        assert streaming(mirror) == pid
        process.stop()
        ended(process)
    reader = LogReader(mirror.options.folder)
    by_sql = [each.lsn.value for each in mirror.by_sql() if each.lsn <= reader.received]
    assert reader.commits()["lsn"].tolist() == by_sql
    assert len(by_sql) >= 300


@pytest.mark.full
@NEWEST
def test_a_reader_that_needs_the_log_holds_it_only_within_the_budget(start: Start, tmp_path: Path) -> None:
    database = create_database(start())
    database.run("create table t (id int primary key, v text)")
    mirror = mirrored(database, tmp_path, "t", segment_bytes=1 << 18, budget_bytes=1 << 21)
    with receiving(mirror) as process, connected(mirror.options.folder) as client:
        needed = client.nudge()
        for first in range(0, 20_000, 500):
            database.run(
                f"insert into t select i, repeat(md5(i::text), 10) from generate_series({first}, {first} + 499) i"
            )
            client.nudge()
            client.applied(client.sync(), needed)
        assert client.position().received > needed
        process.stop()
        ended(process)


def test_a_budget_that_one_block_could_use_up_is_refused(tmp_path: Path) -> None:
    """The segment that is written cannot be removed: were it alone too much, nothing could ever be received again."""
    dsn, names = Dsn("host=h"), MirrorNames("m")
    for segment_bytes, budget_bytes in ((1 << 24, 1 << 24), (1 << 16, 1 << 20)):
        with pytest.raises(InvalidValue, match=f"a log budget of {format_size(budget_bytes)}"):
            ReceiveOptions(dsn, tmp_path, names, segment_bytes=segment_bytes, budget_bytes=budget_bytes)


@pytest.mark.full
@NEWEST
def test_a_slow_disk_does_not_cost_the_connection(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = create_database(start(wal_sender_timeout="3s"))
    database.run("create table t (id int primary key, v text)")
    mirror = mirrored(database, tmp_path, "t")
    receive_all(mirror)
    monkeypatch.setenv("SLOW_SYNC_S", "4")
    with receiving(mirror, module="tests.receive.child") as process, connected(mirror.options.folder) as client:
        client.nudge()
        pid = streaming(mirror)
        for first in (0, 25_000):  # more than there are buffers for
            rows = f"generate_series({first}, {first + 24_999}) i"
            database.run(f"insert into t select i, repeat(md5(i::text), 10) from {rows}")
        mirror.catch_up()
        assert streaming(mirror) == pid
        process.stop()
        ended(process)
    mirror.require_equal()


@contextmanager
def wal_held_back(mirror: Mirrored) -> Iterator[None]:
    """A transaction that stays open: the slot must keep all WAL from its beginning on."""
    with mirror.database.connect() as holding:
        holding.execute("begin")
        holding.execute("insert into unpublished values (1)")
        yield


def hold_back(mirror: Mirrored, share: float) -> None:
    """Write until the slot holds back so much of the limit."""
    query = "select pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) from pg_replication_slots where slot_name = '{}'"
    query = query.format(mirror.options.names.slot)
    while (found := mirror.database.admin(query)) and found[0][0] < share * LIMIT_BYTES:  # until it is dropped, too
        mirror.database.run("insert into unpublished select generate_series(1, 1000)")


@pytest.fixture
def limited(db: Database, tmp_path: Path) -> Mirrored:
    db.run("create table t (id int primary key)", "create table unpublished (a int)")
    return mirrored(db, tmp_path, "t", wal_limit_bytes=LIMIT_BYTES, watch_interval_s=0.1)


@NEWEST
def test_wal_held_back_is_spoken_of_at_half_at_four_fifths_and_at_the_limit(limited: Mirrored) -> None:
    outcome = "WAL retention limit 4 MB, policy: warn (log a warning)"
    with receiving(limited) as process, wal_held_back(limited):
        streaming(limited)
        assert outcome in said(limited), "it is stated at the start"
        for warnings, share in enumerate((0.52, 0.82, 1.02), 1):
            assert said(limited).count("% of the limit") < warnings
            hold_back(limited, share)
            eventually(lambda n=warnings: said(limited).count("% of the limit") == n)  # type: ignore[misc]
        assert said(limited).count(outcome) == 4
        limited.database.run("insert into t values (1)")
        limited.catch_up()
        process.stop()
        ended(process)
    limited.require_equal()


@NEWEST
@pytest.mark.parametrize(
    "policy", quick_only((WalPolicy.HOLD, WalPolicy.DROP), WalPolicy.HOLD), ids=lambda policy: policy.value
)
def test_at_the_limit_receiving_stops_and_the_slot_stays_or_goes(limited: Mirrored, policy: WalPolicy) -> None:
    outcome = {WalPolicy.HOLD: "stop and keep the slot", WalPolicy.DROP: "stop and drop the slot"}[policy]
    name = limited.options.names.slot
    with receiving(limited, replace(limited.options, wal_policy=policy)) as process, wal_held_back(limited):
        streaming(limited)
        assert outcome in said(limited), "it is stated at the start"
        hold_back(limited, 1.02)
        with pytest.raises(WalLimitReached, match=f"slot {name} retains .*{outcome}") as caught:
            ended(process)
    assert "\nHint: " in str(caught.value)
    found = limited.database.admin(f"select 1 from pg_replication_slots where slot_name = '{name}'")
    assert len(found) == (1 if policy is WalPolicy.HOLD else 0)
    if policy is WalPolicy.HOLD:
        limited.database.run("insert into t values (1)")
        receive_all(limited, replace(limited.options, wal_limit_bytes=1 << 30))
        limited.require_equal()


def test_a_quiet_database_on_a_busy_server_holds_back_no_wal(db: Database, tmp_path: Path) -> None:
    """Nobody asks, nobody nudges: the server says how far it has come, and we confirm that."""
    db.run("create table t (id int primary key)")
    mirror = mirrored(db, tmp_path, "t")
    other = create_database(db.server)
    with receiving(mirror):
        streaming(mirror)
        for _ in range(3):
            other.run("create table busy as select generate_series(1, 10000)", "drop table busy")
            target = page_start(written(db), 16 << 20)
            eventually(lambda target=target: confirmed(mirror) >= target)  # type: ignore[misc]
    other.drop()
