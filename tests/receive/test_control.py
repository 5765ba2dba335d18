"""The local socket: whoever asks is answered, whatever they do harms nobody, and waiting ends on an idle server too."""

from __future__ import annotations

import inspect
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from harness.database import Database
from harness.mirrored import Mirrored, connected, ended, eventually, mirrored, receiving
from tests.conftest import NEWEST
from tidemark.clock import Lsn
from tidemark.errors import LogBehind, ReceiveFailed
from tidemark.log.reader import LogReader
from tidemark.receive import control
from tidemark.receive.client import ReceiveClient
from tidemark.receive.control import MOST_CLIENTS, NAME, at_folder, page_start

pytestmark = pytest.mark.quick

DOCUMENT = Path(__file__).parents[2] / "docs" / "receive-protocol.md"


@pytest.fixture
def mirror(db: Database, tmp_path: Path) -> Iterator[Mirrored]:
    """With a process that receives into it."""
    db.run("create table t (id int primary key, v text)")
    mirror = mirrored(db, tmp_path, "t")
    with receiving(mirror), connected(mirror.options.folder):
        yield mirror


def written(mirror: Mirrored) -> Lsn:
    return Lsn.parse(mirror.database.admin("select pg_current_wal_insert_lsn()::text")[0][0])


def raw(mirror: Mirrored) -> socket.socket:
    """A client that keeps to no protocol."""
    plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    plain.settimeout(20)
    address, _ = at_folder(mirror.options.folder, NAME)
    plain.connect(address)
    return plain


def asked(client: socket.socket, text: str) -> list[str]:
    """The answers to these lines, and then the end."""
    client.sendall(text.encode())
    client.shutdown(socket.SHUT_WR)
    with client, client.makefile() as lines:
        return lines.read().splitlines()


def test_every_question_is_answered(mirror: Mirrored) -> None:
    with connected(mirror.options.folder) as client:
        mirror.database.run("insert into t values (1, 'a')")
        target = written(mirror)
        assert client.nudge() > target
        client.reply()
        durable = client.sync()
        assert durable > target
        position = client.position()
        assert position.received >= position.durable >= durable
        assert position.state == "streaming"
        client.applied(durable)
        assert client.wait(durable, 1) >= durable


def test_a_wait_is_over_on_an_idle_server_also_after_a_wal_switch(mirror: Mirrored) -> None:
    with connected(mirror.options.folder) as client:
        for statement in ("insert into t values (1, 'a')", "select 1", "delete from t"):
            mirror.database.run(statement)
            target = written(mirror)
            assert client.wait(target, 30) >= page_start(target, 16 << 20)
        mirror.database.admin("select pg_switch_wal()")
        target = written(mirror)
        assert client.wait(target, 30) >= page_start(target, 16 << 20)


@NEWEST
def test_an_open_transaction_with_unflushed_wal_holds_nobody_up(mirror: Mirrored) -> None:
    with mirror.database.connect() as holding, connected(mirror.options.folder) as client, holding.transaction():
        holding.execute("insert into t values (1, 'open')")
        target = written(mirror)
        assert client.wait(target, 30) >= page_start(target, 16 << 20)
        assert client.nudge() > target


def nudges(mirror: Mirrored) -> int:
    return sum(message[10:19] == b"tidemark\0" for each in mirror.by_sql() for message in each.messages)


@NEWEST
def test_many_who_wait_share_nudges(mirror: Mirrored) -> None:
    before, waiters = nudges(mirror), 50
    with ExitStack() as clients:
        all_of_them = [clients.enter_context(raw(mirror)) for _ in range(waiters)]
        mirror.database.run("begin; insert into t values (1, 'a'); rollback")
        target = written(mirror)
        for client in all_of_them:
            client.sendall(f"wait {target}\n".encode())
        for client in all_of_them:
            assert client.recv(100).startswith(b"received ")
    assert 0 <= nudges(mirror) - before <= waiters / 5


@NEWEST
def test_following_ends_with_the_next_commit_and_emits_nothing(mirror: Mirrored) -> None:
    with connected(mirror.options.folder) as client:
        before, received = nudges(mirror), client.nudge()
        with pytest.raises(LogBehind, match=r"FF/0 was not received within 0\.3 s"):
            client.follow(Lsn.parse("FF/0"), 0.3)
        mirror.database.run("insert into t values (1, 'a')")
        assert client.follow(Lsn(received.value + 1), 30) > received
        assert nudges(mirror) - before == 1


@NEWEST
def test_a_wait_with_a_limit_says_how_far_it_came(mirror: Mirrored) -> None:
    with connected(mirror.options.folder) as client:
        with pytest.raises(LogBehind, match=r"FF/0 was not received within 0\.3 s: the received LSN is 0/"):
            client.wait(Lsn.parse("FF/0"), 0.3)
        eventually(lambda: client.position().state == "streaming")


