"""`tidemark receive` and `tidemark log`, as a shell runs them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.database import Database
from harness.mirrored import Mirrored, connected, eventually, mirrored
from tests.conftest import NEWEST
from tests.documentation.keys import require_documented
from tidemark.clock import Lsn
from tidemark.errors import ExitCode

COMMAND = [sys.executable, "-c", "from tidemark.cli.main import main; main()"]
pytestmark = [pytest.mark.quick, NEWEST]


def tidemark(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def mirror(db: Database, tmp_path: Path) -> Mirrored:
    db.run("create table t (id int primary key, v text)")
    return mirrored(db, tmp_path, "t")


def received(mirror: Mirrored, *options: str) -> subprocess.CompletedProcess[str]:
    source, folder = mirror.options.source.reveal(), mirror.options.folder
    return tidemark("receive", source, "--log", folder, *options)


def now(mirror: Mirrored) -> str:
    (lsn,) = mirror.database.admin("select pg_current_wal_insert_lsn()::text")[0]
    return str(lsn)


@pytest.mark.full
def test_up_to_a_position_and_what_the_log_holds_then(mirror: Mirrored) -> None:
    mirror.database.run("insert into t values (1, 'a')", "insert into t values (2, 'b')")
    end = now(mirror)
    mirror.database.run("insert into t values (3, 'c')")
    done = received(mirror, "--endpos", end)
    assert (done.returncode, done.stdout.strip()) == (ExitCode.OK, f"complete up to {end}"), done.stderr
    assert "WAL retention limit 32 GB, policy: warn" in done.stderr
    looked = tidemark("log", mirror.options.folder)
    assert looked.returncode == ExitCode.OK
    assert looked.stdout.splitlines()[-1] == "2 transactions, all checksums valid"
    (segment,) = [json.loads(line) for line in tidemark("log", mirror.options.folder, "--json").stdout.splitlines()]
    require_documented("log", segment)
    assert (segment["number"], segment["commits"], segment["torn_bytes"]) == (1, 2, 0)
    assert Lsn.parse(segment["first"]) < Lsn.parse(segment["last"]) <= Lsn.parse(segment["position"])


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, ExitCode.OK), pytest.param(signal.SIGINT, 130, marks=pytest.mark.full)]
)
def test_until_it_is_stopped(mirror: Mirrored, number: int, code: int) -> None:
    source, folder = mirror.options.source.reveal(), mirror.options.folder
    command = [*COMMAND, "receive", source, "--log", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        mirror.database.run("insert into t values (1, 'a')")
        mirror.catch_up()
        with connected(folder) as client:
            eventually(lambda: client.position().durable >= client.position().received)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out.startswith("stopped at ")
    assert "tidemark.receive: streaming from " in err
    assert "Traceback" not in err
    mirror.require_equal()


def test_a_damaged_log_is_named_with_the_place(mirror: Mirrored) -> None:
    mirror.database.run("insert into t values (1, 'a')")
    received(mirror, "--endpos", now(mirror))
    (segment,) = mirror.options.folder.glob("*.segment")
    raw = bytearray(segment.read_bytes())
    raw[len(raw) // 2] ^= 1
    segment.write_bytes(raw)
    done = received(mirror, "--endpos", now(mirror))
    assert done.returncode == ExitCode.DAMAGED
    assert str(segment) in done.stderr
    assert "damaged at byte" in done.stderr
    assert "Hint:" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--endpos", "soon"], "invalid LSN"),
        pytest.param(["--budget", "much"], "invalid size", marks=pytest.mark.full),
        (["--budget", "1MB"], "Use a `--budget` of at least"),
        pytest.param(["--wal-limit", "0"], "must be greater than 0", marks=pytest.mark.full),
        pytest.param(["--wal-policy", "panic"], "panic", marks=pytest.mark.full),
        (["--name", "No Such Name"], "invalid mirror name"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_done(
    mirror: Mirrored, options: list[str], said: str
) -> None:
    done = received(mirror, *options)
    assert done.returncode == ExitCode.USAGE
    assert said in done.stderr
    assert not list(mirror.options.folder.glob("*.segment"))


@pytest.mark.usefixtures("install")
def test_a_folder_without_a_log_is_named(tmp_path: Path) -> None:
    for folder, said in ((tmp_path / "none", "is not a directory"), (tmp_path, "is not a log")):
        done = tidemark("log", folder)
        assert done.returncode == ExitCode.USAGE
        assert said in done.stderr
        assert str(folder) in done.stderr


def test_a_source_that_is_not_prepared_is_told_what_to_do(db: Database, tmp_path: Path) -> None:
    done = tidemark("receive", db.dsn().reveal(), "--log", tmp_path / "log")
    assert done.returncode == ExitCode.REFUSED
    assert "does not exist" in done.stderr
    assert "tidemark setup" in done.stderr
    assert db.admin("select count(*) from pg_replication_slots where database = current_database()") == [(0,)]
