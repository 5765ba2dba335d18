"""A source with a schema and an empty target, each on a server of its own version, for tests of definitions."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.database import OWNER, Database, add_roles, create_database
from harness.postgres import Install, Server, installs, start_server
from tests.target import hostile
from tidemark.postgres.dsn import Dsn
from tidemark.target.archive import DumpArchive, dump_schema
from tidemark.target.definitions import restore_stage
from tidemark.target.programs import Programs, find_programs
from tidemark.target.stages import CloneStage

NEWEST = max(installs())
PAIRS = [(16, 18), (18, 16), (15, 18)]


@dataclass(frozen=True)
class Pair:
    """Two databases; the target role owns its database and nothing more."""

    source: Database
    target: Database
    programs: Programs

    @property
    def from_dsn(self) -> Dsn:
        return self.source.dsn(OWNER)

    @property
    def to_dsn(self) -> Dsn:
        return self.target.dsn(OWNER)

    def fill(self) -> None:
        """Create the hostile schema, and its rows, at the source."""
        self.source.run(hostile.SCHEMA, *hostile.ROWS)

    def dump(self, folder: Path, tables: frozenset[int] | None = None) -> DumpArchive:
        return dump_schema(self.programs, self.from_dsn, None, folder, tables)

    def restore(self, archive: DumpArchive, *stages: CloneStage, jobs: int = 1, only: set[int] | None = None) -> None:
        for stage in stages or CloneStage:
            restore_stage(self.programs, self.to_dsn, archive, stage, jobs, only)

    def expected(self) -> list[str]:
        """The schema of the source as the target's version prints it.

        Versions print the same definition differently. If they differ, a superuser restores the schema all at once into
        another database of the target's server.
        """
        if self.source.server.install.major == self.target.server.install.major:
            return self.statements(self.source)
        oracle = create_database(self.target.server)
        _remove_default_privileges(oracle)
        command: list[str | Path] = [
            self.programs.pg_dump,
            "-Fc",
            "--no-publications",
            "-d",
            _superuser_dsn(self.source),
        ]
        dumped = subprocess.run(command, capture_output=True, check=True).stdout
        command = [self.programs.pg_restore, "-d", _superuser_dsn(oracle)]
        errors = subprocess.run(command, input=dumped, capture_output=True, check=False).stderr
        assert errors.count(b": error: ") == errors.count(b'"transaction_timeout"'), errors
        statements = self.statements(oracle)
        oracle.drop()
        return statements

    def statements(self, side: Database) -> list[str]:
        """The schema of one side as pg_dump prints it, by object, without what names the database or the version."""
        command: list[str | Path] = [
            side.server.install.program("pg_dump"),
            "--schema-only",
            "--no-publications",
            "-d",
            _superuser_dsn(side),
        ]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        text = re.sub(
            r"^(--.*|SET .*|SELECT pg_catalog.set_config.*|\\(un)?restrict .*)$", "", text, flags=re.MULTILINE
        )
        return sorted(block.strip() for block in re.split(r"\n{3,}", text) if block.strip())


def _superuser_dsn(database: Database) -> str:
    return database.server.dsn("postgres", database.name)


def _remove_default_privileges(database: Database) -> None:
    """Remove the default privileges that the harness gives to the mirror role."""
    revoke = "alter default privileges for role app revoke"
    database.admin(f"{revoke} select on tables from mirror", f"{revoke} usage on schemas from mirror")


def pair_fixture(*versions: tuple[int, int]) -> Any:
    """A fixture: a pair of the newest version in the quick tier, and of these versions in the full tier."""
    every = [(NEWEST, NEWEST), *(pair for pair in versions if set(pair) <= installs().keys())]
    params = [pytest.param(pair, marks=() if pair == (NEWEST, NEWEST) else pytest.mark.full) for pair in every]

    @pytest.fixture(name="pair", params=params, ids=lambda pair: f"{pair[0]}-to-{pair[1]}")
    def pair(request: pytest.FixtureRequest, running: dict[Install, Server]) -> Iterator[Pair]:
        servers = [_server(running, installs()[major]) for major in request.param]
        for server in set(servers):
            server.sql(*hostile.PREPARATION)
        source, target = (create_database(server) for server in servers)
        _remove_default_privileges(source)
        _remove_default_privileges(target)
        yield Pair(source, target, programs_for(*request.param))
        source.drop()
        target.drop()

    return pair


def programs_for(source: int, target: int) -> Programs:
    """The programs of the newer of two versions, or of the source if it has columns that only these can dump."""
    own = find_programs(source * 10000, target * 10000, installs()[source].home / "bin")
    newer = find_programs(source * 10000, target * 10000, installs()[max(source, target)].home / "bin")
    return own if own.leaves_out_column_versions else newer


def _server(running: dict[Install, Server], install: Install) -> Server:
    if install not in running:
        running[install] = start_server(install)
        add_roles(running[install])
    return running[install]
