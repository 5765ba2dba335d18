"""Parent and child: each learns how the other ended, in whatever way it does, and nobody else learns the password."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.database import PASSWORD, Database
from harness.mirrored import Mirrored, connected, ended, eventually, mirrored, receiving, said, streaming
from tests.conftest import NEWEST, quick_only
from tidemark.clock import Lsn
from tidemark.errors import ExitCode, LogInUse, ReceiveFailed
from tidemark.log.reader import LogReader
from tidemark.logs import fields_of
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.receive.options import PROCESS, ReceiveOptions, WalPolicy
from tidemark.receive.process import ReceiveProcess

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]

# What a parent does, and then no more: it is killed, and cannot clean up.
PARENT = """
import sys, time
from tidemark.receive.options import ReceiveOptions
from tidemark.receive.process import ReceiveProcess
process = ReceiveProcess.start(ReceiveOptions.from_json(sys.stdin.read()))
print(process.process.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def mirror(db: Database, tmp_path: Path) -> Mirrored:
    db.run("create table t (id int primary key, v text)")
    return mirrored(db, tmp_path, "t")


def confirmed(mirror: Mirrored) -> Lsn:
    name = mirror.options.names.slot
    query = f"select confirmed_flush_lsn::text from pg_replication_slots where slot_name = '{name}'"
    return Lsn.parse(mirror.database.admin(query)[0][0])


def test_a_child_told_to_end_has_everything_it_received_durable_and_confirmed(mirror: Mirrored) -> None:
    slow_to_sync = replace(mirror.options, sync_interval_s=600.0)
    with receiving(mirror, slow_to_sync) as process:
        for n in range(50):
            mirror.database.run(f"insert into t values ({n}, 'a')")
        mirror.catch_up()
        with connected(mirror.options.folder) as client:
            received = client.position().received
        process.stop()
        done = ended(process)
        assert process.process.returncode == ExitCode.OK
    reader = LogReader(mirror.options.folder)
    assert received <= done == reader.received
    assert confirmed(mirror) >= max(received, Lsn(int(reader.commits()["lsn"][-1])))
    mirror.require_equal()


@NEWEST
def test_an_interrupt_ends_it_in_good_order_too(mirror: Mirrored) -> None:
    with receiving(mirror) as process:
        streaming(mirror)
        process.process.send_signal(signal.SIGINT)
        assert ended(process) == LogReader(mirror.options.folder).received


@NEWEST
def test_a_child_told_to_end_before_it_has_begun_ends(mirror: Mirrored) -> None:
    """With a source that does not answer, at the very moment that it starts to listen for signals, and many times."""
    unreachable = replace(mirror.options, source=Dsn("host=127.0.0.1 port=1 user=x dbname=x connect_timeout=2"))
    for options in (mirror.options, unreachable):
        with receiving(mirror, options) as process:
            if options is not unreachable:
                eventually(lambda: (mirror.options.folder / "lock").exists())
            else:
                eventually(lambda: "waiting" in said(mirror))
            for _ in range(20):
                process.stop()
                time.sleep(0.01)
            ended(process)


def test_a_child_that_is_killed_is_noticed(mirror: Mirrored) -> None:
    with receiving(mirror) as process:
        with connected(mirror.options.folder) as client:
            process.process.send_signal(signal.SIGKILL)
            with pytest.raises(ReceiveFailed, match="died with exit code -9") as caught:
                ended(process)
            with pytest.raises(ReceiveFailed, match=f"the receiver of the log in {mirror.options.folder} has ended"):
                client.position()
    assert "Hint: Retry the command" in str(caught.value)


@NEWEST
def test_the_childs_error_is_the_parents_with_its_class_and_hint(mirror: Mirrored) -> None:
    with receiving(mirror) as first:
        with connected(mirror.options.folder):
            with receiving(mirror) as second, pytest.raises(LogInUse, match=str(first.process.pid)) as caught:
                ended(second)
    assert caught.value.hint == "Stop that process first."
    assert second.process.returncode == ExitCode.TRY_LATER
    assert caught.value.message not in said(mirror), "the parent reports it"


def gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


@NEWEST
@pytest.mark.parametrize("reachable", quick_only((True, False), True), ids=["streaming", "trying to connect"])
def test_a_child_ends_when_its_parent_is_killed(mirror: Mirrored, reachable: bool) -> None:
    with receiving(mirror) as process:
        mirror.catch_up()
        process.stop()
        ended(process)
    nowhere = Dsn("host=127.0.0.1 port=1 user=x dbname=x")
    options = mirror.options if reachable else replace(mirror.options, source=nowhere)
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdin
        assert parent.stdout
        parent.stdin.write(options.as_json())
        parent.stdin.close()
        child = int(parent.stdout.readline())
        if reachable:
            streaming(mirror)
        with connected(options.folder):
            assert not gone(child)
        parent.kill()
    eventually(lambda: gone(child))
    with receiving(mirror) as process:
        mirror.database.run("insert into t values (1, 'a')")
        mirror.catch_up()
        process.stop()
        ended(process)
    mirror.require_equal()


@NEWEST
def test_the_password_is_in_nobodys_arguments_or_environment_or_words(mirror: Mirrored) -> None:
    assert PASSWORD in mirror.options.source.reveal()
    with receiving(mirror) as process:
        streaming(mirror)
        for pid in (process.process.pid, os.getpid()):
            for file in ("cmdline", "environ"):
                assert PASSWORD.encode() not in Path(f"/proc/{pid}/{file}").read_bytes()
        process.stop()
        ended(process)
    assert PASSWORD not in said(mirror)
    assert PASSWORD not in repr(mirror.options)
    for path in mirror.options.folder.iterdir():
        assert PASSWORD.encode() not in path.read_bytes()


def test_options_survive_the_way_to_the_child(tmp_path: Path) -> None:
    options = ReceiveOptions(
        Dsn("host=h password=p"),
        tmp_path,
        MirrorNames("m"),
        endpos=Lsn(7),
        wal_policy=WalPolicy.DROP,
        sync_interval_s=0.5,
        binary=False,
    )
    again = ReceiveOptions.from_json(options.as_json())
    assert again.source.reveal() == options.source.reveal()
    assert replace(again, source=options.source) == options
    assert ReceiveOptions.from_json(replace(options, endpos=None).as_json()).endpos is None


@NEWEST
def test_the_childs_records_are_logged_here_with_their_levels_and_fields(
    mirror: Mirrored, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("tidemark"), "propagate", True)
    caplog.set_level(logging.INFO, "tidemark")
    with ReceiveProcess.start(mirror.options) as process:
        streaming(mirror)
        mirror.catch_up()
        process.stop()
        ended(process)
    started = next(record for record in caplog.records if record.getMessage().startswith("streaming from "))
    assert (started.name, started.levelno, started.processName) == ("tidemark.receive", logging.INFO, PROCESS)
    assert fields_of(started)["form"] == "binary"
    assert Lsn.parse(fields_of(started)["lsn"]) > Lsn.ZERO
    caplog.clear()
    nowhere = replace(mirror.options, source=Dsn("host=127.0.0.1 port=1 user=x dbname=x"))
    with ReceiveProcess.start(nowhere, level=logging.WARNING) as process:
        eventually(lambda: caplog.records)
        process.stop()
        ended(process)
    first = caplog.records[0]
    assert (first.levelno, fields_of(first)["state"]) == (logging.WARNING, "waiting")
    assert "127.0.0.1" in fields_of(first)["reason"]


@NEWEST
def test_a_line_of_the_child_that_is_no_record_is_a_warning(
    mirror: Mirrored, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("tidemark"), "propagate", True)
    with ReceiveProcess.start(mirror.options, module="tidemark.no_such_module") as process:
        with pytest.raises(ReceiveFailed):
            ended(process)
        eventually(lambda: caplog.records)
    assert "No module named" in caplog.records[-1].getMessage()
    assert caplog.records[-1].levelno == logging.WARNING
