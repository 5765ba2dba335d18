"""A log or a slot that someone removes or moves while we look elsewhere is noticed, never gone on without."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.database import Database
from harness.mirrored import Mirrored, ended, eventually, mirrored, receive_all, receiving, streaming
from tests.conftest import NEWEST
from tidemark.errors import DecodingFailed, LogDiskFailed, ObjectExists, SlotAhead, SlotRecreated
from tidemark.receive.process import ReceiveProcess
from tidemark.receive.receiver import DECODING_ATTEMPTS
from tidemark.storage.fail_points import ReceiveFailPoint

pytestmark = [pytest.mark.quick, NEWEST]
WAITING = '"state": "waiting"'
INSERT = "insert into t select coalesce(max(id), 0) + 1 from t"


@pytest.fixture
def mirror(db: Database, tmp_path: Path) -> Mirrored:
    db.run("create table t (id int primary key)")
    mirror = mirrored(db, tmp_path, "t")
    db.run(INSERT)
    receive_all(mirror)
    return mirror


def test_a_log_that_is_lost_is_not_begun_anew_without_a_word(mirror: Mirrored) -> None:
    """A slot without its log has confirmed what that log had."""
    shutil.rmtree(mirror.options.folder)
    with receiving(mirror) as process:
        with pytest.raises(ObjectExists, match="is not its log"):
            process.wait()
    assert not list(mirror.options.folder.glob("*.segment"))


@pytest.mark.full
def test_a_log_that_is_removed_under_us_is_not_confirmed_from(mirror: Mirrored) -> None:
    slot = f"select confirmed_flush_lsn from pg_replication_slots where slot_name = '{mirror.options.names.slot}'"
    with receiving(mirror) as process:
        streaming(mirror)
        shutil.rmtree(mirror.options.folder)
        mirror.database.run(INSERT)
        (last,) = mirror.database.admin("select pg_current_wal_insert_lsn()")[0]
        with pytest.raises(LogDiskFailed, match="cannot sync"):
            process.wait()
    assert mirror.database.admin(slot)[0][0] < last


def test_a_slot_moved_between_the_look_and_the_stream_is_noticed(
    mirror: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.database.run(INSERT)
    monkeypatch.setenv("PAUSE_AT", ReceiveFailPoint.SESSION_BEGUN.value)
    name = mirror.options.names.slot
    with receiving(mirror, module="tests.receive.child") as process:
        paused = mirror.options.folder.parent / "paused"
        eventually(paused.exists)
        mirror.database.admin(f"select pg_replication_slot_advance('{name}', pg_current_wal_lsn())")
        paused.unlink()
        with pytest.raises((SlotAhead, SlotRecreated), match=f"slot {name}"):
            process.wait()


@pytest.mark.full
def test_wal_that_the_server_cannot_read_ends_the_receiver_after_some_attempts(mirror: Mirrored) -> None:
    mirror.database.hide_wal()
    mirror.database.run(INSERT)
    with receiving(mirror) as process:
        require_undecodable(process, mirror, "58P01")


@pytest.mark.full
def test_wal_that_the_server_cannot_decode_ends_the_receiver_after_some_attempts(mirror: Mirrored) -> None:
    """Such as PostgreSQL 15 with `could not map filenode`: every session of the server fails at the same change."""
    with mirror.database.connect() as running:
        running.execute("begin")
        running.execute("select pg_current_xact_id()")
        damage_snapshot(mirror)
        mirror.database.run(INSERT)
        with receiving(mirror) as process:
            require_undecodable(process, mirror, "XX001")


def damage_snapshot(mirror: Mirrored) -> None:
    """Damage the snapshot from which decoding starts, which PostgreSQL writes if transactions are running."""

    def start() -> str:
        query = f"select restart_lsn from pg_replication_slots where slot_name = '{mirror.options.names.slot}'"
        return str(mirror.database.admin(query)[0][0])

    before = start()
    with receiving(mirror):
        streaming(mirror)
        while start() == before:
            mirror.database.admin("checkpoint")
            mirror.database.run(INSERT)
    file = mirror.database.server.data / "pg_logical/snapshots" / f"{start().replace('/', '-')}.snap"
    file.write_bytes(b"damaged" * 100)


def require_undecodable(process: ReceiveProcess, mirror: Mirrored, sqlstate: str) -> None:
    said = mirror.options.folder.parent / "said"
    before = said.read_text().count(WAITING)
    with pytest.raises(DecodingFailed, match=sqlstate) as caught:
        ended(process)
    assert said.read_text().count(WAITING) == before + DECODING_ATTEMPTS - 1
    assert caught.value.sqlstate == sqlstate
    assert "tidemark resync LAKE --all" in caught.value.hint


def test_wal_that_a_later_session_of_the_server_can_read_is_received(
    mirror: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = mirror.database.hide_wal()
    mirror.database.run(INSERT)
    monkeypatch.setenv("PAUSE_AT", ReceiveFailPoint.CONNECTION_LOST.value)
    with receiving(mirror, module="tests.receive.child"):
        paused = mirror.options.folder.parent / "paused"
        eventually(paused.exists)
        restore()
        paused.unlink()
        streaming(mirror)
    receive_all(mirror)
    assert mirror.require_equal() == 2
