"""`tidemark clone` from the command line, with Spark, between versions; `tidemark compare` finds both equal."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from harness.database import MIRROR, OWNER, Database, add_roles, create_database
from harness.postgres import Install, Server, installs, start_server
from tests.target.load import TABLES, contents, database_with_tables, hostile, writing
from tests.target.polled import copied, options_of, poller_of
from tidemark.postgres.names import MirrorNames

pytestmark = pytest.mark.full
PAIRS = [pair for pair in ((16, 18), (18, 16), (15, 18)) if set(pair) <= set(installs())]


@pytest.fixture(params=PAIRS, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    found: list[Install] = [installs()[major] for major in request.param]
    started = [start_server(install) for install in found]
    try:
        for server in started:
            add_roles(server)
        yield started[0], started[1]
    finally:
        for server in started:
            server.remove()


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from tidemark.cli.main import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_clone_of_another_version_compares_equal(servers: tuple[Server, Server], tmp_path: Path) -> None:
    before, after = servers
    target = create_database(after)
    for source in database_with_tables(before):
        with source.connect() as connection:
            connection.autocommit = True
            hostile(connection, Random(5), 300)  # noqa: S311 - to be repeated
        _publish(source)
        both = source.dsn().reveal(), target.dsn(OWNER).reveal()
        pg_bin = max(servers, key=lambda server: server.install.major).install.home / "bin"
        clone = ("clone", *both, "--name", source.name, "--state", tmp_path, "--pg-bin", pg_bin)
        with writing(source, 3):
            first = run(*clone, "--follow", "--endpos", "current")
        assert first.returncode == 0, first.stderr
        assert "follow" in first.stdout
        last = run(*clone)
        assert last.returncode == 0, last.stderr
        assert "complete" in last.stdout
        compared = run("compare", *both)
        assert compared.returncode == 0, compared.stdout
        assert compared.stdout.count("equal ") >= len(TABLES)


def _publish(source: Database) -> None:
    major = source.server.install.major
    generated = ", publish_generated_columns = stored" if major >= 18 else ""
    source.admin(
        f"create publication {MirrorNames(source.name).publication} for table {', '.join(TABLES)} "
        f"with (publish = 'insert, update, delete, truncate'{generated})",
        f"grant select on all sequences in schema public to {MIRROR}",
    )


def test_a_clone_of_another_version_by_polls_compares_equal(servers: tuple[Server, Server], tmp_path: Path) -> None:
    before, after = servers
    target = create_database(after)
    for source in database_with_tables(before):
        chance = Random(6)  # noqa: S311 - to be repeated
        options = options_of(source, target, tmp_path)
        pg_bin = max(servers, key=lambda server: server.install.major).install.home / "bin"
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
