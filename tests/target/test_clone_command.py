"""`tidemark clone` from the command line, by Spark and by threads; `tidemark compare` finds both equal."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from harness.database import OWNER, create_database
from harness.postgres import Server
from tests.target.clones import publish
from tests.target.load import TABLES, contents, database_with_tables, hostile, writing
from tests.target.parity import PAIRS, servers
from tests.target.polled import copied, options_of, poller_of
from tests.target.schema_pairs import programs_for
from tidemark.errors import ExitCode

pytestmark = pytest.mark.full


@pytest.fixture(params=PAIRS, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def both(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    with servers(request.param) as started:
        yield started


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from tidemark.cli.main import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_clone_of_another_version_compares_equal(both: tuple[Server, Server], tmp_path: Path) -> None:
    before, after = both
    target = create_database(after)
    for source in database_with_tables(before):
        with source.connect() as connection:
            connection.autocommit = True
            hostile(connection, Random(5), 300)  # noqa: S311 - to be repeated
        publish(source)
        dsns = source.dsn().reveal(), target.dsn(OWNER).reveal()
        pg_bin = programs_for(before.install.major, after.install.major).pg_dump.parent
        clone = ("clone", *dsns, "--name", source.name, "--state", tmp_path, "--pg-bin", pg_bin)
        by_tasks = ("--master", "local[2]") if before.install.major < after.install.major else ()
        with writing(source, 3):
            first = run(*clone, *by_tasks, "--follow", "--endpos", "current", "--json")
        assert first.returncode == 0, first.stderr
        events = [json.loads(line) for line in first.stdout.splitlines()]
        assert {each["table"] for each in events if each["event"] == "copied"} == {f"public.{name}" for name in TABLES}
        assert (events[-1]["event"], events[-1]["phase"]) == ("ended", "follow")
        assert run(*clone, "--follow", "--endpos", "current").returncode == 0
        target.run("insert into keyed values (-1, 'mine')")
        source.run("insert into keyed values (-1, 'ours')")
        stopped = run(*clone)
        assert stopped.returncode == ExitCode.DIFFERENT
        assert "Key (id)=(-1) already exists" in stopped.stderr
        last = run(*clone, "--on-difference", "repair")
        assert "1 row repaired since it was begun" in last.stdout
        assert last.returncode == 0, last.stderr
        assert "complete" in last.stdout
        compared = run("compare", *dsns)
        assert compared.returncode == 0, compared.stdout
        assert compared.stdout.count("equal ") >= len(TABLES)


def test_a_clone_of_another_version_by_polls_compares_equal(both: tuple[Server, Server], tmp_path: Path) -> None:
    before, after = both
    target = create_database(after)
    for source in database_with_tables(before):
        chance = Random(6)  # noqa: S311 - to be repeated
        options = options_of(source, target, tmp_path)
        pg_bin = programs_for(before.install.major, after.install.major).pg_dump.parent
        options = replace(options, pg_bin=pg_bin)
        copied(options, target)
        with source.connect() as connection, poller_of(options) as poller:
            connection.autocommit = True
            for _ in range(5):
                hostile(connection, chance, 100)
                assert poller.step() is not None
                assert contents(target) == contents(source)
            assert poller.step() is None
        compared = run("compare", source.dsn().reveal(), target.dsn(OWNER).reveal())
        assert compared.returncode == 0, compared.stdout