@NEWEST
def test_nonsense_is_answered_with_an_error_and_served_on(mirror: Mirrored) -> None:
    lines = ["", "hello", "position now", "wait", "wait x", "wait 0/1 x", "wait FF/0 nan", "wait 0/1 1 1", "applied"]
    lines += ["applied 1", "sync 0/1", "POSITION", "\x00\udcff", f"wait {'9' * 900}/1", f"wait 0/1 {'9' * 900}"]
    with connected(mirror.options.folder) as client, raw(mirror) as plain:
        for line in lines[:12]:
            with pytest.raises(ReceiveFailed):
                client._ask(line)
        plain.sendall("".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"))
        answers = asked(plain, "position\n")
        assert [answer.split()[0] for answer in answers] == ["error"] * 14 + ["received", "position"]
        assert client.position().state == "streaming"


@NEWEST
def test_who_has_asked_everything_is_still_answered(mirror: Mirrored) -> None:
    target = written(mirror)
    answers = asked(raw(mirror), f"wait {target}\nnudge\nsync\nwait FF/0 200\nreply\nposition\n")
    verbs = ["received", "nudged", "flushed", "timeout", "ok", "position"]
    assert [answer.split()[0] for answer in answers] == verbs


@NEWEST
def test_who_asks_badly_harms_nobody(mirror: Mirrored) -> None:
    with connected(mirror.options.folder) as client, raw(mirror) as endless, raw(mirror) as deaf, raw(mirror) as queue:
        with pytest.raises(OSError):
            for _ in range(1000):
                endless.sendall(b"x" * 1024)
        for clogged, line in ((deaf, b"position\n"), (queue, b"wait FF/0\n")):
            clogged.settimeout(1)
            with pytest.raises(TimeoutError):
                for _ in range(5000):
                    clogged.sendall(line * 1000)
        for _ in range(20):
            with raw(mirror) as dying:
                dying.sendall(b"wait 0/")
            with raw(mirror) as dying:
                dying.sendall(b"wait FF/0\nnudge\n")
        mirror.database.run("insert into t values (1, 'a')")
        target = written(mirror)
        assert client.wait(target, 30) >= page_start(target, 16 << 20)
        deaf.settimeout(20)
        assert deaf.recv(1 << 16).startswith(b"position received ")


@NEWEST
def test_nobody_is_asked_in_vain(mirror: Mirrored, tmp_path: Path) -> None:
    with pytest.raises(ReceiveFailed, match=f"no receiver is running for the log in {tmp_path}"):
        ReceiveClient(tmp_path)


@NEWEST
def test_a_folder_may_have_a_path_longer_than_a_sockets(db: Database, tmp_path: Path) -> None:
    db.run("create table t (id int primary key)")
    folder = tmp_path / ("a" * 100) / ("b" * 100)
    folder.mkdir(parents=True)
    mirror = mirrored(db, folder, "t")
    with receiving(mirror) as process:
        mirror.catch_up()
        process.stop()
        ended(process)
    assert not (folder / "log" / NAME).exists()


def segments(mirror: Mirrored) -> list[int]:
    return sorted(int(path.stem) for path in mirror.options.folder.glob("*.segment"))


@NEWEST
def test_what_was_applied_goes_but_not_what_an_open_transaction_needs(db: Database, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, v text)")
    db.admin(f"alter database {db.name} set logical_decoding_work_mem = '64kB'")
    mirror = mirrored(db, tmp_path, "t", segment_bytes=1 << 16)

    def fill(first: int) -> str:
        return f"insert into t select i, repeat('x', 100) from generate_series({first}, {first + 2999}) i"

    with receiving(mirror), connected(mirror.options.folder) as client, db.connect() as big:
        db.run(fill(0))
        before = client.nudge()
        big.execute("begin")
        big.execute(fill(10_000).encode())
        client.nudge()
        opened = segments(mirror)
        for first in range(20_000, 40_000, 3000):
            db.run(fill(first))
        applied = client.nudge()
        client.applied(before)
        assert eventually(lambda: segments(mirror)[0] > 1)
        client.applied(applied)
        client.applied(Lsn(2**62))
        client.sync()
        time.sleep(0.2)
        assert segments(mirror)[0] <= opened[-1], "the open one's first bytes are there"
        big.execute("commit")
        client.nudge()
        reader = LogReader(mirror.options.folder)
        parts = list(reader.transactions(applied, reader.received))
        assert sum(int(commit["streamed"]) for part in parts for commit in part.commits) == 1, "and a nudge perhaps"
        for part in parts:
            reader.buffers(part)
        client.applied(client.sync())
        assert eventually(lambda: len(segments(mirror)) == 1)


def test_a_position_after_a_pages_header_is_the_pages_start() -> None:
    segment = 16 << 20
    for page in (8192, 3 * 8192, segment + 8192):
        assert page_start(Lsn(page + 24), segment) == Lsn(page)
        assert page_start(Lsn(page + 40), segment) == Lsn(page + 40), "there a record may have ended"
    assert page_start(Lsn(5 * segment + 40), segment) == Lsn(5 * segment)
    assert page_start(Lsn(5 * segment + 40), segment * 4) == Lsn(5 * segment + 40), "in the middle of a larger one"
    for plain in (8192, 8192 + 23, 8192 + 25, 5 * segment, 5 * segment + 41):
        assert page_start(Lsn(plain), segment) == Lsn(plain)


def test_the_document_lists_every_question() -> None:
    verbs = re.findall(r'case "(\w+)"', inspect.getsource(control))
    assert len(verbs) == 7
    listed = re.findall(r"^\| `(\w+)", DOCUMENT.read_text(), re.MULTILINE)
    assert set(verbs) <= set(listed)


@NEWEST
def test_more_clients_than_are_served_wait_their_turn_and_harm_nobody(mirror: Mirrored) -> None:
    with connected(mirror.options.folder) as client:
        address, descriptor = at_folder(mirror.options.folder, NAME)
        idle = [socket.socket(socket.AF_UNIX) for _ in range(MOST_CLIENTS + 40)]
        for each in idle:
            each.setblocking(False)
            with suppress(BlockingIOError):
                each.connect(address)
        os.close(descriptor)
        mirror.database.run("insert into t values (77)")
        assert client.nudge() > Lsn.ZERO
        for each in idle:
            each.close()
        mirror.catch_up()
    mirror.require_equal()
