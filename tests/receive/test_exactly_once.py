"""Whatever happens to the server, the network or the process: every transaction is in the log, exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from harness.database import Database, create_database
from harness.load import writing
from harness.mirrored import Mirrored, connected, eventually, mirrored, receiving, streaming
from harness.postgres import Server
from harness.postgres.server import Mode
from harness.proxy import Proxy
from tests.conftest import NEWEST, quick_only
from tidemark.clock import Lsn
from tidemark.log.reader import LogReader
from tidemark.storage.fail_points import ReceiveFailPoint

pytestmark = pytest.mark.quick

TABLES = ("create table t (id int primary key, v text)", "create table u (id int primary key, v text, n numeric)")


def small_memory(database: Database) -> None:
    database.admin(f"alter database {database.name} set logical_decoding_work_mem = '64kB'")


@pytest.fixture
def mirror(db: Database, tmp_path: Path) -> Mirrored:
    db.run(*TABLES)
    small_memory(db)
    return mirrored(db, tmp_path, "t", "u", silence_s=3.0, status_interval_s=1.0, segment_bytes=1 << 20)


def begun(mirror: Mirrored) -> None:
    """Return when there is a stream: from then on a process tries again by itself."""
    with connected(mirror.options.folder) as client:
        eventually(lambda: client.position().state == "streaming")


def go_on_to_the_end(mirror: Mirrored) -> None:
    """Nothing disturbs any more: catch up, stop, and compare."""
    with receiving(mirror) as process:
        mirror.catch_up()
        process.stop()
        process.wait()
    assert mirror.require_equal() > 10


@pytest.mark.full
def test_under_load_the_log_holds_what_sql_says(mirror: Mirrored) -> None:
    with receiving(mirror):
        with writing(mirror.database):
            time.sleep(1.5)
            eventually(lambda: mirror.database.admin("select count(distinct id / 1000) > 20 from u")[0][0])
        mirror.catch_up()
    go_on_to_the_end(mirror)
    reader = LogReader(mirror.options.folder)
    assert reader.commits()["streamed"].sum() > 10


@pytest.mark.parametrize("streaming", quick_only((True, False), True))
@pytest.mark.parametrize("binary", [True, False])
@NEWEST
def test_streamed_or_whole_text_or_binary(db: Database, tmp_path: Path, streaming: bool, binary: bool) -> None:
    db.run(*TABLES)
    small_memory(db)
    mirror = mirrored(db, tmp_path, "t", "u", streaming=streaming, binary=binary)
    with receiving(mirror), writing(db):
        time.sleep(0.7)
    go_on_to_the_end(mirror)


@pytest.mark.full
@NEWEST
def test_a_row_larger_than_every_buffer_and_segment(mirror: Mirrored) -> None:
    with receiving(mirror):
        for n in (1, 2):
            mirror.database.run(
                f"insert into t values ({n}, repeat('large', 3000000))", f"insert into t values (-{n}, '')"
            )
        mirror.catch_up()
    assert max(len(m) for each in mirror.in_log() for m in each.messages) > 15_000_000
    mirror.require_equal()


@pytest.mark.full
@NEWEST
def test_connections_lost_more_often_than_there_are_buffers(mirror: Mirrored) -> None:
    with receiving(mirror) as process:
        for n in range(12):
            pid = streaming(mirror)
            mirror.database.run(f"insert into t values ({n}, '')")
            mirror.database.admin(f"select pg_terminate_backend({pid}, 5000)")
            mirror.catch_up()
        process.stop()
        process.wait()
    mirror.require_equal()


@pytest.mark.parametrize(
    "point",
    quick_only(ReceiveFailPoint, ReceiveFailPoint.SYNCED),
    ids=lambda point: point.name.lower(),
)
@NEWEST
def test_killed_at_every_point_and_started_again(
    mirror: Mirrored, point: ReceiveFailPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy(mirror.database.server.port)
    with writing(mirror.database):
        monkeypatch.setenv("KILL_AT", f"{point.value}:{1 if point in ONCE else 3}")
        if point is ReceiveFailPoint.ARCHIVED:
            archive = str(mirror.options.folder.with_name("archive"))
            mirror.options = replace(mirror.options, archive=archive, segment_bytes=1 << 14)
        options = mirror.through(proxy)
        if point is ReceiveFailPoint.ENDED:
            (now,) = mirror.database.admin("select pg_current_wal_insert_lsn()::text")[0]
            options = replace(options, endpos=Lsn.parse(now))
        with receiving(mirror, options, module="tests.receive.child") as process:
            if point is ReceiveFailPoint.CONNECTION_LOST:
                begun(mirror)
            while process.process.poll() is None:
                if point is ReceiveFailPoint.CONNECTION_LOST:
                    proxy.cut()
                time.sleep(0.2)
            assert process.process.returncode == -9
    monkeypatch.delenv("KILL_AT")
    proxy.close()
    go_on_to_the_end(mirror)


ONCE = (ReceiveFailPoint.SESSION_BEGUN, ReceiveFailPoint.STREAM_STARTED, ReceiveFailPoint.ENDED)


@pytest.mark.full
@NEWEST
def test_killed_at_any_time(mirror: Mirrored) -> None:
    with writing(mirror.database):
        for turn in range(4):
            with receiving(mirror) as process:
                with connected(mirror.options.folder):
                    time.sleep(0.05 + 0.1 * turn)
                process.kill()
    go_on_to_the_end(mirror)


@pytest.mark.parametrize("mode", quick_only(("fast", "immediate", "crash"), "crash"))
def test_the_server_restarts(start: Callable[..., Server], tmp_path: Path, mode: Mode) -> None:
    server = start()
    database = create_database(server)
    database.run(*TABLES)
    mirror = mirrored(database, tmp_path, "t", "u", silence_s=3.0, segment_bytes=1 << 20)
    with receiving(mirror) as process:
        begun(mirror)
        with writing(database):
            time.sleep(0.5)
            server.restart(mode)
            time.sleep(0.5)
        mirror.catch_up()
        assert process.process.poll() is None, "the same process went on"
    go_on_to_the_end(mirror)


NETWORKS: dict[str, Callable[[Proxy], None]] = {
    "cut": Proxy.cut,
    "half-closed": Proxy.half_close,
    "stalled": lambda proxy: setattr(proxy, "stalled", True),
    "slow": lambda proxy: setattr(proxy, "bytes_per_s", 300_000),
    "split": lambda proxy: setattr(proxy, "piece_bytes", 1),
}


@pytest.mark.parametrize("network", quick_only(NETWORKS, "cut"))
@NEWEST
def test_the_network_fails(mirror: Mirrored, network: str) -> None:
    with closing(Proxy(mirror.database.server.port)) as proxy, receiving(mirror, mirror.through(proxy)) as process:
        begun(mirror)
        with writing(mirror.database):
            for _ in range(3):
                time.sleep(0.4)
                NETWORKS[network](proxy)
            time.sleep(0.4)
        if network == "stalled":  # longer than the silence that is borne
            time.sleep(4)
            proxy.stalled = False
            proxy.cut()
        proxy.bytes_per_s, proxy.piece_bytes = None, 65536
        mirror.catch_up()
        assert process.process.poll() is None, "the same process went on"
        process.stop()
        process.wait()
    mirror.require_equal()
