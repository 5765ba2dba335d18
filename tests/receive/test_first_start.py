"""The first start waits for the transactions that run, names them, and leaves nothing behind when it is stopped."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.database import Database
from harness.mirrored import connected, ended, eventually
from harness.syncing import publish
from tests.conftest import NEWEST
from tidemark.errors import ExitCode, Stopped
from tidemark.receive.options import ReceiveOptions
from tidemark.receive.process import ReceiveProcess

pytestmark = [pytest.mark.quick, NEWEST]


@contextmanager
def first_start(db: Database, folder: Path) -> Iterator[tuple[ReceiveProcess, Path]]:
    """A receiving process that has no log yet, and what it reports."""
    reports = folder / "reports"
    if not db.admin("select from pg_publication"):
        db.run("create table t (id int primary key)")
        publish(db, "t")
    with reports.open("wb") as stderr:
        process = ReceiveProcess.start(ReceiveOptions(db.dsn(), folder / "log", db.names), stderr=stderr)
    with process:
        yield process, reports


@contextmanager
def running(db: Database) -> Iterator[None]:
    """A transaction that has begun to write, and does not end before the context."""
    with db.connect() as writer:
        writer.execute("begin; select pg_current_xact_id()")
        yield


def slots(db: Database) -> list[tuple[str]]:
    return db.admin(f"select slot_name from pg_replication_slots where database = '{db.name}'")


def test_transactions_that_run_are_named_at_once_and_waited_for_until_they_end(db: Database, tmp_path: Path) -> None:
    db.run("create table other (id int)", "begin; insert into other values (1); prepare transaction 'payroll'")
    with db.connect() as writer:
        writer.execute("set application_name = 'nightly report'; begin; insert into other values (2)")
        pid = writer.info.backend_pid
        with first_start(db, tmp_path) as (process, reports):
            eventually(lambda: "waiting for running transactions: " in reports.read_text())
            named = {f"pid {pid} of app (nightly report)", "prepared transaction 'payroll' of app, since "}
            assert [each for each in named if each in reports.read_text()], "the first of them"
            writer.execute("commit")
            eventually(lambda: "prepared transaction 'payroll' of app, since " in reports.read_text())
            assert re.search(r"'payroll' of app, since [^,]* UTC, for [0-9]+ s ", reports.read_text())
            assert "rollback prepared 'payroll'; -- or commit prepared" in reports.read_text()
            assert process.process.poll() is None
            db.run("commit prepared 'payroll'")
            with connected(tmp_path / "log") as client:
                assert client.position().state
            assert slots(db) == [(db.names.slot,)]
            process.stop()
            ended(process)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_a_wait_that_is_stopped_leaves_no_slot(db: Database, tmp_path: Path, number: signal.Signals) -> None:
    with running(db), first_start(db, tmp_path) as (process, reports):
        eventually(lambda: "waiting for running transactions" in reports.read_text())
        process.process.send_signal(number)
        with pytest.raises(Stopped, match="was not created"):
            ended(process)
        assert process.process.returncode == ExitCode.INTERRUPTED
        assert slots(db) == []


@pytest.mark.full
def test_a_wait_that_is_killed_is_taken_up_by_the_next_start(db: Database, tmp_path: Path) -> None:
    """The server goes on creating the slot for a client that is gone, until the transactions have ended."""
    with db.connect() as writer:
        writer.execute("begin; select pg_current_xact_id()")
        with first_start(db, tmp_path) as (process, reports):
            eventually(lambda: "waiting for running transactions" in reports.read_text())
            process.kill()
        assert slots(db) == [(db.names.slot,)], "it is still being created"
        with first_start(db, tmp_path) as (process, reports):
            eventually(lambda: "waiting for running transactions" in reports.read_text())
            writer.execute("commit")
            with connected(tmp_path / "log"):
                assert slots(db) == [(db.names.slot,)]
            process.stop()
            ended(process)


@pytest.mark.full
def test_a_wait_whose_parent_has_ended_leaves_no_slot(db: Database, tmp_path: Path) -> None:
    with running(db), first_start(db, tmp_path) as (process, reports):
        eventually(lambda: "waiting for running transactions" in reports.read_text())
        os.close(process.pipe)
        process.process.wait(60)
        process.pipe = os.open(os.devnull, os.O_RDONLY)
        assert slots(db) == []
